"""verify(): a bundle against the model's eager outputs, or against its golden vectors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecompile import checks
from edgecompile.api.models import ModelArgument, kept_state, read_model_argument
from edgecompile.api.notebook import NotebookResult
from edgecompile.api.progress import listen
from edgecompile.errors import UsageError
from edgecompile.files import write_text
from edgecompile.models.options import LoadOptions
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgecompile.api.arguments import Callback, Model, PathLike
    from edgecompile.buckets.costs.grid import Mode
    from edgecompile.buckets.ranges import Bucket
    from edgecompile.bundle.cases import Case
    from edgecompile.bundle.verdict import CaseResult, VerifyReport
    from edgecompile.models.loaded import LoadedModel
    from edgecompile.report.page import Section
    from edgecompile.runtime.format.manifest.schema import Manifest


@dataclass(frozen=True)
class Verification(NotebookResult):
    """The comparison of a bundle with eager, or with its golden vectors.

    Attributes:
        path: the bundle.
        report: every comparison, by variant, bucket and case.
        buckets: the bundle's; results name them by index.
        manifest: the manifest of the bundle.
    """

    path: Path
    report: VerifyReport
    buckets: tuple[Bucket, ...]
    manifest: Manifest

    @property
    def ok(self) -> bool:
        """Whether every comparison was within the tolerance."""
        return self.report.ok

    def __repr__(self) -> str:
        passed, total = sum(r.ok for r in self.report.results), len(self.report.results)
        verdict = "agrees" if self.ok else "DIFFERS"
        return f"<Verification of {self.path.name}: {verdict}, {passed} of {total} cases>"

    def to_json(self) -> dict[str, Any]:
        """The document that ``edgecompile verify --json`` prints."""
        return {"bundle": str(self.path), **self.report.to_json()}

    def write_report(self, path: PathLike) -> Path:
        """Writes the comparisons as an HTML page; gives its path.

        Raises:
            OSError: it can't be written.
        """
        from edgecompile.report.page import render_page

        facts = sorted(item for item in self.manifest.built_by.items() if item[1])
        return write_text(path, render_page(self.manifest.name, [self._section()], facts=facts))

    def _section(self) -> Section:
        from edgecompile.report.pages import verify_section

        return verify_section(self.report, self.buckets)


def verify(
    bundle: PathLike,
    model: Model | None = None,
    *,
    example_inputs: Any = None,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    seed: int = 0,
    check: bool = True,
    progress: Callback | None = None,
) -> Verification:
    """Runs a bundle through its own runtime, with every variant that this machine can run.

    All files are hashed first. The process that runs the bundle uses the runtime inside the bundle
    and loads torch only for a bundle of ``backend="torch"``; the model runs in this process.

    Args:
        bundle: its path, or the result of :func:`edgecompile.build`.
        model: the model to run eagerly and compare on fresh inputs, see :func:`edgecompile.build`;
            None: the bundle's golden vectors. With narrow weights of a language model, the next tokens
            are judged as well, as by :func:`edgecompile.build`.
        example_inputs, axes: example inputs and varying dimensions of an ``nn.Module``.
        seed: the seed of the fresh inputs.
        check: raise an error where the bundle disagrees; False: the result alone tells.
        progress: called with a :class:`~edgecompile.ProgressEvent` for everything that happens.

    Raises:
        UsageError: an argument has the wrong type, or contradicts another.
        BundleError: it is missing, malformed or damaged.
        ModelError: the model can't be loaded, or fails.
        VerificationError: an output differs by more than the tolerance; the model isn't this
            bundle's; or nothing could be run.

    Example:
        >>> edgecompile.verify("minilm.ecb", "./all-MiniLM-L6-v2", seed=7)
        <Verification of minilm.ecb: agrees, 24 of 24 cases>
    """
    path = checks.given_path("bundle", bundle, "the path of a bundle")
    if model is None and (example_inputs is not None or axes is not None):
        raise UsageError("`example_inputs` and `axes` go with `model`", hint="give the model too")
    checks.seed("seed", seed)
    checks.flag("check", check)
    listener = listen(progress)
    if model is not None:
        # Whether a model that can generate does, only the bundle says.
        generates = example_inputs is None and hasattr(model, "generation_config")
        task = LoadOptions(task=CAUSAL_LM) if generates else None
        read_model_argument(model, example_inputs, axes, task).check()

    from edgecompile.bundle.verdict import check_report
    from edgecompile.bundle.verify import verify_bundle
    from edgecompile.precision import min_cosine
    from edgecompile.runtime.format.files.folder import BundleFolder

    with closing(BundleFolder(str(path))) as folder:
        manifest = folder.manifest
        # The bundle says how its model was loaded: for which task, with which pooling.
        options = LoadOptions.from_json(manifest.plan.get("load"))
        subject = None
        if model is not None:
            subject = read_model_argument(model, example_inputs, axes, options)
            subject.check()
        with listener.step("hash the files") as step:
            folder.check_hashes()
            step.note(f"{len(manifest.files)} files as recorded")
    buckets = _buckets(manifest)
    judged: tuple[CaseResult, str] | None = None
    with listener.step("read the golden vectors" if subject is None else "run eager") as step:
        if subject is None:
            cases, texts = _golden_cases(path, manifest), _golden_texts(path, manifest)
        else:
            with kept_state(subject.model):
                loaded = _load_model(subject, manifest, buckets)
                bound = _quality_bound(manifest, loaded)
                if bound is None:
                    cases, texts = _eager_cases(loaded, manifest, buckets, seed)
                else:  # its answers are another model's than the rounded one's, which made the golden vectors
                    cases, texts = _golden_cases(path, manifest), _golden_texts(path, manifest)
                    judged = _judge(path, manifest, loaded, bound, seed)
        step.note(f"{len(cases)} cases")
    with listener.step("run the bundle"):
        report = verify_bundle(
            path,
            cases,
            [variant.name for variant in manifest.variants],
            manifest.tolerance,
            min_cosine=None if _judged_weights(manifest) else min_cosine(manifest.precision),
            texts=texts,
        )
    if judged is not None:
        result, note = judged
        report = replace(report, results=(*report.results, result), notes=(*report.notes, note))
    if check:
        check_report(report)
    return Verification(path, report, buckets, manifest)


def _buckets(manifest: Manifest) -> tuple[Bucket, ...]:
    """The manifest's buckets, the length axis first."""
    from edgecompile.buckets.ranges import AxisRange, Bucket

    buckets = []
    for spec in manifest.buckets:
        axes = {
            name: AxisRange(extent.lo, extent.hi, extent.hint or extent.hi, extent.step)
            for name, extent in spec.axes.items()
        }
        order = sorted(axes, key=lambda name: name != manifest.length_axis)
        mode: Mode = "pad" if spec.mode == "pad" else "exact"
        buckets.append(Bucket(mode, tuple((name, axes[name]) for name in order)))
    return tuple(buckets)


def _golden_cases(bundle: Path, manifest: Manifest) -> list[Case]:
    from edgecompile.bundle.cases import Case
    from edgecompile.runtime.format.golden.cases import read_case

    cases = []
    for item in manifest.golden:
        path = bundle / item.file
        with path.open("rb") as stream:
            golden = read_case(stream.fileno(), str(path), manifest)
        case = Case(item.bucket, item.case, golden.inputs, golden.outputs, margins=golden.margins)
        cases.append(case)
    return cases


def _golden_texts(bundle: Path, manifest: Manifest) -> bytes | None:
    from edgecompile.runtime.generation.golden import FILE

    return (bundle / FILE).read_bytes() if FILE in manifest.files else None


def _load_model(
    subject: ModelArgument, manifest: Manifest, buckets: tuple[Bucket, ...]
) -> LoadedModel:
    """The model, for the bundle's sizes."""
    from edgecompile.loaders.load import load_model

    batch = manifest.axes.get("batch")
    sizes = None if batch is None else (batch.lo, batch.hi)
    model = load_model(subject.model, subject.options, batch=sizes)
    _check_signature(manifest, model)
    if model.generation is None:
        return model
    model = model.with_longest(max(bucket.hi for bucket in buckets))
    rows = manifest.axes.get("source")
    return model if rows is None else model.with_sources(rows.lo, rows.hi)


def _judged_weights(manifest: Manifest) -> dict[str, Any]:
    """The figures of a language model's narrow weights, by texts; {}: there are none, or those of its caches alone."""
    figures = manifest.plan.get("quality")
    if not isinstance(figures, dict) or figures.get("caches_alone") is True:
        return {}
    return figures


def _quality_bound(manifest: Manifest, model: LoadedModel) -> float | None:
    """The bound that a language model's narrow weights were judged by; None: they weren't."""
    if model.generation is None or manifest.precision == "fp32":
        return None
    bound = _judged_weights(manifest).get("bound")
    if not isinstance(bound, int | float) or bound <= 1 or model.generation.logits is None:
        return None
    return float(bound)


def _judge(
    bundle: Path, manifest: Manifest, model: LoadedModel, bound: float, seed: int
) -> tuple[CaseResult, str]:
    """The bundle's next tokens beside the original's, as a result like others, and the rule in words."""
    from edgecompile.bundle.verdict import CaseResult
    from edgecompile.quantization.bundle_quality import bundle_quality
    from edgecompile.quantization.quality import max_mean_kl

    variant, quality = bundle_quality(bundle, model, seed=seed)
    most, precision = max_mean_kl(bound), manifest.precision
    within = quality.within(bound)
    result = CaseResult(
        variant,
        0,
        "next tokens",
        quality.mean_kl,
        1.0,
        within,
        error="" if within else "its next tokens are too far from the original's",
        limit=most,
    )
    return result, (
        f"The model isn't rounded to {precision} as the bundle's weights are. So it is judged as by a build: "
        f"{quality.describe(precision)}. Allowed is a mean KL of {most:.2g}. The other cases are the golden "
        "vectors, which the rounded model gave."
    )


def _eager_cases(
    model: LoadedModel, manifest: Manifest, buckets: tuple[Bucket, ...], seed: int
) -> tuple[list[Case], bytes | None]:
    from edgecompile.bundle.cases import length_cases, make_cases
    from edgecompile.bundle.margins import allow_rounding, widest_share
    from edgecompile.bundle.steps import step_cases

    if model.generation is None:
        rtol = manifest.tolerance.rtol
        cases = list(make_cases(model, buckets, seed=seed, rtol=rtol))
        cases += step_cases(model, buckets, seed=seed, rtol=rtol)
        if manifest.precision == "fp32":
            cases += length_cases(model, buckets, seed=seed)
        return allow_rounding(cases), None
    from edgecompile.bundle.generation import golden_texts

    cases = allow_rounding(list(make_cases(model, buckets, seed=seed)))
    margin = widest_share(cases, model.outputs[0].name)
    return cases, golden_texts(model, seed=seed, margin=margin)


def _check_signature(manifest: Manifest, model: LoadedModel) -> None:
    """Refuses a model whose inputs or outputs have other names than the bundle's."""
    from edgecompile.errors import VerificationError

    for kind, ours, theirs in (
        ("inputs", manifest.inputs, model.inputs),
        ("outputs", manifest.outputs, model.outputs),
    ):
        names = [spec.name for spec in ours], [spec.name for spec in theirs]
        if names[0] != names[1]:
            raise VerificationError(
                f"{model.name} isn't the model of this bundle: its {kind} are "
                f"{', '.join(names[1])}, those of the bundle {', '.join(names[0])}"
            )
