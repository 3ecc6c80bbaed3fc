"""explain(): why a model is refused or slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile.api import checks
from edgecompile.api.models import Subject, find_subject, kept_state, model_folder
from edgecompile.api.options import LoadOptions, read_batch, read_target
from edgecompile.api.progress import listen
from edgecompile.api.shown import Shown, write_page
from edgecompile.api.traffic import find_sources
from edgecompile.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgecompile.api.arguments import Callback, Lengths, Model, PathLike, Texts
    from edgecompile.explanation.report import Explanation as Findings
    from edgecompile.explanation.report import Finding
    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.lengths.distribution import LengthDistribution
    from edgecompile.progress import Progress
    from edgecompile.report.page import Section

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation(Shown):
    """What became of a model, and why.

    Attributes:
        details: everything that was found, with the fields that docs/explain.md describes.
    """

    details: Findings
    _request: ExplainRequest

    @property
    def verdict(self) -> str:
        """A word, such as ``"dynamic"``, ``"padded"`` or ``"refused"``."""
        return self.details.verdict

    @property
    def summary(self) -> str:
        """The verdict as a sentence."""
        return self.details.summary

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes, the gravest first: each has a kind, a text, a cure and the line of code."""
        return self.details.findings

    def __repr__(self) -> str:
        causes = len(self.findings)
        return (
            f"<Explanation of {self.details.model} for {self.details.target}: {self.summary}, "
            f"{causes} finding{'' if causes == 1 else 's'}>"
        )

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile explain --json`` prints."""
        return self.details.to_json()

    def write_report(self, path: PathLike) -> Path:
        """Writes everything as an HTML page with plots; gives its path.

        Raises:
            BundleWriteError: it can't be written.
        """
        import torch

        from edgecompile import __version__
        from edgecompile.explanation.section import explain_page
        from edgecompile.explanation.work import limits_of

        target = self._request.target
        facts = [("edgecompile", __version__), ("torch", str(torch.__version__))]
        facts.append(("target", f"{target.name}: {target.description}"))
        limits = limits_of(target, self.details.precision)
        return write_page(Path(path), explain_page(self.details, limits, facts=facts))

    def _section(self) -> Section:
        from edgecompile.explanation.view import explanation_tables
        from edgecompile.report.page import Section, Table

        rows = tuple(
            (item.kind, item.text, item.cure or "–", "" if item.place is None else item.place.short)
            for item in self.findings
        )
        parts = (
            [Table("Findings", ("kind", "finding", "cure", "line"), rows, words=4)] if rows else []
        )
        parts += [
            Table(table.title, table.columns, table.rows, words=table.words, caption=table.caption)
            for table in explanation_tables(self.details)
        ]
        title = f"{self.details.model} {self.summary}"
        return Section(title, notes=self.details.notes, parts=tuple(parts))


def explain(
    model: Model,
    *,
    lengths: Lengths | None = None,
    texts: Texts | None = None,
    tokenizer: PathLike | None = None,
    stats: PathLike | Iterable[PathLike] | None = None,
    target: PathLike = "cpu-x86-64",
    batch: int | tuple[int, int] = 1,
    max_length: int | None = None,
    precision: str = "fp32",
    compare: tuple[int, int] | None = None,
    every: bool = False,
    code: bool = True,
    example_inputs: Any = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    load_options: LoadOptions | None = None,
    progress: Callback | None = None,
) -> Explanation:
    """Finds out why a model is refused or slow, and what can be done about it.

    Tries every export method and reports the lines of the model's code that make each one fail, its
    kernels and those that are missing, and work, bytes and memory for each length. Continues after
    failures.

    Args:
        model, example_inputs, axes, load_options: see :func:`edgecompile.build`.
        lengths, texts, tokenizer, stats: the traffic, see :func:`edgecompile.build`; the figures
            are then for the padded buckets that cost it least.
        target: a target's name or the path of its profile.
        batch: a batch size, or (smallest, largest).
        max_length: the longest length to look at; None: the model's limit, 512 at most.
        precision: of the linear layers' weights on a CPU: ``"fp32"``, ``"bf16"`` or ``"int8"``.
        compare: two lengths whose graphs to compare; None: chosen.
        every: try every way to export, and look for graph breaks, though one was accepted.
        code: generate code; False is quicker, but only our own kernels are then known.
        progress: called with a :class:`~edgecompile.ProgressEvent` for everything that happens.

    Raises:
        UsageError: an argument has the wrong type, or contradicts another.
        TargetError: there is no such target.
        LengthsError: the lengths can't be read.
        ModelError: the model can't be loaded, for another cause than its own code.

    Example:
        >>> explanation = edgecompile.explain("./minilm")
        >>> explanation.verdict
        'dynamic'
    """
    sources = find_sources(model_folder(model), lengths, texts, tokenizer, stats)
    subject = find_subject(model, example_inputs, axes, load_options, varying=sources.given)
    sizes = read_batch(batch)
    checks.choice("precision", precision, ("fp32", "bf16", "int8"))
    listener = listen(progress)

    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.precision import Precision
    from edgecompile.targets.profile import load_target

    profile = load_target(read_target(target))
    if profile.gpu is not None and precision != "fp32":
        raise UsageError(
            f"precision={precision!r} is for CPUs; {profile.name} has a GPU", hint="leave it out"
        )
    request = ExplainRequest(
        target=profile,
        precision=Precision(precision),
        max_length=checks.whole("max_length", max_length),
        compare=_pair(compare),
        code=checks.flag("code", code),
        every=checks.flag("every", every),
    )
    traffic = None
    if sources.given:
        with sources.read(max_length) as found:
            traffic = found.lengths
    with kept_state(subject.model):
        return Explanation(_explain(subject, sizes, request, traffic, listener), request)


def _explain(
    subject: Subject,
    batch: tuple[int, int],
    request: ExplainRequest,
    traffic: LengthDistribution | None,
    progress: Progress,
) -> Findings:
    from edgecompile.explanation.explain import explain_load_failure, explain_model
    from edgecompile.loaders.load import load_model

    try:
        with progress.step("load the model"):
            loaded = load_model(subject.model, subject.options, batch=batch)
    except ModelError as error:
        name = subject.name if subject.in_memory else subject.model
        return explain_load_failure(name, request, error)
    if traffic is not None:
        from edgecompile.explanation.buckets import plan_roughly

        buckets = plan_roughly(traffic, loaded, request.target, request.max_length)
        request = replace(request, buckets=buckets)
    return explain_model(loaded, request, progress)


def _pair(compare: Any) -> tuple[int, int] | None:
    if compare is None:
        return None
    pair = tuple(compare) if isinstance(compare, (tuple, list)) else ()
    if (
        len(pair) != 2
        or any(type(size) is not int or size < 1 for size in pair)
        or len(set(pair)) < 2
    ):
        raise UsageError(f"compare is {compare!r}", hint="give two different lengths from 1 up")
    return min(pair), max(pair)
