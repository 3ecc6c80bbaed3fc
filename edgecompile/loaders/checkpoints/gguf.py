"""Loads language models from GGUF files, as llama.cpp reads them.

transformers makes the model of them, with the package gguf. The header is checked before either sees the file.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import MissingDependencyError, ModelError, UsageError
from edgecompile.files import hash_tree
from edgecompile.loaders.checkpoints.gguf_blocks import stored_weights
from edgecompile.loaders.checkpoints.gguf_header import GgufHeader, read_gguf_header
from edgecompile.loaders.folders.files import plain_name
from edgecompile.loaders.folders.pretrained import (
    check_loading,
    import_transformers,
    in_float32,
    prefer_exportable,
    quiet,
)
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.mapped import widen
from edgecompile.models.modules import describe_error
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import find_task
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM
from edgecompile.toolchain.compilers import cache_directory

_PACKAGES = ("gguf", "accelerate")


def load_gguf(path: Path, options: LoadOptions) -> LoadedModel:
    """Loads a GGUF file as a language model in float32, which remembers the file's own numbers.

    Args:
        path: the file.
        options: options of language models.

    Raises:
        ModelError: the file is damaged, holds something else, or transformers doesn't know its family.
        MissingDependencyError: transformers, gguf or accelerate isn't installed.
        UsageError: a task is asked for that isn't generation.
    """
    if options.task not in (None, CAUSAL_LM):
        raise UsageError(
            f'`task="{options.task}"`: a GGUF file is loaded for {CAUSAL_LM}', hint="leave it out"
        )
    header = read_gguf_header(path)
    model = _load(header)
    from edgecompile.loaders.generators.makers import GeneratorMaker  # needs transformers

    stored = stored_weights(header)
    details = {
        "architecture": type(model).__name__,
        "model_type": str(model.config.model_type),
        "task": CAUSAL_LM,
        "checkpoint": "GGUF",
    }
    made = GeneratorMaker(
        CAUSAL_LM,
        model,
        options,
        name=plain_name(path.stem),
        source=ModelSource("gguf", str(path), hash_tree(path), details),
        tokenizer=gguf_tokenizer(path),
        notes=[f"a GGUF file with {stored.describe()}"],
    ).make()
    return replace(made, stored=stored)


def gguf_tokenizer(path: Path) -> Path:
    """The ``tokenizer.json`` that transformers makes of a file's vocabulary, in the user's cache.

    Beside it are the tokenizer's settings and the chat template.

    Raises:
        As :func:`load_gguf`.
    """
    header = read_gguf_header(path)
    transformers = _import_packages()
    with path.open("rb") as stream:
        digest = hashlib.sha256(stream.read(header.size))
    digest.update(transformers.__version__.encode())
    folder = cache_directory() / "gguf" / digest.hexdigest()[:32]
    if not (folder / "tokenizer.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            with quiet(transformers), _explained(header, "tokenizer"):
                tokenizer = transformers.AutoTokenizer.from_pretrained(
                    str(path.parent), gguf_file=path.name, local_files_only=True
                )
                tokenizer.save_pretrained(str(made))
            if not (made / "tokenizer.json").is_file():
                raise ModelError(
                    f"'{path}': transformers makes no fast tokenizer of its vocabulary"
                )
            os.replace(made, folder)
        except OSError:
            if not (folder / "tokenizer.json").is_file():  # another process may have made it
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder / "tokenizer.json"


def _load(header: GgufHeader) -> Any:
    """The model in eval mode, float32."""
    path, transformers = header.path, _import_packages()
    known: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    auto = transformers.AutoModelForCausalLM
    with quiet(transformers), _explained(header, "model"):
        config = transformers.AutoConfig.from_pretrained(str(path.parent), **known)
        _check_size(header, config, auto)
        more = {}
        if hasattr(transformers, "GgufConfig"):  # else weights may stay packed
            more["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model, info = auto.from_pretrained(
            str(path.parent),
            **known,
            **more,
            **in_float32(transformers),
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are reported instead, all of them
            output_loading_info=True,
        )
    widen(model.eval())
    check_loading(path, model, info, find_task(CAUSAL_LM))
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ModelError(f"'{path}': {name} has values that are no finite numbers")
    prefer_exportable(model)
    return model


def _check_size(header: GgufHeader, config: Any, auto: Any) -> None:
    """Refuses metadata that describe a larger model than the file holds, before it is made."""
    with torch.device("meta"):
        described = sum(weight.numel() for weight in auto.from_config(config).parameters())
    held = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    if described > held:
        raise ModelError(
            f"'{header.path}': its metadata describe a model of {described} numbers, it holds {held}"
        )


@contextmanager
def _explained(header: GgufHeader, what: str) -> Iterator[None]:
    """Keeps bars of progress from the terminal, and makes what transformers raises an error about the file."""
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except ModelError:
        raise
    except Exception as exc:
        version = import_transformers().__version__
        raise ModelError(
            f"'{header.path}': transformers {version} can't make the {what} of a GGUF file of the "
            f"family {header.architecture}: {describe_error(exc)}",
            hint="a newer transformers may know it; or give the folder that the file was made of",
        ) from exc


def _import_packages() -> Any:
    """transformers, with what it needs for GGUF files.

    Raises:
        MissingDependencyError: a package isn't installed.
    """
    transformers = import_transformers()
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as exc:
            raise MissingDependencyError(
                f"loading a GGUF file needs the Python package {name}",
                hint="pip install 'edgecompile[gguf]'",
            ) from exc
    return transformers
