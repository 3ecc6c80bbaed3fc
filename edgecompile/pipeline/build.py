"""build(): from a model and its lengths to a verified bundle.

Every stage leaves its file in the work folder, and each can be run alone from the files of those
before it: ``lengths.json``, ``plan.json``, ``exported/``, ``artifacts/``. Where nothing has changed
since the last build there, no framework is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgecompile.errors import VerificationError
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.stamp import build_key, find_built, write_stamp
from edgecompile.progress import NULL_PROGRESS, Progress

if TYPE_CHECKING:
    from edgecompile.bundle.staging import Staging
    from edgecompile.models.loaded import LoadedModel
    from edgecompile.pipeline.run import Run


def build(request: BuildRequest, progress: Progress = NULL_PROGRESS) -> BuildResult:
    """Builds, verifies and writes a bundle, if there isn't one already that was built of the same.

    Raises:
        EdgecompileError: a subclass for each cause; nothing stands under the final name then.
    """
    profile = request.check_target()
    work, key = request.work_dir, None
    if work is not None and not request.plan.measure_again:
        with progress.step("look for changes"):
            key = build_key(request, profile)
            earlier = None if key is None else find_built(work, key, request.bundle)
        if earlier is not None:
            return earlier

    from edgecompile.pipeline.preflight import begin_build
    from edgecompile.pipeline.run import Run, work_folder
    from edgecompile.pipeline.stages import load, with_prefix

    run = Run(request, profile, progress)
    with begin_build(run) as staging:
        model = load(run)
        if request.plan.texts_at_once is not None:
            from edgecompile.loaders.generators.texts_step import texts_model  # needs transformers

            # What can't be is refused before any work.
            texts_model(model, request.plan.texts_at_once)
        model = with_prefix(model, request.plan.prefix)
        with work_folder(work, model.source) as folder:
            if model.encoder is not None:
                from edgecompile.pipeline.seq2seq import build_seq2seq

                result = build_seq2seq(run, model, staging, folder)
            else:
                result = _build_whole(run, model, staging, folder)
    if work is not None and key is not None:
        write_stamp(work, key, result)
    return result


def _build_whole(run: Run, model: LoadedModel, staging: Staging, work: Path) -> BuildResult:
    from edgecompile.models.samples import text_samples
    from edgecompile.pipeline import stages
    from edgecompile.pipeline.ahead import compiling_ahead
    from edgecompile.pipeline.backend import Job
    from edgecompile.pipeline.backends import find_backends
    from edgecompile.quantization.files import refuse_pairs

    backends = find_backends(run.options, run.profile)
    with compiling_ahead(call for backend in backends for call in backend.ahead(run)):
        subject = stages.find_subject(run, model, work)
        resolved = stages.choose_precision(run, subject)
        planned = stages.make_plan(run, subject, resolved.precision)
        if run.profile.gpu is not None:
            samples = text_samples(model, run.options.texts, planned.plan.max_length)
            resolved = replace(resolved, samples=samples)
        job = Job(run, subject, planned, resolved, work)
        for backend in backends:
            job = backend.plan(job)
        for backend in backends:
            job = backend.compile(job)
        paired = job.resolved.precision
        try:
            return stages.pack(run, job.contents(), staging, locate=not paired.pairs)
        except VerificationError as error:
            # Pairs were chosen for a few inputs, and nobody asked for them.
            if not (paired.pairs and error.differs):
                raise
            # The count, and the first case.
            refusal = " ".join(line.strip() for line in error.message.splitlines()[:2])
        staging.clear()
        job = backends[-1].compile(job.without_pairs(refusal))
        refuse_pairs(work, paired)
        return stages.pack(run, job.contents(), staging)
