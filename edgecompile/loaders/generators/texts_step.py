"""One token of each of several texts, each over caches of its own, as a module to export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import ModelError
from edgecompile.export.operators.texts_attention import CACHES, TEXTS_ATTENTION
from edgecompile.export.operators.texts_states import TEXTS_SCAN, TEXTS_WINDOW
from edgecompile.loaders.generators.attention import WAYS, placed
from edgecompile.loaders.generators.cache import CONV, Kept, Place, WrittenCache
from edgecompile.loaders.generators.scans import scanning
from edgecompile.loaders.generators.step import INPUT, POSITION, GenerationStep
from edgecompile.loaders.generators.storage import FLOAT32, Storage
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import named_forward
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import AxisLimits, InputSpec
from edgecompile.runtime.format.manifest.schema import SEQ2SEQ

TEXTS = "texts"


@dataclass(frozen=True)
class _TextsPlace(Place):
    """The places of tokens that belong to a text each.

    Attributes:
        context: rows of each cache.
        storage: storage of keys and values in the caches.
        caches: the addresses of keys and values of the layer that attends next, with heads and width of their rows.
    """

    context: int = 0
    storage: Storage = FLOAT32
    caches: list[tuple[Tensor, tuple[int, ...]]] = field(default_factory=list)

    @property
    def ids(self) -> Tensor:
        return self.rows[:, None]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, softcap: float
    ) -> Tensor:
        # Of this layer, else another text's rows would be seen.
        (keys, key_row), (values, value_row) = self.caches
        self.caches.clear()
        if (*k.shape[1::2],) != key_row or (*v.shape[1::2],) != value_row:
            raise NotImplementedError("attention to something else than the cache holds")
        q, k, v = (tensor.transpose(0, 2) for tensor in (q, k, v))  # the operator's batch is 1
        new = self.storage.store(k), self.storage.store(v)
        result: Tensor = TEXTS_ATTENTION(
            q, *new, keys, values, self.position, self.context, window, scale, softcap
        )
        return result.transpose(0, 2)

    def require_attended(self) -> None:
        """Raises NotImplementedError where a layer attended in a way of its own, to all rows as one text's."""
        if self.caches:
            raise NotImplementedError("attention of the model's own")


class _TextsCache(WrittenCache):
    """Hands on the new keys and values, and the addresses of states: operators that know the texts write there."""

    _place: _TextsPlace

    def __init__(
        self, kept: Sequence[Kept], addresses: Tensor, place: _TextsPlace, context: int
    ) -> None:
        super().__init__(kept, list(addresses), place, context)
        self._sizes = {(item.layer, item.part, item.index): item.shape[-1] for item in kept}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self._place.require_attended()
        given = ((*states.shape[1::2],) for states in (key_states, value_states))
        self._place.caches.extend(zip(self._rows[layer_idx], given, strict=True))
        return key_states, value_states

    def _given(self, memory: Tensor) -> Tensor:
        return memory.clone()  # a model may write to a state that it asked for

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:  # type: ignore[override]
        """None, so that a model hands a single token to ``update_conv_state``, too."""

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        key, position = (layer_idx, CONV, state_idx), self._place.position
        result: Tensor = TEXTS_WINDOW(conv_states, self._memory[key], position, self._sizes[key])
        return result

    def scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
        *,
        values_first: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The first token of each; ``state`` has the addresses, and is given back."""
        rate = None if beta is None else beta[:, 0]
        tokens = [tensor[:, 0] for tensor in (q, k, v, decay)]
        addresses, position = state.reshape(-1), self._place.position
        y = TEXTS_SCAN(*tokens, rate, addresses, position, values_first)
        return y[:, None], state


class TextsStep(nn.Module):
    """Runs ``step`` on one token of each of several texts.

    ``forward`` takes ``input_ids`` int64 [1, texts], ``position`` int64 [texts] and ``caches`` int64
    [caches, texts]: the addresses of the step's caches, each of the whole context. It gives
    ``logits`` float32 [texts, vocabulary]. To the model the texts are a batch.
    """

    def __init__(self, step: GenerationStep) -> None:
        super().__init__()
        # By the same name as there: constants are told apart by their names.
        self.model = step.model
        self._run, self._kept, self._context = step.run_model, step.kept, step.max_context
        self._storage = step.storage
        self.forward = named_forward((INPUT, POSITION, CACHES), self._step)

    def _step(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens, position = inputs[INPUT], inputs[POSITION].clamp(max=self._context - 1)
        numbers = torch.zeros(1)
        place = _TextsPlace(position, None, position, numbers, self._context, self._storage)
        cache = _TextsCache(self._kept, inputs[CACHES], place, self._context)
        with placed(place), scanning(self.model, cache, as_steps=True):
            logits = self._run(tokens.transpose(0, 1), place, cache)[:, 0]
        place.require_attended()
        return {"logits": logits}


def texts_model(model: LoadedModel, most: int) -> LoadedModel:
    """The model that gives 2 to ``most`` texts of a generating model a token each.

    Single tokens of that model are scanned as those of several texts from then on.

    Raises:
        ModelError: its attention is none that can tell texts apart.
    """
    step, made = model.module, model.generation
    if made is None or not isinstance(step, GenerationStep):
        raise ModelError(
            f"{model.name} takes no `texts_at_once`: that is for language models in a folder",
            hint="leave it out",
        )
    if made.spec.kind == SEQ2SEQ or step.way != WAYS[0]:
        raise _refuse(model)
    step.as_steps = step.has_states
    texts = TextsStep(step).eval()
    tokens = next(item for item in model.inputs if item.name == INPUT)
    inputs = (
        replace(tokens, shape=(1, TEXTS)),
        InputSpec(POSITION, "int64", (TEXTS,), bounds=(0, made.spec.max_context - 1)),
        # Without caches: whatever is drawn would be taken for an address.
        InputSpec(CACHES, "int64", (len(step.kept), TEXTS), bounds=(0, 0), in_place=True),
    )
    axes = {TEXTS: AxisLimits(2, most)}
    try:
        outputs, _ = probe_model(texts, inputs, axes, model.name)
    except ModelError as error:
        raise _refuse(model) from error
    return LoadedModel(
        name=model.name,
        module=texts,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        length_axis=TEXTS,
        source=model.source,
        load=model.load,
        stored=model.stored,
    )


def _refuse(model: LoadedModel) -> ModelError:
    return ModelError(
        f"{model.name} can't run several texts at once: layers that attend must keep keys and values of their own, "
        "and attend by transformers' interface without a mask",
        hint="leave `texts_at_once` out: a server runs the texts in turn",
    )


def texts_buckets(model: LoadedModel) -> tuple[Bucket, ...]:
    """The bucket of :func:`texts_model`'s program."""
    limits = model.axes[TEXTS]
    assert limits.hi is not None
    return (Bucket("exact", ((TEXTS, AxisRange(limits.lo, limits.hi, min(4, limits.hi))),)),)
