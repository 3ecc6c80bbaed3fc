"""load_model(): a model from a folder, a factory or a saved program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.kinds import check_form, split_factory
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.schema import CAUSAL_LM


def load_model(
    spec: str | Path | object, options: LoadOptions | None = None, **changes: Any
) -> LoadedModel:
    """Loads a model from what the user wrote; nothing is ever fetched.

    Args:
        spec: a folder in Hugging Face layout, ``file.py:factory``, ``package.module:factory``, a
            ``.pt2`` file, a ``torch.export.ExportedProgram``, or what a factory returns
            (:mod:`edgecompile.loaders.factories`).
        options: how; None: the defaults.
        changes: fields of :class:`LoadOptions` by name, over those of ``options``.

    Raises:
        ModelError: there is no such model, or it can't be loaded; says why and what helps.
        MissingDependencyError: a package that this form of model needs isn't installed.
    """
    options = replace(options or LoadOptions(), **changes)
    options.check()
    if isinstance(spec, LoadedModel):
        return spec
    loaded = _load(spec, options)
    if loaded.tokenizer is not None and not loaded.tokenizer.is_file():
        # Only the last stage of a build reads it.
        raise ModelError(f"{loaded.name}: there is no tokenizer '{loaded.tokenizer}'")
    if loaded.generation is None:
        given = ["--max-context"] if options.max_context is not None else []
        given += [f"--task {options.task}"] if options.task in (CAUSAL_LM, SEQ2SEQ_LM) else []
        if given:
            raise ModelError(
                f"{', '.join(given)}: for language models that generate, which {loaded.name} isn't",
                hint="leave it out; --max-length bounds the lengths of other models",
            )
    from edgecompile.loaders.input_specs import with_one_size

    return with_one_size(loaded, options.batch)


def check_model(spec: str | Path, options: LoadOptions) -> None:
    """Refuses what is no model, or doesn't go with the options, before anything is loaded.

    Raises:
        ModelError: see :func:`edgecompile.loaders.kinds.check_form` and :meth:`LoadOptions.check`.
    """
    options.check()
    check_form(spec)
    if not Path(str(spec)).expanduser().is_dir():
        _refuse_folder_options(str(spec), options)


def _load(spec: str | Path | object, options: LoadOptions) -> LoadedModel:
    if not isinstance(spec, (str, Path)):
        _refuse_folder_options(type(spec).__name__, options)
        from edgecompile.loaders.factories import load_object

        return load_object(spec, options)
    check_model(spec, options)
    text = str(spec)
    path = Path(text).expanduser()
    if path.is_dir():
        from edgecompile.loaders.folders.folder import load_folder

        return load_folder(path, options)
    if path.is_file():
        from edgecompile.loaders.saved_programs import load_saved_program

        return load_saved_program(path, options)
    factory = split_factory(text)
    assert factory is not None  # it has a form
    from edgecompile.loaders.factories import load_factory

    return load_factory(*factory, options)


def _refuse_folder_options(spec: str, options: LoadOptions) -> None:
    """A factory and a saved program say themselves what they compute."""
    given = [name for name in options.to_json() if name != "max_context"]
    if given and not (given == ["task"] and options.task in (CAUSAL_LM, SEQ2SEQ_LM)):
        options_given = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ModelError(
            f"'{spec}' is no folder: {options_given} is for folders in Hugging Face layout",
            hint="leave it out; what a factory's module does is up to its code",
        )
