"""Short-time Fourier transforms and their inverse, by transforms of frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgecompile.export.rewrites.symbols import Size, is_symbol


def istft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Size = None,
    return_complex: bool = False,
) -> Any:
    """``torch.istft`` of the first half of each spectrum, ``[..., n_fft // 2 + 1, frames]``.

    Frames are transformed back, weighed, added up where they overlap and divided by the sum of the weights.
    torch's own refuses weights of zero, which takes a look at values.
    """
    is_own = any(map(is_symbol, (*x.shape, length))) and x.is_complex() and x.dim() in (2, 3)
    if not is_own or return_complex or onesided is False or x.shape[-2] != n_fft // 2 + 1:
        return NotImplemented
    hop, weights = hop_length or n_fft // 4, _weights(n_fft, win_length, window, x.real.dtype)
    spectra = x if x.dim() == 3 else x.unsqueeze(0)
    norm = "ortho" if normalized else "backward"
    frames = torch.fft.irfft(spectra.transpose(1, 2), n=n_fft, dim=-1, norm=norm) * weights
    count = frames.shape[1]
    whole = n_fft + hop * (count - 1)

    def added(rows: Tensor) -> Tensor:
        columns = rows.transpose(1, 2)
        return functional.fold(columns, (1, whole), (1, n_fft), stride=(1, hop))[:, 0, 0]

    first = n_fft // 2 if center else 0
    end = whole - first if length is None else first + length
    beyond = end > whole
    stop = whole if beyond else end
    sums = added(frames)[:, first:stop]
    shares = added((weights * weights).expand(1, count, n_fft))[:, first:stop]
    result = sums / shares
    if beyond:
        result = functional.pad(result, (0, end - whole))
    return result if x.dim() == 3 else result[0]


def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """``torch.stft`` of ``[..., L]``: the first half of each frame's spectrum, ``[..., n_fft // 2 + 1, frames]``."""
    if not x.is_floating_point() or onesided is False or align_to_window:
        return NotImplemented
    if window is not None and window.is_complex():
        return NotImplemented
    if center:
        side = [n_fft // 2, n_fft // 2]
        planes = x.reshape(1, *(1,) * (2 - x.dim()), *x.shape)
        x = functional.pad(planes, side, mode=pad_mode).reshape(*x.shape[:-1], -1)
    hop, weights = hop_length or n_fft // 4, _weights(n_fft, win_length, window, x.dtype)
    norm = "ortho" if normalized else "backward"
    frames = x.unfold(-1, n_fft, hop) * weights
    spectra = torch.fft.rfft(frames, dim=-1, norm=norm).transpose(-1, -2)
    return spectra if return_complex else torch.view_as_real(spectra)


def _weights(n_fft: int, width: int | None, window: Tensor | None, kind: torch.dtype) -> Tensor:
    """The window in the middle of a frame of ``n_fft``."""
    width = width or n_fft
    weights = torch.ones(width, dtype=kind) if window is None else window.to(kind)
    left = (n_fft - width) // 2
    return functional.pad(weights, (left, n_fft - width - left))


#: What is computed instead of torch's functions, each with the same arguments.
SPECTRA: dict[Any, Callable[..., Any]] = {torch.stft: stft, torch.istft: istft}
