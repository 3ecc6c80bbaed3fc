"""Models made by the user's own code: ``file.py:factory`` and ``package.module:factory``.

A factory is a function without arguments that returns a :class:`ModelSpec`, a dict with its
fields, or a tuple ``(module, inputs, axes)``::

    def make():
        return {
            "module": MyModel(),                      # a torch.nn.Module
            "inputs": {"x": torch.randn(1, 16, 8)},   # example tensors by forward's argument names
            "axes": {"x": {1: "length"}},             # which dimensions vary, by axis name
            "limits": {"length": (1, 512)},           # sizes that an axis may have
            "pad": {"x": 0.0},                        # what fills x behind its content
            "bounds": {"ids": (0, 999)},              # allowed values, checked before every run
        }

One that returns ``{"module": model, "task": "causal-lm"}`` (or ``"seq2seq-lm"``), or such a model
alone where that task is asked for, makes a generator of a transformers model; its inputs are those of
:mod:`edgecompile.loaders.generators.step`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from edgecompile.checks import describe
from edgecompile.errors import ModelError
from edgecompile.loaders.factory_specs import ModelSpec, build_model, find_problems
from edgecompile.loaders.kinds import names_file
from edgecompile.loaders.saved_programs import load_program_object
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import describe_error
from edgecompile.models.options import LoadOptions
from edgecompile.models.source_lines import user_lines
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM

_FORMS = (
    "a factory returns a dict with the keys module, inputs, axes and perhaps others, the same as "
    "an edgecompile.ModelSpec, or a tuple (module, inputs, axes): "
    'return {"module": Net(), "inputs": {"x": torch.randn(1, 16, 8)}, "axes": {"x": {1: "length"}}}'
)


def load_factory(where: str, factory: str, options: LoadOptions) -> LoadedModel:
    """Imports ``where`` (a file or a module's dotted name), calls ``factory`` in it.

    Raises:
        ModelError: there is no such file, module or function, the code raises, or what it
            returns can't be used; names the line of the user's code, and all problems at once.
    """
    spec = f"{where}:{factory}"
    module = _import_file(Path(where)) if names_file(where) else _import_module(where)
    made = _call(_find(module, factory, spec), spec)
    source = ModelSource("factory", spec, details={"module": type(made).__name__})
    return _load(made, spec, f"{spec} returned", factory, source, options)


def load_object(value: object, options: LoadOptions) -> LoadedModel:
    """A model from an ExportedProgram, or from a factory's result; see :class:`ModelSpec`.

    Raises:
        ModelError: see :func:`load_factory`.
    """
    source = ModelSource("object", type(value).__name__)
    if isinstance(value, torch.export.ExportedProgram):
        return load_program_object(value, source, "model", options)
    return _load(value, "the model", "the model is", "model", source, options)


def _load(
    value: object, subject: str, start: str, name: str, source: ModelSource, options: LoadOptions
) -> LoadedModel:
    """The model of a factory's result: ``subject`` and ``start`` begin errors about it."""
    generator = _generator(value, subject, name, source, options)
    if generator is not None:
        return generator
    return build_model(to_spec(value, start, options), source, name, options)


def _generator(
    value: object, subject: str, name: str, source: ModelSource, options: LoadOptions
) -> LoadedModel | None:
    """The generator of tokens, if the factory names one, else None.

    Raises:
        ModelError: it isn't a transformers model that can, or is asked for another task than it says.
    """
    module: Any = value
    task, rest = options.task, {}
    if isinstance(value, Mapping):
        module, task = value.get("module"), value.get("task", options.task)
        rest = {k: v for k, v in value.items() if k not in ("module", "task", "name", "tokenizer")}
        name = str(value.get("name", name))
    if options.task not in (None, task):
        raise ModelError(
            f'{subject} says the task {task!r}, and `task="{options.task}"` is asked for',
            hint="leave `task` out, or change what the factory says",
        )
    if task not in (CAUSAL_LM, SEQ2SEQ_LM):
        return None
    problems = [f"it says {key!r}, which generation settles" for key in rest]
    if not (isinstance(module, nn.Module) and hasattr(module, "generation_config")):
        problems.append(f"it is a {type(module).__name__}, not a transformers model that generates")
    tokenizer = value.get("tokenizer") if isinstance(value, Mapping) else None
    if not (tokenizer is None or isinstance(tokenizer, (str, os.PathLike))):
        problems.append(f"tokenizer is {describe(tokenizer)}, not a path")
    if problems:
        raise ModelError(
            f"{subject} can't be used for {task}: " + "; ".join(problems),
            hint=f'return {{"module": model, "task": "{task}"}}; keys beside: name, tokenizer',
        )
    from edgecompile.loaders.generators.makers import GeneratorMaker  # needs transformers

    tokenizer = None if tokenizer is None else Path(tokenizer)
    plain = module.eval().float()
    return GeneratorMaker(
        task, plain, options, name=name, source=source, tokenizer=tokenizer
    ).make()


def to_spec(value: object, subject: str, options: LoadOptions) -> ModelSpec:
    """Any of the forms that a factory may return as a :class:`ModelSpec`.

    Raises:
        ModelError: it is none of them; says what it is. Of a dict, all that is wrong with it.
    """
    if isinstance(value, ModelSpec):
        return value
    if isinstance(value, Mapping):
        return _spec_of_dict(value, subject, options)
    if isinstance(value, tuple) and len(value) in (2, 3):
        return ModelSpec(*value)
    if isinstance(value, nn.Module):
        raise ModelError(f"{subject} a module alone: example inputs are needed too", hint=_FORMS)
    size = f" of {len(value)}" if isinstance(value, tuple) else ""
    raise ModelError(f"{subject} a {type(value).__name__}{size}", hint=_FORMS)


def _spec_of_dict(value: Mapping[Any, Any], subject: str, options: LoadOptions) -> ModelSpec:
    names = [item.name for item in fields(ModelSpec)]
    problems, arguments = [], {key: item for key, item in value.items() if key in names}
    for key, item in value.items():
        if key not in names:
            close = get_close_matches(str(key), names, n=1)
            problems.append(
                f"it has the unknown key {key!r}" + (f": did you mean {close[0]}?" if close else "")
            )
            for name in close:  # the rest is looked at as if it had been written so
                arguments.setdefault(name, item)
    missing = [key for key in ("module", "inputs") if key not in arguments]
    problems += [f"it has no '{key}'" for key in missing]
    if problems and not missing:
        problems += find_problems(ModelSpec(**arguments), options)
    if problems:
        raise ModelError(
            f"{subject} a dict that can't be used: " + "; ".join(problems),
            hint="keys: " + ", ".join(names),
        )
    return ModelSpec(**arguments)


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser()
    name = f"edgecompile_factory_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ModelError(f"'{path}' isn't a Python file")
    module = importlib.util.module_from_spec(module_spec)
    # Registered before it runs: dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    try:
        with _on_path(path.resolve().parent):
            module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise ModelError(_readable(exc, f"'{path}' can't be imported")) from exc
    return module


def _import_module(name: str) -> ModuleType:
    try:
        with _on_path(Path.cwd()):
            return importlib.import_module(name)
    except (Exception, SystemExit) as exc:
        absent = exc.name if isinstance(exc, ModuleNotFoundError) else None
        if absent is not None and (name == absent or name.startswith(absent + ".")):
            raise ModelError(
                f"there is no Python module '{name}'",
                hint="a factory is written file.py:function or package.module:function; modules "
                "are looked up in this folder and in the environment",
            ) from exc
        raise ModelError(_readable(exc, f"'{name}' can't be imported")) from exc


def _find(module: ModuleType, factory: str, spec: str) -> Callable[[], Any]:
    target: Any = module
    for part in factory.split("."):
        target = getattr(target, part, None)
    if target is None:
        functions = sorted(
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        )
        raise ModelError(
            f"'{spec}': there is no function {factory}",
            hint="it has " + (", ".join(functions[:10]) or "no functions"),
        )
    if isinstance(target, nn.Module):  # which can be called, but with inputs
        raise ModelError(
            f"'{spec}' is a module ({type(target).__name__}), not a function",
            hint=f"name a function that returns it; {_FORMS}",
        )
    if not callable(target):
        raise ModelError(f"'{spec}' isn't a function, but {type(target).__name__}")
    made: Callable[[], Any] = target
    return made


def _call(factory: Callable[[], Any], spec: str) -> Any:
    try:
        with redirect_stdout(sys.stderr):
            return factory()
    except ModelError:
        raise
    except (Exception, SystemExit) as exc:
        raise ModelError(
            _readable(exc, f"the factory '{spec}' raised"), hint="`__cause__` shows the traceback"
        ) from exc


def _readable(exc: BaseException, what: str) -> str:
    """The exception and the last lines of the traceback that are the user's own."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{what}: {exc.filename}:{exc.lineno}: {exc.msg}: {(exc.text or '').strip()}"
    places = [f"  {place}" for place in user_lines(traceback.extract_tb(exc.__traceback__))[-4:]]
    text = f"{type(exc).__name__}: {exc}" if str(exc) else describe_error(exc)
    return "\n".join([f"{what}: {text}", *places])


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Lets the user's code import what lies beside it, and keeps what it prints off stdout."""
    text = str(folder)
    sys.path.insert(0, text)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if text in sys.path:
            sys.path.remove(text)
