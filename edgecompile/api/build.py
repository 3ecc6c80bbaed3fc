"""build(): from a model and its lengths to a verified bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.api.models import read_model_argument
from edgecompile.api.notebook import NotebookResult, count_notes
from edgecompile.api.options import BuildOptions, LoadOptions, PlanOptions
from edgecompile.api.plan import Plan, read_plan
from edgecompile.api.progress import listen
from edgecompile.api.traffic_sources import find_sources
from edgecompile.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgecompile.api.arguments import Callback, Lengths, Model, PathLike, Texts
    from edgecompile.api.verify import Verification
    from edgecompile.pipeline.result import BuildResult
    from edgecompile.report.page import Section
    from edgecompile.runtime import Model as OpenModel


@dataclass(frozen=True)
class Bundle(NotebookResult):
    """A verified bundle on this machine's disk.

    Attributes:
        details: the records of building and verifying it.
    """

    details: BuildResult

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.details.bundle_path

    def __fspath__(self) -> str:
        """Its folder, so that functions accept it as the path of a bundle."""
        return str(self.path)

    @property
    def size_bytes(self) -> int:
        """The size of all its files together."""
        return self.details.size_bytes

    @property
    def sha256(self) -> str:
        """The hash of its manifest, which names the hash of every other file."""
        return self.details.sha256

    @property
    def plan(self) -> Plan:
        """Its buckets."""
        return Plan(self.details.plan)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Wall time of the build by step."""
        return self.details.seconds

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences worth knowing."""
        return self.details.notes

    @property
    def document(self) -> Mapping[str, Any]:
        """The document that ``edgecompile build --json`` prints."""
        return self.details.to_json()

    @property
    def cases(self) -> int:
        """The number of comparisons with eager, all of which agreed."""
        return int(self.document["verify"]["cases"])

    def open(self, **options: Any) -> OpenModel:
        """Opens the bundle in this process; ``options`` are those of :func:`edgecompile.open_bundle`.

        Raises:
            EdgecompileError: see :func:`edgecompile.open_bundle`.

        Example:
            >>> with bundle.open(threads=2) as model:
            ...     outputs = model.run({"x": array})
        """
        from edgecompile.runtime import open_bundle

        return open_bundle(self.path, **options)

    def verify(self, model: Model | None = None, **options: Any) -> Verification:
        """Verifies the bundle again; arguments are those of :func:`edgecompile.verify`."""
        from edgecompile.api.verify import verify

        return verify(self.path, model, **options)

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile build --json`` prints."""
        return dict(self.document)

    def __repr__(self) -> str:
        programs = len(self.plan.buckets)
        return (
            f"<Bundle {self.path}: {format_bytes(self.size_bytes)}, {programs} "
            f"program{'' if programs == 1 else 's'}, verified in {self.cases} "
            f"cases{count_notes(self.notes)}>"
        )

    def _section(self) -> Section:
        from edgecompile.report.page import Section

        figures = (
            ("size", format_bytes(self.size_bytes)),
            ("programs", f"{len(self.plan.buckets)}"),
            ("cases verified", f"{self.cases}"),
            ("build time", format_duration(sum(self.seconds.values()))),
        )
        return Section(
            str(self.path), figures=figures, notes=self.notes, parts=self.plan._section().parts
        )


def build(
    model: Model,
    *,
    lengths: Lengths | None = None,
    texts: Texts | None = None,
    tokenizer: PathLike | None = None,
    stats: PathLike | Iterable[PathLike] | None = None,
    target: PathLike = "cpu-x86-64",
    output: PathLike | None = None,
    batch: int | tuple[int, int] = 1,
    max_length: int | None = None,
    precision: str | None = None,
    plan: Plan | PathLike | None = None,
    quick: bool = False,
    example_inputs: Any = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    load_options: LoadOptions | None = None,
    plan_options: PlanOptions | None = None,
    build_options: BuildOptions | None = None,
    work_dir: PathLike | None = None,
    force: bool = False,
    progress: Callback | None = None,
) -> Bundle:
    """Compiles a model for the lengths of its traffic, verifies the result, and packs it.

    The options are those of ``edgecompile build``, with the same defaults. If anything fails, nothing
    is written under the bundle's name.

    Args:
        model: the model:

            - the path of a folder in Hugging Face layout, or of a ``.gguf``, ``.onnx`` or ``.pt2`` file;
            - a factory, ``"file.py:function"`` or ``"package.module:function"``;
            - an ``nn.Module`` on the CPU, with ``example_inputs`` and ``axes``; it is run in eval mode
              and left as it was;
            - a ``torch.export.ExportedProgram``, whose dynamic dimensions are the axes;
            - what a factory returns, such as a :class:`edgecompile.ModelSpec`.

        lengths: lengths of real inputs in elements of the length axis (tokens, frames): one for each
            run (any iterable, or an integer array of shape [runs]), a histogram {length: count},
            pairs (batch, length), sizes of two other axes ``{"axes": ["length", "width"],
            "sizes": [[9, 2], ...], "counts": [3, ...]}``, or the path of a file. Leave it out where only
            the batch varies.
        texts: typical texts, or a file with one on each line, in place of ``lengths``; they are
            tokenized, and the bundle is verified with them, too.
        tokenizer: path of the ``tokenizer.json`` for ``texts``; None: the model folder's.
        stats: paths of files in which devices counted lengths, in place of ``lengths``.
        target: a target's name or the path of its profile.
        output: the bundle's path; ``.ecb`` is appended if it is missing. None: the model's name in
            the current folder.
        batch: the batch size, or (smallest, largest).
        max_length: the longest length to serve; None: the model's limit, or the longest seen.
        precision: the data type of the linear layers' weights on a CPU (``"fp32"``, ``"bf16"``,
            ``"int8"``, of language models ``"int4"``, or ``"auto"``: the fastest within ``BuildOptions.max_error``
            or ``max_perplexity_ratio``, or ``"checkpoint"``: a quantized checkpoint's own numbers); of a GPU's
            arithmetic (``"fp32"``, ``"fp16"``, ``"int8"``; with Triton ``"bf16"`` and ``"fp8"``, too). None: on CPUs
            fp32, or ``"checkpoint"`` for such a checkpoint; fp16 on GPUs.
        plan: the buckets to build, of :func:`edgecompile.plan` or its file; None: plan here.
        quick: one program for all lengths, dynamic if the model can be, without measurements.
        example_inputs: example inputs of an ``nn.Module``: tensors by the names of ``forward``'s
            arguments, or a sequence in their order; the module must work with them.
        axes: the varying dimensions of an ``nn.Module``: for each input those that vary, as
            dimension → axis name; ``{"x": {0: "batch", 1: "length"}}``.
        load_options: options for loading the model: task, pooling and the like.
        plan_options: limits of the plan and the costs that it is made by.
        build_options: options for compiling, running and packing programs.
        work_dir: folder for intermediate files, which a later build uses again; None: a temporary
            one. A model in memory is exported each time, as nothing tells whether it changed.
        force: permission to replace a bundle of the same name.
        progress: called with a :class:`~edgecompile.ProgressEvent` for everything that happens, from
            this thread; ``print`` will do. An exception that it raises ends the build.

    Raises:
        UsageError: an argument has the wrong type, contradicts another, or is missing.
        LengthsError: the lengths can't be read, or don't fit the model.
        TargetError, ModelError, ExportError, PlanError, ToolchainError, CompileError,
        MissingKernelError, AuditError, VerificationError, BundleWriteError: see docs/errors.md;
            all are :class:`edgecompile.errors.EdgecompileError`.

    Example:
        >>> bundle = edgecompile.build("./minilm", texts="queries.txt", max_length=256)
        >>> bundle
        <Bundle minilm.ecb: 91.9 MB, 1 program, verified in 40 cases>
        >>> with bundle.open() as model:
        ...     outputs = model.run({"input_ids": ids, "attention_mask": mask})
    """
    from edgecompile.api.request import plan_request, requested
    from edgecompile.pipeline.build import build as run_build

    sources = find_sources(model, lengths, texts, tokenizer, stats)
    subject = read_model_argument(model, example_inputs, axes, load_options, batch=batch)
    options = plan_request(
        max_length, precision, plan_options, build_options, plan=read_plan(plan), quick=quick
    )
    listener = listen(progress)
    with requested(
        subject,
        sources,
        options,
        progress=listener,
        target=target,
        work_dir=work_dir,
        output=output,
        force=force,
    ) as request:
        return Bundle(run_build(request, listener))
