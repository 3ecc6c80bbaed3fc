"""The steps behind the transformer in a sentence-transformers pipeline, in plain torch.

The pipeline is described by ``modules.json``; pooling, dense layers and normalization become part
of the compiled model. The formulas are those of sentence-transformers' modules of the same names.
A pipeline that doesn't pool is one of late interaction: the steps are done to each token's embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import (
    WEIGHTS,
    find_weights,
    optional_object,
    read_json,
    read_object,
)
from edgecompile.models.options import POOLING_MODES, SPLADE
from edgecompile.models.tasks import architecture_of

_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}


@dataclass(frozen=True)
class SentencePipeline:
    """A parsed ``modules.json``: the transformer's folder and the modules behind it.

    Attributes:
        transformer: the transformer's folder.
        pooling: the pooling; None: each token keeps its embedding.
        steps: the modules behind it.
        description: the names of all modules.
    """

    transformer: Path
    pooling: Pooling | None
    steps: tuple[nn.Module, ...]
    description: str

    @property
    def sparse(self) -> bool:
        """Whether it pools the logits of a masked language model."""
        return self.pooling is not None and self.pooling.sparse


class Pooling(nn.Module):
    """Token embeddings [B, L, D], or logits, and their mask [B, L] to [B, D · number of modes]."""

    def __init__(self, modes: tuple[str, ...]) -> None:
        super().__init__()
        self.modes = modes

    @property
    def sparse(self) -> bool:
        """Whether it pools the logits of a masked language model."""
        return self.modes == (SPLADE,)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = [_POOL[mode](tokens, mask) for mode in self.modes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Normalize(nn.Module):
    """Divides each embedding, along the last dimension, by its Euclidean norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, p=2.0, dim=-1)


class SentenceEncoder(nn.Module):
    """The transformer and the modules that follow it.

    Gives ``sentence_embedding`` [B, D], ``sparse_embedding`` [B, vocabulary] of the pooling "splade", or
    without a pooling ``token_embeddings`` [B, L, D].
    """

    def __init__(
        self,
        transformer: nn.Module,
        pooling: Pooling | None,
        steps: tuple[nn.Module, ...],
        masked: bool,
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling = pooling
        self.steps = nn.Sequential(*steps)
        self.masked = masked

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: Any
    ) -> dict[str, torch.Tensor]:
        if self.masked:
            others["attention_mask"] = attention_mask
        tokens = self.transformer(input_ids=input_ids, **others)[0]
        if self.pooling is None:
            return {"token_embeddings": self.steps(tokens)}
        name = "sparse_embedding" if self.pooling.sparse else "sentence_embedding"
        return {name: self.steps(self.pooling(tokens, attention_mask))}


def read_pipeline(folder: Path) -> SentencePipeline:
    """Reads ``modules.json`` and the configuration and weights of every module but the first.

    Raises:
        ModelError: it is malformed, or has modules that aren't supported; names all of them.
    """
    entries = read_json(folder / "modules.json", "the list of the pipeline's modules")
    if not isinstance(entries, list) or not entries:
        raise ModelError(f"'{folder / 'modules.json'}' isn't a list of modules")
    kinds, paths = [], []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise ModelError(f"'{folder / 'modules.json'}' has an entry without a type")
        relative = str(entry.get("path", ""))
        path = folder / relative
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"'{folder / 'modules.json'}' points outside its folder: {relative}")
        kinds.append(entry["type"])
        paths.append(path)
    names = [_short_name(kind) for kind in kinds]
    unsupported = [
        f"{kind} (number {index})"
        for index, (kind, name) in enumerate(zip(kinds, names, strict=True))
        if name not in (_TRANSFORMERS if index == 0 else (*_POOLINGS, *_READERS))
        or (name in _POOLINGS and index != 1)
    ]
    if unsupported:
        raise ModelError(
            f"'{folder}': the pipeline {' → '.join(names)} has modules that aren't supported: "
            + ", ".join(unsupported),
            hint="supported: Transformer, then Pooling or SpladePooling, then any of "
            + ", ".join(sorted(_READERS))
            + "; or write a factory (file.py:function) that builds the module",
        )
    reader = _POOLINGS.get(names[1]) if len(names) > 1 else None
    pooling = None if reader is None else Pooling(reader(paths[1]))
    first = 1 if pooling is None else 2
    read = [_READERS[name](path) for name, path in zip(names[first:], paths[first:], strict=True)]
    steps = [step for step in read if not isinstance(step, nn.Identity)]
    return SentencePipeline(
        paths[0],
        pooling,
        tuple(steps if pooling is not None else _by_token(steps)),
        " → ".join(names),
    )


def read_projection(folder: Path, config: Mapping[str, Any]) -> SentencePipeline | None:
    """The pipeline of a folder of the ColBERT library's class: each token's embedding is projected and normalized.

    Args:
        folder: the folder of the transformer, without a modules.json.
        config: its config.json.

    Returns:
        None for a folder of another class.

    Raises:
        ModelError: the weights have no projection.
    """
    if architecture_of(config) != "HF_ColBERT":
        return None
    from safetensors import safe_open

    for file in find_weights(folder):
        with safe_open(file, framework="pt") as weights:
            names = list(weights.keys())
            if _PROJECTION not in names:
                continue
            weight = weights.get_tensor(_PROJECTION).float()
        if weight.dim() == 2:
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight.data.copy_(weight)
            steps = tuple(_by_token([linear]))
            return SentencePipeline(folder, None, steps, "Transformer → Linear → Normalize")
    raise ModelError(
        f"'{folder}': the weights of HF_ColBERT lack the projection {_PROJECTION}",
        hint="config.json and the weights must come from one save_pretrained",
    )


#: The projection of tokens in a folder of the ColBERT library's class.
_PROJECTION = "linear.weight"


def _by_token(steps: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """The steps of late interaction, whose scores are products of embeddings of length 1."""
    if not steps or isinstance(steps[-1], Normalize):
        return steps
    return (*steps, Normalize())


def _short_name(kind: str) -> str:
    if kind == "pylate.models.Dense.Dense":
        return "Dense"
    return kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind


def _read_modes(path: Path) -> tuple[str, ...]:
    config = read_object(path / "config.json", "the pooling's configuration")
    chosen = config.get("pooling_mode")
    if chosen is not None:  # how newer versions write it
        modes = {chosen} if isinstance(chosen, str) else set(chosen)
    else:
        modes = {mode for flag, mode in _FLAGS.items() if config.get(flag)}
        strange = [key for key in config if key.startswith("pooling_mode_") and key not in _FLAGS]
        modes |= {key for key in strange if config[key]}
    unknown = sorted(modes - set(POOLING_MODES))
    if unknown or not modes:
        raise ModelError(
            f"'{path / 'config.json'}' "
            + (f"asks for unknown pooling: {', '.join(unknown)}" if unknown else "chooses none"),
            hint="supported: " + ", ".join(POOLING_MODES),
        )
    return tuple(mode for mode in POOLING_MODES if mode in modes)


def _read_splade(path: Path) -> tuple[str, ...]:
    """The mode of a SpladePooling."""
    config = optional_object(path / "config.json", "the pooling's configuration")
    usual = {"pooling_strategy": "max", "activation_function": "relu"}
    strange = [f"{key} {config[key]}" for key in usual if config.get(key, usual[key]) != usual[key]]
    if strange:
        raise ModelError(
            f"'{path / 'config.json'}' asks for {', '.join(strange)}",
            hint="supported: the largest value of each word (max) behind relu",
        )
    return (SPLADE,)


#: What a pipeline may begin with. The second one is a transformer with the head of a masked language model.
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_POOLINGS: Mapping[str, Callable[[Path], tuple[str, ...]]] = {
    "Pooling": _read_modes,
    "SpladePooling": _read_splade,
}


def _read_dense(path: Path) -> nn.Module:
    config = read_object(path / "config.json", "the dense layer's configuration")
    if config.get("use_residual"):
        raise ModelError(
            f"'{path / 'config.json'}' asks for a residual connection",
            hint="write a factory (file.py:function) that builds the module",
        )
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ModelError(
            f"'{path / 'config.json'}' asks for the activation {activation}",
            hint="supported: " + ", ".join(_ACTIVATIONS),
        )
    linear = nn.Linear(
        _size(config, "in_features", path),
        _size(config, "out_features", path),
        bias=bool(config.get("bias", True)),
    )
    _load(linear, path, "linear.")
    return nn.Sequential(linear, _ACTIVATIONS[activation]())


def _read_layer_norm(path: Path) -> nn.Module:
    config = read_object(path / "config.json", "the layer norm's configuration")
    norm = nn.LayerNorm(_size(config, "dimension", path))
    _load(norm, path, "norm.")
    return norm


def _read_dropout(path: Path) -> nn.Module:
    optional_object(path / "config.json", "the dropout's configuration")
    return nn.Identity()  # nothing in eval mode


_READERS: Mapping[str, Any] = {
    "Dense": _read_dense,
    "Dropout": _read_dropout,
    "LayerNorm": _read_layer_norm,
    "Normalize": lambda path: Normalize(),
}


def _size(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"'{path / 'config.json'}': {key} is {value!r}, not a size")
    return value


def _load(module: nn.Module, path: Path, prefix: str) -> None:
    from safetensors.torch import load_file

    find_weights(path)
    tensors = {key.removeprefix(prefix): value for key, value in load_file(path / WEIGHTS).items()}
    try:
        module.load_state_dict({key: value.float() for key, value in tensors.items()})
    except RuntimeError as exc:
        reason = " ".join(str(exc).split())
        raise ModelError(f"'{path / WEIGHTS}' doesn't fit its config.json: {reason}") from exc


def _mean(
    tokens: torch.Tensor, mask: torch.Tensor, *, by_place: bool = False, root: bool = False
) -> torch.Tensor:
    """The sum of the real positions by their number, or its root; later ones may weigh more."""
    weights = mask.unsqueeze(-1).to(tokens.dtype)
    if by_place:
        weights = weights * torch.arange(1, tokens.shape[1] + 1, dtype=tokens.dtype).unsqueeze(-1)
    total = weights.sum(1).clamp(min=1e-9)
    return (tokens * weights).sum(1) / (total.sqrt() if root else total)


def _max(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens.masked_fill(mask.unsqueeze(-1) == 0, -1e9).amax(1)


def _splade(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The weight of each word: the logarithm of 1 and its largest logit, nothing where none is over 0."""
    # The logarithm of the largest is the largest logarithm, and is taken once instead of for each token.
    return torch.log1p(_max(logits, mask).relu())


def _first(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tokens[:, 0]


def _last(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # The last real position, wherever the padding is; gather instead of indexing keeps one row
    # per batch entry without a data-dependent size.
    positions = torch.arange(tokens.shape[1]).unsqueeze(0)
    last = (positions * (mask != 0)).amax(1)
    index = last.view(-1, 1, 1).expand(-1, 1, tokens.shape[2])
    return tokens.gather(1, index).squeeze(1)


_POOL: Mapping[str, Any] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": partial(_mean, root=True),
    "weightedmean": partial(_mean, by_place=True),
    "lasttoken": _last,
    SPLADE: _splade,
}
