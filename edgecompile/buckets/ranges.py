"""The sizes that one compiled program serves: ranges of axes, and buckets of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from edgecompile.buckets.costs.grid import MODES, Mode
from edgecompile.errors import PlanError

OtherAxes = tuple[tuple[str, "AxisRange"], ...]


@dataclass(frozen=True)
class AxisRange:
    """Sizes ``lo``, ``lo + step``, … ``hi`` of one axis; ``hint`` is the one to tune for."""

    lo: int
    hi: int
    hint: int
    step: int = 1

    def __post_init__(self) -> None:
        for name in ("lo", "hi", "hint", "step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise PlanError(f"{name} is {value!r}, not a whole number")
        if not 1 <= self.lo <= self.hint <= self.hi:
            raise PlanError(
                f"a range needs 1 <= lo <= hint <= hi, but lo is {self.lo}, "
                f"hint {self.hint} and hi {self.hi}"
            )
        if self.step < 1 or (self.hi - self.lo) % self.step or (self.hint - self.lo) % self.step:
            raise PlanError(
                f"hint {self.hint} and hi {self.hi} aren't reached from lo {self.lo} in steps of "
                f"{self.step}"
            )

    def __contains__(self, size: int) -> bool:
        return self.lo <= size <= self.hi and (size - self.lo) % self.step == 0

    def __str__(self) -> str:
        return span_text((self.lo, self.hi, self.step))

    @property
    def label(self) -> str:
        """The sizes as tables show them: ``1–64``, or ``1–63 in steps of 2``."""
        return f"{self.lo}–{self.hi}" + ("" if self.step == 1 else f" in steps of {self.step}")

    @property
    def sizes(self) -> range:
        """Every size, ascending."""
        return range(self.lo, self.hi + 1, self.step)

    def below(self, size: int) -> int:
        """The largest of the sizes up to ``size``; ``lo`` if that is larger."""
        size = min(max(size, self.lo), self.hi)
        return size - (size - self.lo) % self.step

    def to_json(self) -> dict[str, int]:
        """``{"lo", "hi", "hint"}``, and ``"step"`` if it isn't 1."""
        value = {"lo": self.lo, "hi": self.hi, "hint": self.hint}
        return value if self.step == 1 else {**value, "step": self.step}

    @classmethod
    def from_json(cls, value: object, where: str = "range") -> AxisRange:
        """The inverse of :meth:`to_json`; without a hint, ``hi`` is tuned for.

        Raises:
            PlanError: ``value`` has another form or holds bad numbers.
        """
        if not isinstance(value, dict) or "lo" not in value or "hi" not in value:
            raise PlanError(f'{where}: needs "lo" and "hi"')
        hint = value["hint"] if "hint" in value else value["hi"]
        try:
            return cls(value["lo"], value["hi"], hint, value.get("step", 1))
        except PlanError as error:
            raise PlanError(f"{where}: {error.message}") from error


@dataclass(frozen=True)
class Bucket:
    """One compiled program, and the sizes that it serves.

    Attributes:
        mode: ``exact`` runs any length of the range unpadded; ``pad`` is a static program of
            length ``hi`` to which shorter inputs are padded.
        axes: name and range of every dynamic axis. The first is the length axis that the plan
            divides; the others (batch, a second length) hold for this bucket.
        pad_axes: the axes that a padded bucket's static program fixes at ``hi`` and to which
            inputs are padded, in the order of ``axes``. The length axis is always one of them,
            and the only one if none are given. Empty in ``exact`` mode.
    """

    mode: Mode
    axes: tuple[tuple[str, AxisRange], ...]
    pad_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode {self.mode!r} is neither exact nor pad")
        names = [name for name, _ in self.axes]
        if not names:
            raise PlanError("a bucket needs a length axis")
        if len(set(names)) != len(names):
            raise PlanError(f"an axis occurs twice in {', '.join(names)}")
        object.__setattr__(self, "pad_axes", self._checked_pad_axes(names))

    def _checked_pad_axes(self, names: list[str]) -> tuple[str, ...]:
        """``pad_axes`` in the order of the axes; by default the length axis in ``pad`` mode."""
        if self.mode == "exact":
            if self.pad_axes:
                raise PlanError(f"an exact bucket pads nothing, but pads {_list(self.pad_axes)}")
            return ()
        padded = self.pad_axes or names[:1]
        unknown = [name for name in padded if name not in names]
        if unknown:
            raise PlanError(f"pads {_list(unknown)}, but the bucket's axes are {_list(names)}")
        if names[0] not in padded:
            raise PlanError(f"pads {_list(padded)}, but not the length axis, {names[0]}")
        if len(set(padded)) != len(padded):
            raise PlanError(f"an axis occurs twice in {_list(padded)}, which are padded")
        return tuple(name for name in names if name in padded)

    @property
    def length_axis(self) -> str:
        """Name of the axis that the plan divides."""
        return self.axes[0][0]

    @property
    def lo(self) -> int:
        """Shortest length served."""
        return self.axes[0][1].lo

    @property
    def hi(self) -> int:
        """Longest length served; in ``pad`` mode the size of the program."""
        return self.axes[0][1].hi

    @property
    def hint(self) -> int:
        """The length to tune for."""
        return self.axes[0][1].hint

    @property
    def other_axes(self) -> OtherAxes:
        """The axes beside the length axis."""
        return self.axes[1:]

    def range(self, axis: str) -> AxisRange:
        """The range of one axis.

        Raises:
            KeyError: the bucket has no such axis.
        """
        return dict(self.axes)[axis]

    @property
    def program_axes(self) -> OtherAxes:
        """The sizes that the program itself takes: padded axes are fixed at their upper end.

        Buckets that agree in it are served by the same program, whatever they pad from.
        """
        return tuple(
            (name, AxisRange(r.hi, r.hi, r.hi) if name in self.pad_axes else r)
            for name, r in self.axes
        )

    def program_json(self) -> dict[str, dict[str, int]]:
        """:attr:`program_axes` as plain JSON: what identifies the bucket's export."""
        return {name: extent.to_json() for name, extent in self.program_axes}

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the bucket serves these sizes, one for each of its axes."""
        return all(sizes[name] in axis_range for name, axis_range in self.axes)

    def holds(self, other: Bucket) -> bool:
        """Whether it serves every length that ``other`` does."""
        own, theirs = self.axes[0][1], other.axes[0][1]
        in_steps = theirs.lo == theirs.hi or theirs.step % own.step == 0
        return theirs.lo in own and theirs.hi in own and in_steps

    def run_length(self, length: int) -> int:
        """The length at which the program runs for an input of ``length``."""
        return self.hi if self.mode == "pad" else length

    def to_json(self) -> dict[str, Any]:
        """``{"lo", "hi", "hint", "mode", "axes": {name: {"lo", "hi", "hint"}}}``.

        The length axis stands at the top, the others under ``axes``. ``"pad_axes"`` is there if a
        padded bucket pads further axes than the length axis.
        """
        others = {name: axis_range.to_json() for name, axis_range in self.other_axes}
        value: dict[str, Any] = {**self.axes[0][1].to_json(), "mode": self.mode, "axes": others}
        if len(self.pad_axes) > 1:
            value["pad_axes"] = list(self.pad_axes)
        return value

    @classmethod
    def from_json(cls, value: object, length_axis: str, where: str = "bucket") -> Bucket:
        """The inverse of :meth:`to_json`.

        Raises:
            PlanError: ``value`` has another form or holds bad numbers.
        """
        own = AxisRange.from_json(value, where)
        fields = cast("dict[str, Any]", value)
        others = fields.get("axes", {})
        if not isinstance(others, dict):
            raise PlanError(f'{where}: "axes" is a {type(others).__name__}, not an object')
        ranges = tuple(
            (str(name), AxisRange.from_json(item, f"{where}.axes.{name}"))
            for name, item in others.items()
        )
        padded = fields.get("pad_axes", [])
        if not isinstance(padded, list) or not all(isinstance(name, str) for name in padded):
            raise PlanError(f'{where}: "pad_axes" isn\'t a list of names')
        try:
            return cls(fields.get("mode", "exact"), ((length_axis, own), *ranges), tuple(padded))
        except PlanError as error:
            raise PlanError(f"{where}: {error.message}") from error


def span_text(span: Sequence[int]) -> str:
    """Sizes as people write them: ``12``, ``1..16`` or ``1..15 in steps of 2``.

    Args:
        span: The smallest size, the largest one, and perhaps the step between neighbours.
    """
    lo, hi, step = (*span, 1)[:3]
    if lo == hi:
        return str(lo)
    return f"{lo}..{hi}" + ("" if step == 1 else f" in steps of {step}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
