"""Which tensors a run writes to, also where it leaves their values as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["WriteWatch"]


class WriteWatch:
    """Tells which of some tensors were written to since it was made.

    torch counts the writes to a tensor: ``x.clamp_(min=0)`` is one also where nothing was below 0.
    A write that goes round torch (through numpy, or ``x.data``) shows in the values alone.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, values: bool = False) -> None:
        """``values``: whether to keep copies to compare with, which takes their memory again."""
        self._tensors = dict(tensors)
        self._versions = {name: _version(tensor) for name, tensor in tensors.items()}
        self._copies = {
            name: tensor.detach().clone() if values else tensor for name, tensor in tensors.items()
        }

    def written(self, now: Mapping[str, torch.Tensor] | None = None) -> list[str]:
        """Names of those that were written to, or are new, or were replaced by other values.

        Args:
            now: what has these names by now; None: the same tensors as before.
        """
        return [
            name
            for name, tensor in (self._tensors if now is None else now).items()
            if self._changed(name, tensor)
        ]

    def _changed(self, name: str, tensor: torch.Tensor) -> bool:
        old = self._tensors.get(name)
        if old is None or (tensor is old and _version(tensor) != self._versions[name]):
            return True
        kept = self._copies[name]
        return tensor is not kept and not (tensor.shape == kept.shape and torch.equal(tensor, kept))


def _version(tensor: torch.Tensor) -> int:
    # Tensors made in inference mode have no count.
    return 0 if tensor.is_inference() else tensor._version
