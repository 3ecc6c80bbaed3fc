"""A GPU as Inductor and Triton ask for it, told from its facts."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edgecompile.targets.gpu import GpuFacts

#: With its index: a device without one makes Inductor ask which is the current one.
DEVICE = torch.device("cuda", 0)

_getitem = Tensor.__getitem__


def _get_item(self: Tensor, index: Any) -> Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    rest = [part for part in parts if not isinstance(part, Tensor)]
    if self.device == DEVICE and len(rest) == len(parts) and all(map(_is_basic, parts)):
        return _view(self, parts)
    all_of_it = all(isinstance(part, slice) and part == slice(None) for part in rest)
    if self.device != DEVICE or len(rest) == len(parts) or not all_of_it:
        return _getitem(self, index)
    indices = [part if isinstance(part, Tensor) else None for part in parts]
    return torch.ops.aten.index.Tensor(self, indices)  # type: ignore[no-any-return]


def _is_basic(part: Any) -> bool:
    if isinstance(part, slice):
        return all(x is None or _is_number(x) for x in (part.start, part.stop, part.step))
    return part is None or part is Ellipsis or _is_number(part)


def _is_number(value: Any) -> bool:
    """Whether operators take it for a number as it is; torch converts others, such as numpy's."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _view(x: Tensor, parts: Sequence[Any]) -> Tensor:
    """What numbers, slices, None and an ellipsis leave of a tensor, by operators."""
    aten, dim = torch.ops.aten, 0
    between = x.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    for part in parts:
        if part is Ellipsis:
            dim += between
        elif part is None:
            x, dim = aten.unsqueeze.default(x, dim), dim + 1
        elif isinstance(part, slice):
            step = 1 if part.step is None else part.step
            x, dim = aten.slice.Tensor(x, dim, part.start, part.stop, step), dim + 1
        else:
            x = aten.select.int(x, dim, part)
    return x


#: Methods of tensors whose bindings for Python ask torch's guard of the device, which a fake one lacks:
#: their operators don't.
UNGUARDED: Mapping[str, Callable[..., Tensor]] = {
    "__getitem__": _get_item,
    "__invert__": lambda self: torch.ops.aten.bitwise_not(self),
    "contiguous": lambda self, **options: torch.ops.aten.contiguous(self, **options),
    "copy_": lambda self, *args, **options: torch.ops.aten.copy_(self, *args, **options),
}


def properties_of(gpu: GpuFacts) -> types.SimpleNamespace:
    """Stands in for the result of ``torch.cuda.get_device_properties``."""
    major, minor = divmod(gpu.compute_capability, 10)
    return types.SimpleNamespace(
        name=f"sm_{gpu.compute_capability}",
        major=major,
        minor=minor,
        multi_processor_count=gpu.multiprocessors,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=gpu.threads,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=gpu.shared_memory,
        L2_cache_size=gpu.l2,
        total_memory=8 << 30,
        gcnArchName="",
    )


class IdleDriver:
    """Answers Triton's questions to its driver as long as nothing runs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return DEVICE

    def get_device_interface(self) -> Any:
        return torch.cuda


def inductor_options() -> dict[str, Any]:
    """Inductor's: its code is ours to compile, and nothing is timed."""
    return {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.link_libtorch": False,
        "aot_inductor.embed_kernel_binary": True,
        "aot_inductor.output_path": "",
        "triton.autotune_at_compile_time": True,
        "triton.unique_kernel_names": True,
        "use_static_triton_launcher": False,
        "compile_threads": 1,
        "force_disable_caches": True,
        # Pads what is misaligned after timing it.
        "shape_padding": False,
        "triton.descriptive_names": "original_aten",
        "max_autotune_gemm": True,
        "max_autotune_gemm_backends": "TRITON",
        "max_autotune_conv_backends": "TRITON",
        # A float32 product is one, whatever the global setting is.
        "emulate_precision_casts": False,
    }
