"""Code for a GPU on a host without one: with patches.py alone in touch with torch's and Triton's private API.

Inductor asks a GPU for its properties, computes constants on it, and times and compiles kernels for it.
Here a description answers, constants are computed on the CPU, nothing is timed, and what Triton makes ends
at PTX (:mod:`edgecompile.backends.cuda.cubins` assembles it). torch's CPU wheel is enough.
``tests/backends/cuda/test_device_free.py`` fails loudly when torch or Triton change what is relied on here.
"""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo.device_interface as device_interface
import torch._inductor
from torch import Tensor
from torch._inductor import codecache, graph, scheduler
from torch._inductor import utils as inductor_utils
from torch._inductor.codegen import wrapper as wrapper_codegen
from torch._inductor.fx_passes import joint_graph
from torch._inductor.runtime import hints, triton_helpers, triton_heuristics
from torch._inductor.utils import IndentedBuffer
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.utils import _triton
from torch.utils._pytree import tree_map_only

from edgecompile.backends.cuda import gpu_properties, patches
from edgecompile.backends.cuda.gemm.plain import offer_product, read_product
from edgecompile.backends.cuda.gemm.row_tiles import (
    RowKernel,
    TileChooser,
    launch_by_rows,
    read_template,
    with_tile,
)
from edgecompile.backends.cuda.gemm.tiles import Tile
from edgecompile.backends.cuda.source import Kernel, RawSource
from edgecompile.errors import CompileError
from edgecompile.targets.gpu import GpuFacts

#: Inductor's code for the CUDA of this release: it decides about nothing that we use.
_CUDA = "12.6"
_join = scheduler.Scheduler.check_prologue_fusion_heuristics_fusable


@dataclass(frozen=True)
class OnGpu:
    """A graph whose tensors are fake ones on a GPU.

    Attributes:
        module: the graph.
        kwargs: example inputs, fake as well.
        real: the constants behind the fake ones, by name.
    """

    module: GraphModule
    kwargs: Mapping[str, Tensor]
    real: Mapping[str, Tensor]


def move_to_gpu(module: GraphModule, kwargs: Mapping[str, Tensor]) -> OnGpu:
    """Puts a graph, in place, on a GPU that isn't there.

    Args:
        module: an exported program's module, lowered.
        kwargs: example inputs.
    """
    mode = _mode_of(module)
    real = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    fakes: dict[int, tuple[Tensor, Tensor]] = {}  # with the real one, whose id stays its own

    def fake(tensor: Tensor) -> Tensor:
        with mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=gpu_properties.DEVICE
            )

    def fake_constant(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            fake_tensor = fake(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                fake_tensor = torch.nn.Parameter(fake_tensor, requires_grad=False)
            fake_tensor.ec_real = tensor.detach()  # type: ignore[attr-defined]
            fakes[id(tensor)] = tensor, fake_tensor
        return fakes[id(tensor)][1]

    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in list(table.items()):
                if tensor is not None:
                    table[name] = fake_constant(tensor)  # type: ignore[assignment]
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor):
                setattr(part, name, fake_constant(value))
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.kwargs = {**node.kwargs, "device": gpu_properties.DEVICE}
            node.args = tree_map_only(torch.device, lambda _: gpu_properties.DEVICE, node.args)
            if "val" in node.meta:
                node.meta["val"] = tree_map_only(FakeTensor, fake, node.meta["val"])
        part.recompile()
    examples = {name: fake(tensor) for name, tensor in kwargs.items()}
    return OnGpu(module, examples, {name: tensor.detach() for name, tensor in real.items()})


def _mode_of(module: GraphModule) -> FakeTensorMode:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    raise CompileError("the exported graph has no tensors")


def run_inductor(
    program: OnGpu,
    gpu: GpuFacts,
    chooser: TileChooser,
    folder: Path,
    ptxas: Path,
) -> RawSource:
    """Generates a program's code.

    Args:
        program: the program from :func:`move_to_gpu`.
        gpu: the GPU that the code is for.
        chooser: chooses among templates.
        folder: the folder that gets Inductor's and Triton's files; none of an earlier program.
        ptxas: will assemble the PTX: decides its version.

    Raises:
        Exception: whatever Inductor or Triton raise.
    """
    pieces: dict[str, Any] = {}
    choosing = patches.choosing(chooser)
    with device_free(gpu, folder, ptxas), _caught(pieces, chooser), choosing, torch.no_grad():
        torch._inductor.aot_compile(
            program.module, (), dict(program.kwargs), options=gpu_properties.inductor_options()
        )
    constants = {
        name: program.real[name] if name in program.real else _real(tensor, name)
        for name, tensor in pieces["constants"].items()
    }
    wrapper, kernels = pieces["wrapper"], pieces["kernels"]
    for name, others in pieces["by_rows"].items():
        wrapper = launch_by_rows(wrapper, kernels[name], others)
        kernels.update((item.kernel.name, item.kernel) for item in others)
    for number, (name, product) in enumerate(pieces["plain"].items()):
        wrapper = offer_product(wrapper, name, number, product)
    return RawSource(wrapper, constants, tuple(kernels.values()), len(pieces["plain"]))


def _real(tensor: Any, name: str) -> Tensor:
    if isinstance(tensor, FakeTensor):
        tensor = getattr(tensor, "ec_real", None)
    if tensor is None:
        raise CompileError(
            f"torch's Inductor made the constant {name} on a GPU that isn't there",
            hint="this is a defect of edgecompile with this version of torch; please report it",
        )
    return tensor.detach()  # type: ignore[no-any-return]


@contextmanager
def device_free(gpu: GpuFacts, folder: Path, ptxas: Path) -> Iterator[None]:
    """Lets Inductor and Triton generate code for ``gpu`` as if it were the current device."""
    properties, capability = gpu_properties.properties_of(gpu), divmod(gpu.compute_capability, 10)
    device_interface.get_interface_for_device("cpu")  # registers the real ones, once
    lazy_init = joint_graph.lazy_init
    deduce = joint_graph.UniformValueConstantFolder._deduce_value

    def deduce_on_cpu(self: Any, node: torch.fx.Node) -> Any:
        kwargs = node.kwargs
        if "device" in kwargs:
            node.kwargs = {**kwargs, "device": torch.device("cpu")}
        try:
            value = deduce(self, node)
        finally:
            node.kwargs = kwargs
        return getattr(value, "ec_real", value)  # of a constant that is one number

    from triton.runtime.driver import driver

    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_PTXAS_PATH": str(ptxas),
        # Line tables make up four fifths of a cubin, and name this host's folders.
        "TRITON_DISABLE_LINE_INFO": "1",
    }
    replaced: Sequence[tuple[Any, str, Any]] = (
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (torch.cuda, "get_device_capability", lambda device=None: capability),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device_count", lambda: 1),
        (torch.version, "cuda", _CUDA),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        # It wants 68 multiprocessors for Triton's products; no Orin has as many.
        (inductor_utils, "is_big_gpu", lambda index=0: True),
        # The patterns are traced with real tensors, of any device.
        (joint_graph, "lazy_init", lambda device=None: lazy_init(torch.device("cpu"))),
        (joint_graph.UniformValueConstantFolder, "_deduce_value", deduce_on_cpu),
        # It makes a tensor on the GPU to fold a product with zero.
        (joint_graph.UniformValueConstantFolder, "_add_peephole_patterns", lambda self: None),
        (graph, "is_same_tensor", _same_tensor),
        (scheduler.Scheduler, "check_prologue_fusion_heuristics_fusable", _joins_product),
        # Small constants are written into kernels.
        (FakeTensor, "tolist", lambda self: self.ec_real.tolist()),
        (FakeTensor, "item", lambda self: self.ec_real.item()),
        *((torch.Tensor, name, method) for name, method in gpu_properties.UNGUARDED.items()),
        *patches.PATCHES,
    )
    _forget_device()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        names = dict.fromkeys(("cuda", "cuda:0"), _described(properties))
        stack.enter_context(patch.dict(device_interface.device_interfaces, names))
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(_until_ptx())
        driver.set_active(gpu_properties.IdleDriver(gpu.compute_capability))
        try:
            yield
        finally:
            driver._active = None  # reset_active() looks for a GPU
            _forget_device()


def _forget_device() -> None:
    """Empties torch's caches of what this process has; a build for a CPU may have filled them before."""
    hints.DeviceProperties.create.cache_clear()
    for cached in (_triton.has_triton, _triton.triton_backend, _triton.triton_hash_with_backend):
        cached.cache_clear()


def _described(properties: types.SimpleNamespace) -> type[device_interface.DeviceInterface]:
    class Described(device_interface.DeviceInterface):
        device = nullcontext  # type: ignore[assignment]
        Event = device_interface.CudaInterface.Event
        Stream = device_interface.CudaInterface.Stream

        class Worker:
            set_device = staticmethod(lambda device: None)
            current_device = staticmethod(lambda: 0)
            get_device_properties = staticmethod(lambda device=None: properties)

        current_device = staticmethod(lambda: 0)
        set_device = staticmethod(lambda device: None)
        device_count = staticmethod(lambda: 1)
        exchange_device = staticmethod(lambda device: 0)
        maybe_exchange_device = staticmethod(lambda device: 0)
        synchronize = staticmethod(lambda device=None: None)
        get_device_properties = staticmethod(lambda device=None: properties)
        get_raw_stream = staticmethod(lambda device_idx: 0)
        is_available = staticmethod(lambda: True)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        get_compute_capability = staticmethod(
            lambda device=None: properties.major * 10 + properties.minor
        )
        is_triton_capable = staticmethod(lambda device=None: True)
        raise_if_triton_unavailable = staticmethod(lambda device=None: None)

    return Described


def _same_tensor(one: Tensor, other: Tensor) -> bool:
    """Whether two constants are one in memory; fake ones if the real ones behind them are."""
    one, other = (getattr(tensor, "ec_real", tensor) for tensor in (one, other))
    if isinstance(one, FakeTensor) or isinstance(other, FakeTensor):
        return one is other
    return inductor_utils.is_same_tensor(one, other)


def _joins_product(self: Any, operand: Any, product: Any, why: Any) -> bool:
    """Whether a product's kernel computes an operand itself.

    Not one that reads nothing: the template takes the one number that it is for a tile, and isn't compiled. Nor one
    of rows that lie apart by a varying size, such as a permuted batch: each step would divide by it for every number,
    in up to 255 registers. Dividing by a constant costs next to nothing.
    """
    rank = len(product.get_template_node_or_throw().get_size())
    sizes = [read.normalize().size for read in operand.read_writes.reads if hasattr(read, "size")]
    apart = any(len(each) > rank and not all(n.is_number for n in each[1:]) for each in sizes)
    return bool(operand.read_writes.reads) and not apart and _join(self, operand, product, why)


@contextmanager
def _until_ptx() -> Iterator[None]:
    """Ends Triton's compilation at PTX: an empty cubin stands for what is assembled later."""
    from triton.backends.nvidia.compiler import CUDABackend, get_ptxas_version

    get_ptxas_version.cache_clear()
    with patch.object(CUDABackend, "make_cubin", lambda self, src, metadata, opt, capability: b"-"):
        yield
    get_ptxas_version.cache_clear()


def _kernel(name: str, binary: Any, source: str) -> Kernel:
    metadata = binary.metadata
    return Kernel(
        name, metadata.name, binary.asm["ptx"], metadata.num_warps, metadata.shared, source
    )


def _with_tile(tuner: Any, name: str, tile: Tile) -> Kernel:
    """The kernel of a product that was compiled with one tile, with another."""
    function, config = copy.copy(tuner.fn), copy.copy(tuner.configs[0])
    source = with_tile(function.src, tile)
    function._unsafe_update_src(source)
    config.num_warps, config.num_stages = tile.warps, tile.stages
    with patch.object(tuner, "fn", function):
        return _kernel(name, tuner._precompile_config(config).kernel, source)


@contextmanager
def _caught(made: dict[str, Any], chooser: TileChooser) -> Iterator[None]:
    """Takes the wrapper, the constants and the kernels in place of what would compile and time them."""
    made["kernels"], made["by_rows"], made["plain"] = {}, {}, {}
    run_block: Any = wrapper_codegen.PythonWrapperCodegen.generate_and_run_autotune_block

    def compile_first(self: Any, *args: Any, **kwargs: Any) -> None:
        """In place of compiling and timing all candidates."""
        config = patches.configuration(self)
        patches.round_each_step(self)
        result = self._precompile_config(config)
        binary = result.kernel
        names = binary.src.fn.arg_names
        constexprs = triton_heuristics.get_constexprs(binary.src.fn)
        call_args, def_args, none_args = result._get_arg_lists(names, constexprs)
        fixed = triton_heuristics.config_to_dict(config)
        signature = result.compile_meta["signature"]
        launcher = types.SimpleNamespace(
            config=config,
            bin=binary,
            def_args=[name for name in def_args if name not in fixed],
            call_args=[
                name
                for name in call_args
                if signature.get(name, "constexpr") != "constexpr" and name not in none_args
            ],
            global_scratch=getattr(binary.metadata, "global_scratch_size", None),
            profile_scratch=getattr(binary.metadata, "profile_scratch_size", None),
        )
        self.save_gpu_kernel(0, launcher)
        name, source = self.inductor_meta["kernel_name"], self.fn.src
        made["kernels"][name] = _kernel(name, binary, source)
        product = read_product(source, signature)
        if product is not None:
            made["plain"][name] = product
        template = read_template(source)
        fewer = () if template is None else chooser.fewer(template)
        if fewer:
            made["by_rows"][name] = [
                RowKernel(most, tile, _with_tile(self, f"{name}_to_{most}", tile))
                for most, tile in fewer
            ]

    def define_only(self: Any) -> None:
        """Runs the definitions of the block, which compile the kernels, and not its calls."""
        self.kernel_autotune_calls = IndentedBuffer()
        run_block(self)

    def take(lowered: Any, wrapper: Any, kernels: Any, *_: Any, **__: Any) -> list[str]:
        made["wrapper"] = getattr(wrapper, "value", wrapper)
        made["constants"] = {
            lowered.allocated_constant_name[name]: lowered.get_original_value_of_constant(name)
            for name in lowered.constants
            if name not in lowered.folded_constants
        }
        return [""]

    with (
        patch.object(triton_heuristics.CachingAutotuner, "precompile", compile_first),
        patch.object(
            wrapper_codegen.PythonWrapperCodegen, "generate_and_run_autotune_block", define_only
        ),
        patch.object(codecache.AotCodeCompiler, "compile", staticmethod(take)),
    ):
        yield
