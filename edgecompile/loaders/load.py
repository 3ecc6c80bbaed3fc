"""load_model(): a model from a folder, a GGUF file, a factory, a saved program or an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError, UsageError
from edgecompile.loaders.kinds import check_form, find_gguf, is_policy_folder, split_factory
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import FOR_GENERATION, FOR_ONNX, LoadOptions
from edgecompile.models.specs import batch_problem
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM


def load_model(
    spec: str | Path | object, options: LoadOptions | None = None, **changes: Any
) -> LoadedModel:
    """Loads a model from the user's specification; nothing is ever fetched.

    Args:
        spec: a folder in Hugging Face layout, a GGUF file, ``file.py:factory``, ``package.module:factory``, a
            ``.pt2`` or ``.onnx`` file, a ``torch.export.ExportedProgram``, or what a factory returns
            (:mod:`edgecompile.loaders.factories`).
        options: how; None: the defaults.
        changes: fields of :class:`LoadOptions` by name, over those of ``options``.

    Raises:
        ModelError: there is no such model, or it can't be loaded; says why and what helps.
        MissingDependencyError: a package that this form of model needs isn't installed.
    """
    options = replace(options or LoadOptions(), **changes)
    if isinstance(spec, LoadedModel):
        return spec
    loaded = _load(spec, options)
    if loaded.tokenizer is not None and not loaded.tokenizer.is_file():
        # Only the last stage of a build reads it.
        raise ModelError(f"{loaded.name}: there is no tokenizer '{loaded.tokenizer}'")
    if loaded.generation is None:
        names = [f"`{name}`" for name in FOR_GENERATION if getattr(options, name) is not None]
        names += [f'`task="{options.task}"`'] if options.task in (CAUSAL_LM, SEQ2SEQ_LM) else []
        if names:
            raise ModelError(
                f"{', '.join(names)}: for language models that generate, which {loaded.name} isn't",
                hint="leave it out; `max_length` bounds the lengths of other models",
            )
        problem = batch_problem(loaded.axes, options.batch)
        if problem:
            raise ModelError(
                f"{loaded.name}: {problem}",
                hint='export it with dynamic_shapes={"x": {0: torch.export.Dim("batch")}}',
            )
    from edgecompile.loaders.input_specs import with_one_size

    return with_one_size(loaded)


def check_model(spec: str | Path | object, options: LoadOptions) -> None:
    """Refuses what is no model, or doesn't go with the options, before anything is loaded.

    Raises:
        ModelError: see :func:`edgecompile.loaders.kinds.check_form`.
        UsageError: options are for folders, and it is none.
    """
    named, folder, onnx = "a model in memory", False, False
    if isinstance(spec, (str, Path)):
        check_form(spec)
        path = Path(spec).expanduser()
        named, onnx = f"'{spec}'", path.suffix.lower() == ".onnx"
        folder = not is_policy_folder(path) and (path.is_dir() or find_gguf(path) is not None)
    arguments = [name for name in options.to_json() if name not in FOR_GENERATION]
    for_onnx = [name for name in arguments if name in FOR_ONNX]
    if for_onnx and not onnx:
        raise UsageError(
            ", ".join(f"`{name}`" for name in for_onnx) + f": for ONNX files, and {named} is none",
            hint="leave it out; a factory's result has `axes` and `state` of its own",
        )
    arguments = [name for name in arguments if name not in FOR_ONNX]
    generates = arguments == ["task"] and options.task in (CAUSAL_LM, SEQ2SEQ_LM)
    if arguments and not folder and not generates:
        raise UsageError(
            ", ".join(f"`{name}`" for name in arguments)
            + f": for folders in Hugging Face layout, which {named} isn't",
            hint="leave it out; what another model computes is up to its code",
        )


def _load(spec: str | Path | object, options: LoadOptions) -> LoadedModel:
    check_model(spec, options)
    if not isinstance(spec, (str, Path)):
        from edgecompile.loaders.factories import load_object

        return load_object(spec, options)
    text = str(spec)
    path = Path(text).expanduser()
    gguf = find_gguf(path)
    if gguf is not None:
        from edgecompile.loaders.checkpoints.gguf import load_gguf

        return load_gguf(gguf, options)
    if is_policy_folder(path):
        from edgecompile.loaders.policies.folder import load_policy

        return load_policy(path, options)
    if path.is_dir():
        from edgecompile.loaders.folders.folder import load_folder

        return load_folder(path, options)
    if path.is_file():
        if path.suffix.lower() == ".onnx":
            from edgecompile.loaders.onnx_models import load_onnx

            return load_onnx(path, options)
        from edgecompile.loaders.saved_programs import load_saved_program

        return load_saved_program(path, options)
    factory = split_factory(text)
    assert factory is not None  # it has a form
    from edgecompile.loaders.factories import load_factory

    return load_factory(*factory, options)
