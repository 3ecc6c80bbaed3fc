"""Models that generate, by task: what is the same for each, whether a folder or code gave the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from edgecompile.files import hash_tree
from edgecompile.loaders.folders.files import find_weights, read_object
from edgecompile.loaders.folders.pretrained import load_pretrained
from edgecompile.loaders.generators.causal import make_generator
from edgecompile.loaders.generators.seq2seq import make_seq2seq
from edgecompile.models.loaded import LoadedModel, LoadOptions, ModelSource
from edgecompile.models.tasks import SEQ2SEQ_LM, find_task
from edgecompile.runtime.format.schema import CAUSAL_LM

__all__ = ["MAKERS", "load_generator"]


class Maker(Protocol):
    """Makes what is compiled of a transformers model; see the functions in :data:`MAKERS`."""

    def __call__(
        self,
        model: Any,
        options: LoadOptions,
        *,
        name: str,
        source: ModelSource,
        tokenizer: Path | None = None,
        notes: tuple[str, ...] = (),
    ) -> LoadedModel: ...


#: By the name of the task.
MAKERS: dict[str, Maker] = {CAUSAL_LM: make_generator, SEQ2SEQ_LM: make_seq2seq}


def load_generator(folder: Path, options: LoadOptions, task: str) -> LoadedModel:
    """Loads a folder in Hugging Face layout, to generate with.

    Args:
        folder: with config.json, weights and perhaps a tokenizer.json.
        options: how.
        task: a key of :data:`MAKERS`.

    Raises:
        ModelError: the folder is incomplete, or its model isn't supported: see the task's function.
        MissingDependencyError: transformers isn't installed.
    """
    config = read_object(folder / "config.json", "the model's configuration")
    find_weights(folder)
    pretrained = load_pretrained(folder, config, find_task(task))
    tokenizer = folder / "tokenizer.json"
    source = ModelSource(
        kind="folder",
        spec=str(folder),
        sha256=hash_tree(folder),
        details={
            "architecture": type(pretrained.model).__name__,
            "model_type": str(config.get("model_type")),
            "task": task,
        },
    )
    return MAKERS[task](
        pretrained.model,
        options,
        name=folder.resolve().name,
        source=source,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        notes=tuple(pretrained.notes),
    )
