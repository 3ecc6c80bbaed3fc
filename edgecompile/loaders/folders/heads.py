"""The head compiled around a folder's model for a task: pooling, softmax, and its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.sentence_modules import (
    Normalize,
    Pooling,
    SentenceEncoder,
    SentencePipeline,
)
from edgecompile.models.modules import NamedModule, name_outputs
from edgecompile.models.options import SPLADE, LoadOptions
from edgecompile.models.specs import OutputSpec
from edgecompile.models.tasks import LOGITS, Task

#: The outputs that a task is about, where the model has them.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "sequence-classification": ("logits", "scores"),
    "token-classification": ("logits", "scores"),
    "question-answering": ("start_logits", "end_logits", "start_scores", "end_scores"),
    "audio": ("logits", "scores", "last_hidden_state", "pooler_output"),
    "image": ("logits", "scores", "last_hidden_state", "pooler_output"),
}


#: [batch, classes, height, width]: of each pixel, as segmentation has it.
_IMAGE_DIMS = 4


class Scores(nn.Module):
    """Puts a softmax, or a sigmoid where classes don't exclude each other, behind each ``logits``.

    ``logits`` become ``scores``, ``start_logits`` become ``start_scores``. Classes are the last
    dimension, of pixels the second one. Scores of an answer's
    start and end are over the tokens: those of the padding are 0.
    """

    def __init__(self, model: nn.Module, *, independent: bool) -> None:
        super().__init__()
        self.model = model
        self.independent = independent

    def forward(self, **inputs: Any) -> dict[str, torch.Tensor]:
        outputs = name_outputs(self.model(**inputs))
        mask = inputs.get("attention_mask")
        return {
            name.replace("logits", "scores"): self._score(name, value, mask)
            if name.endswith("logits")
            else value
            for name, value in outputs.items()
        }

    def _score(self, name: str, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if self.independent:
            return value.sigmoid()
        if value.dim() == _IMAGE_DIMS:
            return value.softmax(1)
        if name != "logits" and mask is not None:
            value = value.masked_fill(mask == 0, torch.finfo(value.dtype).min)
        return value.softmax(-1)


def pipeline_for(
    pipeline: SentencePipeline | None, options: LoadOptions, task: Task
) -> tuple[Pooling | None, tuple[nn.Module, ...]]:
    """The pooling and the modules that follow it, of a modules.json or as requested.

    Without a pooling, modules are for each token's embedding.

    Raises:
        ModelError: lists the options that don't go together.
    """
    pooling = None if pipeline is None else pipeline.pooling
    steps = () if pipeline is None else pipeline.steps
    problems = []
    if options.pooling is not None:
        if pooling is not None:
            problems.append("the folder's modules.json says how it pools, `pooling` does, too")
        elif steps:
            problems.append("the folder's model has an embedding for each token, and no `pooling`")
        pooling = Pooling((options.pooling,))
    if pooling is not None and pooling.sparse:
        if task.name != LOGITS:
            problems.append(
                f"the pooling {SPLADE} is for logits of a masked language model, not for {task.name}"
            )
    elif options.pooling is not None and task.name not in ("feature-extraction", "seq2seq-encoder"):
        problems.append(f"`pooling` is for feature-extraction, not for {task.name}")
    if options.normalize and pooling is None and not steps:
        problems.append("`normalize` is for an embedding, which takes `pooling` or a modules.json")
    if options.softmax and (pooling is not None or steps or task.bare):
        problems.append(f"`softmax` is for classifiers, not for {task.name}")
    if problems:
        raise ModelError("; ".join(problems))
    if options.normalize and not (steps and isinstance(steps[-1], Normalize)):
        steps = (*steps, Normalize())
    return pooling, steps


def assemble(
    model: Any,
    names: Sequence[str],
    *,
    pooling: Pooling | None,
    steps: tuple[nn.Module, ...],
    constants: Mapping[str, Any],
    softmax: bool,
) -> NamedModule:
    """The module to compile: takes inputs by ``names``, gives named tensors.

    Raises:
        ModelError: a softmax is asked for behind a regression, or a pooling of logits behind a model without any.
    """
    accepted = inspect.signature(model.forward).parameters
    if pooling is not None and pooling.sparse and model.get_output_embeddings() is None:
        raise ModelError(
            f"the pooling {SPLADE} is for logits of a masked language model, and {type(model).__name__} has none",
            hint="config.json's architectures must name a class such as BertForMaskedLM",
        )
    if pooling is not None or steps:
        encoder = SentenceEncoder(model, pooling, steps, "attention_mask" in accepted)
        return NamedModule(encoder.eval(), names).eval()
    always = {"use_cache": False, "return_dict": True}
    flags = {key: value for key, value in always.items() if key in accepted}
    if softmax:
        kind = getattr(model.config, "problem_type", None)
        if kind == "regression":
            raise ModelError(
                "the model's output is a number, not classes: config.json says regression",
                hint="leave `softmax` out",
            )
        single = len(getattr(model.config, "id2label", None) or {}) == 1
        independent = kind == "multi_label_classification" or (kind is None and single)
        model = Scores(model, independent=independent)
    return NamedModule(model, names, constants={**flags, **constants}).eval()


def keep_outputs(task: Task, outputs: Sequence[OutputSpec]) -> tuple[str, ...] | None:
    """Names of those that the task is about; None where that is all of them."""
    relevant = _KEPT.get(task.name)
    names = tuple(spec.name for spec in outputs if relevant is None or spec.name in relevant)
    return names if names and len(names) < len(outputs) else None


def label_names(config: Any, outputs: Sequence[OutputSpec]) -> dict[str, tuple[str, ...]]:
    """Names of the classes by output, as config.json's ``id2label`` has them.

    An output has them where its last dimension has as many entries, and is that of classes.
    """
    table = getattr(config, "id2label", None) or {}
    try:
        names = tuple(str(table[index]) for index in range(len(table)))
    except KeyError:
        return {}
    return {
        spec.name: names
        for spec in outputs
        if names
        and spec.name in ("logits", "scores")
        and len(spec.shape) != _IMAGE_DIMS
        and spec.shape[-1] == len(names)
    }
