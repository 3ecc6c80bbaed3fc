"""Finds the longest input that a transformer allows: from its position tables, else its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_TABLES = ("position_embeddings", "embed_positions", "wpe", "position_embedding", "wpe_emb")
_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")


def max_positions(model: nn.Module) -> int | None:
    """The largest length, or None if the model sets no limit (relative positions).

    A table of learned positions is the hard limit. Where it has a padding index (RoBERTa and its
    kin, MPNet), positions are counted from behind it: a table of 514 rows with padding index 1
    serves 512 positions.
    """
    limits = [
        rows
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in _TABLES and (rows := _usable_rows(module)) is not None
    ]
    if limits:
        return min(limits)
    config = getattr(model, "config", None)
    return _configured(lambda key: getattr(config, key, None))


def stored_positions(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> int | None:
    """The most that :func:`max_positions` can turn out to be, of a model that isn't loaded.

    Args:
        config: the parsed config.json.
        shapes: the shapes of the stored weights, by name.
    """
    rows = [
        shape[0]
        for name, shape in shapes.items()
        if len(shape) == 2 and name.removesuffix(".weight").rpartition(".")[2] in _TABLES
    ]
    return max(rows) if rows else _configured(config.get)


def _configured(setting: Callable[[str], Any]) -> int | None:
    """The limit that a configuration names, for a model without a table."""
    if setting("position_embedding_type") in ("relative", "none"):
        return None
    values = [setting(key) for key in _KEYS]
    return min((v for v in values if isinstance(v, int) and v >= 1), default=None)


def _usable_rows(module: nn.Module) -> int | None:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        return None
    rows, padding = int(weight.shape[0]), getattr(module, "padding_idx", None)
    if isinstance(padding, int):
        return max(1, rows - padding - 1)
    # OPT and BART keep two rows free in front, and say so in an attribute.
    offset = getattr(module, "offset", 0)
    return max(1, rows - (offset if isinstance(offset, int) else 0))
