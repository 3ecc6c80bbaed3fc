"""explain(): why a model is refused or slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile import checks
from edgecompile.api.models import ModelArgument, kept_state, read_model_argument
from edgecompile.api.notebook import NotebookResult
from edgecompile.api.options import LoadOptions, read_target
from edgecompile.api.progress import listen
from edgecompile.errors import ModelError, UsageError
from edgecompile.files import write_text
from edgecompile.toolchain.torch_versions import check_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgecompile.api.arguments import Callback, Model, PathLike
    from edgecompile.explanation.report import Cause
    from edgecompile.explanation.report import Explanation as Findings
    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.progress import Progress
    from edgecompile.report.page import Section
    from edgecompile.targets.profile import TargetProfile


@dataclass(frozen=True)
class Explanation(NotebookResult):
    """The outcome for a model, with its causes.

    Attributes:
        details: everything that was found, with the fields that docs/explain.md describes.
        target: the profile that it was looked at for.
    """

    details: Findings
    target: TargetProfile

    @property
    def verdict(self) -> str:
        """A word, such as ``"dynamic"``, ``"padded"`` or ``"refused"``."""
        return self.details.verdict

    @property
    def summary(self) -> str:
        """The verdict as a sentence."""
        return self.details.summary

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes, the gravest first: each has a kind, a text, a cure and the line of code."""
        return self.details.causes

    def __repr__(self) -> str:
        causes = len(self.causes)
        return (
            f"<Explanation of {self.details.model} for {self.details.target}: {self.summary}, "
            f"{causes} cause{'' if causes == 1 else 's'}>"
        )

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile explain --json`` prints."""
        return self.details.to_json()

    def write_report(self, path: PathLike) -> Path:
        """Writes everything as an HTML page with plots; gives its path.

        Raises:
            OSError: it can't be written.
        """
        import torch

        from edgecompile import __version__
        from edgecompile.explanation.view import explain_page

        facts = [("edgecompile", __version__), ("torch", str(torch.__version__))]
        facts.append(("target", f"{self.target.name}: {self.target.description}"))
        return write_text(path, explain_page(self.details, facts=facts))

    def _section(self) -> Section:
        from edgecompile.explanation.view import explanation_tables, summary_section

        section = summary_section(self.details)
        tables = explanation_tables(self.details)
        title = f"{self.details.model} for {self.details.target}"
        return replace(section, title=title, parts=(*section.parts, *tables))


def explain(
    model: Model,
    *,
    target: PathLike = "cpu-x86-64",
    batch: int | tuple[int, int] = 1,
    max_length: int | None = None,
    precision: str = "fp32",
    every: bool = False,
    code: bool = True,
    example_inputs: Any = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    load_options: LoadOptions | None = None,
    progress: Callback | None = None,
) -> Explanation:
    """Finds out why a model is refused or slow, and what can be done about it.

    Tries the export strategies, and reports the lines of the model's code that make each one fail.
    Reports the model's kernels and the missing ones, the effect of padding on its outputs, and the
    FLOPs and bytes of a run by length and by module. Continues after failures.

    Args:
        model, example_inputs, axes, load_options: see :func:`edgecompile.build`.
        target: a target's name or the path of its profile.
        batch: a batch size, or (smallest, largest).
        max_length: the longest length to look at; None: the model's limit, 512 at most.
        precision: the data type of the linear layers' weights on a CPU: ``"fp32"``, ``"bf16"`` or
            ``"int8"``.
        every: try every export strategy, and look for graph breaks, even if one was accepted.
        code: generate code; False is quicker, but only our own kernels are then known.
        progress: called with a :class:`~edgecompile.ProgressEvent` for everything that happens.

    Raises:
        UsageError: an argument has the wrong type, or contradicts another.
        TargetError: there is no such target.
        ModelError: the model can't be loaded, for another cause than its own code.
        MissingDependencyError: torch is of a version that isn't supported.

    Example:
        >>> explanation = edgecompile.explain("./minilm")
        >>> explanation.verdict
        'dynamic'
    """
    check_torch()
    subject = read_model_argument(model, example_inputs, axes, load_options, batch=batch)
    checks.choice("precision", precision, ("fp32", "bf16", "int8"))
    listener = listen(progress)

    from edgecompile.explanation.request import ExplainRequest
    from edgecompile.precision import Precision
    from edgecompile.targets.profile import load_target

    profile = load_target(read_target(target))
    if profile.gpu is not None and precision != "fp32":
        raise UsageError(
            f"`precision` {precision} is for CPUs; {profile.name} has a GPU", hint="leave it out"
        )
    subject.check()
    request = ExplainRequest(
        target=profile,
        precision=Precision(precision),
        max_length=checks.whole("max_length", max_length),
        code=checks.flag("code", code),
        every=checks.flag("every", every),
    )
    with kept_state(subject.model):
        return Explanation(_explain(subject, request, listener), profile)


def _explain(subject: ModelArgument, request: ExplainRequest, progress: Progress) -> Findings:
    from edgecompile.explanation.explain import explain_load_failure, explain_model
    from edgecompile.loaders.load import load_model

    try:
        with progress.step("load the model"):
            loaded = load_model(subject.model, subject.options)
    except ModelError as error:
        name = subject.name if subject.in_memory else subject.model
        return explain_load_failure(name, request, error)
    return explain_model(loaded, request, progress)
