"""Exported programs with their verified ranges, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import ExportError
from edgecompile.export.archive import check_archive, load_program
from edgecompile.export.conditions import Range, Residue, input_nodes
from edgecompile.files import hash_tree, plain_fields, replacing, write_json
from edgecompile.models.examples import make_example
from edgecompile.models.specs import InputSpec, OutputSpec

aten = torch.ops.aten

PROGRAM_FILE = "program.pt2"
RECORD_FILE = "exported.json"
_RECORD_VERSION = 1


@dataclass(frozen=True)
class ExportedModel:
    """A program that agrees with eager over its ranges.

    ``program.module()`` takes the inputs as keyword arguments and gives a dict of outputs. Every
    input of the model stays an input of the program, in the same order; one that doesn't
    influence any output is accepted and ignored, and named in ``notes``.

    Attributes:
        name: the model's.
        source: the program, or the file that it is read from when it is first asked for: where
            every artifact is reused, it is never read.
        inputs: the inputs with the bounds of index inputs filled in from the graph where unknown
            before.
        outputs: the outputs of the model.
        ranges: smallest and largest size of every axis, verified; an axis with both equal is
            static in the program.
        length_axis: the model's.
        strategy: name of the strategy that served.
        checked: sizes at which the program was compared with eager.
        max_error: largest difference seen, relative to an output's scale.
        notes: remarks for the user.
        residue: the sizes of the length axis that were verified; None: all within its range.
    """

    name: str
    source: torch.export.ExportedProgram | Path
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    ranges: Mapping[str, Range]
    length_axis: str | None
    strategy: str
    checked: tuple[Mapping[str, int], ...]
    max_error: float
    notes: tuple[str, ...] = ()
    residue: Residue | None = None

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The graph and its weights.

        Raises:
            ModelError: the file can't be read.
        """
        return load_program(self.source) if isinstance(self.source, Path) else self.source

    @property
    def static(self) -> bool:
        """Whether the length axis (every axis, if there is none) has one size."""
        axes = [self.length_axis] if self.length_axis in self.ranges else list(self.ranges)
        return all(self.ranges[axis][0] == self.ranges[axis][1] for axis in axes if axis)

    def example(
        self, sizes: Mapping[str, int], seed: int = 0, padding: int | Sequence[int] = 0
    ) -> dict[str, torch.Tensor]:
        """Random valid inputs; axes without a size take their upper edge."""
        full = {axis: sizes.get(axis, span[1]) for axis, span in self.ranges.items()}
        return make_example(
            self.inputs, full, seed=seed, length_axis=self.length_axis, padding=padding
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the program, as plain values."""
        record = {"version": _RECORD_VERSION, "torch": torch.__version__, **plain_fields(self)}
        del record["source"]
        return record

    def save(self, folder: Path) -> None:
        """Writes ``program.pt2`` and ``exported.json``; the record comes last, when all is there.

        Raises:
            ExportError: torch can't store the program.
            OSError: writing failed; no half-written file has either name.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD_FILE).unlink(missing_ok=True)
        with replacing(folder / PROGRAM_FILE) as file:
            try:
                torch.export.save(self.program, file)
            except RuntimeError as exc:
                if type(exc).__name__ != "SerializeError":  # of torch's private parts
                    raise
                raise ExportError(
                    f"the exported program of '{self.name}' can't be stored by torch: "
                    + str(exc).splitlines()[0],
                    hint="compute sizes with + - * // % and min, max and comparisons alone",
                ) from exc
        digest = hash_tree(folder / PROGRAM_FILE)
        write_json(folder / RECORD_FILE, {**self.to_json(), "sha256": digest})

    @classmethod
    def load(cls, folder: Path) -> ExportedModel:
        """Reads what :meth:`save` wrote.

        Raises:
            ExportError: a file is missing, damaged or of another version.
        """
        try:
            record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
            version = record.get("version")
            if version != _RECORD_VERSION:
                raise ExportError(
                    f"'{folder / RECORD_FILE}' has version {version}, not {_RECORD_VERSION}",
                    hint="export the model again with the edgecompile that is installed here",
                )
            if hash_tree(folder / PROGRAM_FILE) != record["sha256"]:
                raise ExportError(
                    f"'{folder / PROGRAM_FILE}' isn't the file that was exported",
                    hint="export the model again",
                )
            check_archive(folder / PROGRAM_FILE)
            names = {item.name for item in fields(cls)} - {"source"}
            record.update(
                inputs=tuple(InputSpec.from_json(item) for item in record["inputs"]),
                outputs=tuple(OutputSpec.from_json(item) for item in record["outputs"]),
                ranges={axis: (span[0], span[1]) for axis, span in record["ranges"].items()},
                checked=tuple(record["checked"]),
                notes=tuple(record["notes"]),
                residue=record["residue"] and Residue(**record["residue"]),
            )
            return cls(source=folder / PROGRAM_FILE, **{name: record[name] for name in names})
        except (OSError, KeyError, TypeError, AttributeError, ValueError) as exc:
            raise ExportError(
                f"'{folder}' holds no exported model that can be read: {exc}",
                hint="it is written by 'edgecompile export'",
            ) from exc


def common_inputs(programs: Sequence[ExportedModel]) -> tuple[InputSpec, ...]:
    """The inputs of programs for several ranges, with the indices that all of their tables have."""
    result = []
    for specs in zip(*(program.inputs for program in programs), strict=True):
        known = [spec.bounds for spec in specs if spec.bounds is not None]
        bounds = (max(lo for lo, _ in known), min(hi for _, hi in known)) if known else None
        result.append(replace(specs[0], bounds=bounds))
    return tuple(result)


def common_outputs(programs: Sequence[ExportedModel]) -> tuple[OutputSpec, ...]:
    """The outputs of programs for several ranges, with None for sizes that aren't the same in all."""
    return tuple(
        replace(
            specs[0],
            shape=tuple(
                sizes[0] if len(set(sizes)) == 1 else None
                for sizes in zip(*(spec.shape for spec in specs), strict=True)
            ),
        )
        for specs in zip(*(program.outputs for program in programs), strict=True)
    )


_SAME_VALUES = {
    *(aten.alias.default, aten.clone.default, aten.contiguous.default, aten.reshape.default),
    *(aten.slice.Tensor, aten.to.dtype, aten.unsqueeze.default, aten.view.default),
}


def fill_bounds(
    program: torch.export.ExportedProgram, inputs: Sequence[InputSpec]
) -> tuple[InputSpec, ...]:
    """The inputs with the bounds of indices into tables, where the graph tells and none were known.

    An index outside its table aborts the compiled program, so the runtime checks bounds before each
    run; a factory or a saved program need not declare them.
    """
    result = []
    for spec, node in zip(inputs, input_nodes(program), strict=True):
        rows = _table_rows(node) if spec.bounds is None else []
        result.append(replace(spec, bounds=(0, min(rows) - 1)) if rows else spec)
    return tuple(result)


def _table_rows(node: torch.fx.Node) -> list[int]:
    rows = []
    for user in node.users:
        if user.target is aten.embedding.default and user.args[1] is node:
            table = user.args[0]
            assert isinstance(table, torch.fx.Node)
            rows.append(int(table.meta["val"].shape[0]))
        elif user.target in _SAME_VALUES:
            rows.extend(_table_rows(user))
    return rows
