"""Everything of torch's and Triton's private API that device_free.py relies on, named one by one.

When one of these fails, torch or Triton have changed: read what became of the name, mend device_free.py, and
then add the version to toolchain/torch_versions.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.utils._triton import has_triton

from edgecompile.backends.cuda.gemm.row_tiles import TileChooser
from edgecompile.backends.cuda.gemm.tiles import Product, Tile
from edgecompile.errors import CompileError
from edgecompile.targets.gpu import GpuFacts
from edgecompile.toolchain.torch_versions import torch_version
from tests.needs import need_triton

need_triton()
from edgecompile.backends.cuda import device_free, gpu_properties, requirements  # noqa: E402
from edgecompile.backends.cuda.kernels.launch import interpreted, launch  # noqa: E402

H100 = GpuFacts(90, 114, 227 << 10, 2048, 50 << 20)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._dynamo.device_interface", "device_interfaces"),
        ("torch._dynamo.device_interface", "get_interface_for_device"),
        ("torch._dynamo.device_interface", "CudaInterface"),
        ("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu"),
        ("torch._inductor.utils", "is_big_gpu"),
        ("torch._inductor.utils", "is_same_tensor"),
        ("torch._inductor.graph", "is_same_tensor"),
        ("torch._inductor.fx_passes.joint_graph", "lazy_init"),
        ("torch._inductor.fx_passes.joint_graph", "UniformValueConstantFolder._deduce_value"),
        (
            "torch._inductor.fx_passes.joint_graph",
            "UniformValueConstantFolder._add_peephole_patterns",
        ),
        ("torch._inductor.scheduler", "Scheduler.check_prologue_fusion_heuristics_fusable"),
        ("torch._inductor.scheduler", "BaseSchedulerNode.get_template_node_or_throw"),
        ("torch._inductor.dependencies", "MemoryDep.normalize"),
        ("torch._inductor.runtime.hints", "DeviceProperties.create.cache_clear"),
        ("torch.utils._triton", "has_triton.cache_clear"),
        ("torch.utils._triton", "triton_backend.cache_clear"),
        ("torch.utils._triton", "triton_hash_with_backend.cache_clear"),
        ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner._precompile_config"),
        ("torch._inductor.runtime.triton_heuristics", "TritonCompileResult._get_arg_lists"),
        ("torch._inductor.runtime.triton_heuristics", "get_constexprs"),
        ("torch._inductor.runtime.triton_heuristics", "config_to_dict"),
        ("torch._inductor.select_algorithm", "add_preprocessing_fn"),
        ("torch._inductor.select_algorithm", "clear_preprocessing_fns"),
        ("torch._inductor.select_algorithm", "TritonTemplate"),
        ("torch._inductor.select_algorithm", "TritonTemplateCaller.info_dict"),
        ("torch._inductor.choices", "InductorChoices._finalize_template_configs"),
        ("torch._inductor.kernel_inputs", "MMKernelInputs.mnk_hinted"),
        ("torch._inductor.codegen.triton", "TritonKernelOverrides.masked"),
        ("torch._inductor.codegen.cpp_wrapper_cpu", "CppWrapperCpu.codegen_cpp_sizevar"),
        ("torch._inductor.graph", "GraphLowering.get_original_value_of_constant"),
        ("triton.backends.nvidia.compiler", "CUDABackend.make_cubin"),
        ("triton.backends.nvidia.compiler", "get_ptxas_version.cache_clear"),
        ("triton.runtime.driver", "driver.set_active"),
        ("triton.runtime.jit", "JITFunction._unsafe_update_src"),
    ],
)
def test_what_is_patched_or_called_is_there(module: str, name: str) -> None:
    found = __import__(module, fromlist=["_"])
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found) or isinstance(found, dict)


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [
        ("torch._inductor.codecache", "AotCodeCompiler.compile",
         "graph wrapper_code kernel_code serialized_extern_kernel_nodes device_type additional_files"),
        ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.precompile",
         "self warm_cache_only reload_kernel static_triton_bundle_key"),
        ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.save_gpu_kernel",
         "self stream launcher"),
        ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.generate_and_run_autotune_block",
         "self"),
        ("torch._inductor.choices", "InductorChoices._finalize_template_configs",
         "self template_choices kernel_inputs templates op_name kwarg_overrides"),
        ("torch._inductor.codegen.triton", "TritonKernelOverrides.masked", "mask body other"),
        ("torch._inductor.codegen.cpp_wrapper_cpu", "CppWrapperCpu._codegen_dynamic_scalar", "self node"),
        ("torch._inductor.ir", "Scan.num_splits",
         "device dtype inner_fn axis pointwise_ranges scan_ranges combine_fn scan_numel"),
        ("triton.backends.nvidia.compiler", "CUDABackend.make_cubin", "self src metadata opt capability"),
    ],
)  # fmt: skip
def test_signatures_are_those_that_stand_ins_have(module: str, name: str, parameters: str) -> None:
    found = __import__(module, fromlist=["_"])
    for part in name.split("."):
        found = getattr(found, part)
    assert list(inspect.signature(found).parameters) == parameters.split()


def test_options_are_inductors() -> None:
    import torch._inductor.config

    for name in gpu_properties.inductor_options():
        found = torch._inductor.config
        for part in name.split("."):
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_everything_is_put_back(tmp_path: Path) -> None:
    import torch._dynamo.device_interface as device_interface
    from triton.runtime.driver import driver

    device_interface.get_interface_for_device("cpu")
    before = dict(device_interface.device_interfaces), torch.cuda.device_count, torch.version.cuda
    with device_free.device_free(H100, tmp_path, requirements.find_ptxas()):
        assert torch.cuda.get_device_capability() == (9, 0)
        assert driver.active.get_current_target().arch == 90
        assert not torch.cuda.is_available()
    after = dict(device_interface.device_interfaces), torch.cuda.device_count, torch.version.cuda
    assert after == before


def exported(module: torch.nn.Module, **inputs: torch.Tensor) -> torch.fx.GraphModule:
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        module.eval(), (), inputs, dynamic_shapes={name: {0: length} for name in inputs}
    )
    return program.module()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 48)
        self.register_buffer("small", torch.tensor([1.0, -2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return torch.nn.functional.linear(y[:, :32], self.linear.weight) + self.small.sum()


def test_a_small_program_becomes_kernels_and_a_wrapper(tmp_path: Path) -> None:
    assert not has_triton()  # torch keeps the answer, which a build for a CPU may have asked for
    module = exported(Net(), x=torch.randn(8, 32))
    weight = module.get_parameter("linear.weight").detach()
    program = device_free.move_to_gpu(module, {"x": torch.randn(8, 32)})
    assert all(node.meta["val"].device == gpu_properties.DEVICE
               for node in module.graph.nodes
               if isinstance(node.meta.get("val"), torch.Tensor))  # fmt: skip
    asked: list[Product] = []

    class Asked(TileChooser):
        def choose(self, products: Sequence[Product], tiles: Sequence[Tile]) -> int:
            asked.extend(products)
            return super().choose(products, tiles)

    raw = device_free.run_inductor(program, H100, Asked(H100), tmp_path, requirements.find_ptxas())
    assert asked and asked[0].n == 48 and asked[0].k == 32 and asked[0].width == 4
    assert torch.equal(raw.constants["linear.weight"], weight)
    assert not any(isinstance(x, torch._subclasses.FakeTensor) for x in raw.constants.values())
    assert raw.kernels and all(".entry" in kernel.ptx for kernel in raw.kernels)
    assert all(kernel.name in raw.wrapper for kernel in raw.kernels)
    assert "AOTInductorModel" in raw.wrapper
    # Nothing of this host: neither in code that ships nor in what the object's key is made of.
    assert str(tmp_path) not in "".join(kernel.ptx for kernel in raw.kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_are_asked_for_at_several_sizes_and_those_in_half_with_our_tiles(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    x = torch.randn(8, 32).to(dtype)
    program = device_free.move_to_gpu(exported(Net().to(dtype), x=x), {"x": x})
    asked: list[list[int]] = []
    narrow: list[bool] = []

    class Asked(TileChooser):
        def choose(self, products: Sequence[Product], tiles: Sequence[Tile]) -> int:
            asked.append([product.m for product in products])
            narrow.append(any(tile.n == 16 for tile in tiles))  # none of torch's is
            return super().choose(products, tiles)

    device_free.run_inductor(program, H100, Asked(H100), tmp_path, requirements.find_ptxas())
    assert asked and all(rows == [8, 22, 64] for rows in asked)
    assert all(found == (dtype == torch.float16) for found in narrow)


@pytest.mark.parametrize(("width", "warps"), [(384, 1), (768, 2), (1024, 2)])
def test_a_line_is_reduced_by_few_warps(tmp_path: Path, width: int, warps: int) -> None:
    x = torch.randn(8, width)
    program = device_free.move_to_gpu(exported(torch.nn.LayerNorm(width), input=x), {"input": x})
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    assert [kernel.num_warps for kernel in raw.kernels] == [warps]


def test_tiles_of_products_are_offered_where_they_are_replaced() -> None:
    heuristics = importlib.import_module(torch_version().tile_heuristics)
    names = list(inspect.signature(heuristics.BaseConfigHeuristic.preprocess_mm_configs).parameters)
    assert names[:5] == ["self", "m", "n", "k", "configs"] and "dtype_size" in names
    config = heuristics.GemmConfig(64, 32, 128, 4, 2)
    fields = (config.block_m, config.block_n, config.block_k, config.num_stages, config.num_warps)
    assert fields == (64, 32, 128, 4, 2)


class Asking(torch.nn.Module):
    """What torch decomposes by methods that ask for the device, and a constant of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.5]))
        self.table = torch.nn.Parameter(torch.randn(1, 4, 4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 1::2] = x[:, ::2]
        y = torch.where(torch.logical_not(x > 0), x, y) * self.scale
        positions = self.table.permute(0, 3, 1, 2)
        y = torch.roll(y, -2, 1) + torch.nn.functional.unfold(positions, 3, padding=1).sum()
        return y + torch.nn.functional.interpolate(positions, size=(6, 6), mode="bicubic").sum()


def test_no_method_asks_for_the_device(tmp_path: Path) -> None:
    program = device_free.move_to_gpu(
        exported(Asking(), x=torch.randn(8, 32)), {"x": torch.randn(8, 32)}
    )
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    # The number stands in the code.
    assert set(raw.constants) == {"table"} and raw.kernels
    assert torch.Tensor.contiguous is torch._C.TensorBase.contiguous
    assert torch.Tensor.__getitem__ is torch._C.TensorBase.__getitem__


class Pool(torch.nn.Module):
    """A pool over images of one pixel, which the kernel before it could hand over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x / x.sum(1, keepdim=True)
        return torch.nn.functional.avg_pool2d(y[:, :, None, None], 3, 1, 1)


def test_zeros_around_a_value_at_hand_stay_zeros(tmp_path: Path) -> None:
    x = torch.rand(8, 16)
    program = device_free.move_to_gpu(exported(Pool(), x=x), {"x": x})
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    (kernel,) = raw.kernels
    # The kernel itself, in Triton's interpreter.
    file = tmp_path / "pool.py"
    source = kernel.source[kernel.source.index("def ") :]
    file.write_text(f"import triton\nimport triton.language as tl\n\n@triton.jit\n{source}")
    spec = importlib.util.spec_from_file_location("pool", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    y = torch.full((8, 16), torch.nan)
    assert re.findall(r"(\w+_ptr)", source.partition(")")[0]) == ["in_out_ptr", "in_ptr"]
    with interpreted():
        launch(getattr(module, kernel.entry), (8,), y, x, 8, 16, reach=(128,), XBLOCK=1)
    assert (y - x / x.sum(1, keepdim=True) / 9).abs().max().item() <= 1e-7


class Zeros(torch.nn.Module):
    """A product with an operand that is one number everywhere, and a product with zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.zeros(x.shape[0], 32)) + x[:, :1] * 0


def test_constant_operands_are_compiled(tmp_path: Path) -> None:
    x = torch.rand(40, 32)
    program = device_free.move_to_gpu(exported(Zeros(), x=x), {"x": x})
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    assert any("tl.dot" in kernel.source for kernel in raw.kernels)


class Permuted(torch.nn.Module):
    """A linear of rows whose first two dimensions change places before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.transpose(0, 1).reshape(-1, 64))


@pytest.mark.parametrize(("varying", "apart"), [(0, True), (1, False), (None, False)])
def test_a_product_divides_no_address_by_a_varying_size(
    tmp_path: Path, varying: int | None, apart: bool
) -> None:
    x = torch.randn(40, 32, 64, dtype=torch.float16)
    dims = None if varying is None else {varying: torch.export.Dim("n", min=2, max=64)}
    module = torch.export.export(
        Permuted().half(), (), {"x": x}, dynamic_shapes={"x": dims}, strict=False
    ).module()
    program = device_free.move_to_gpu(module, {"x": x})  # type: ignore[arg-type]
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    copies = [kernel.name for kernel in raw.kernels if "tl.dot" not in kernel.source]
    assert bool(copies) == apart, copies


class RunningSum(torch.nn.Module):
    """Few lines, so long that Inductor would have several blocks of threads share each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lines = x.reshape(x.shape[0], 256, 2).permute(2, 0, 1)
        return torch.cumsum(lines[..., None].expand(-1, -1, -1, 16) * 2, 2)


def test_running_sums_are_not_divided(tmp_path: Path) -> None:
    x = torch.rand(4, 512)
    program = device_free.move_to_gpu(exported(RunningSum(), x=x), {"x": x})
    raw = device_free.run_inductor(
        program, H100, TileChooser(H100), tmp_path, requirements.find_ptxas()
    )
    (kernel,) = raw.kernels
    assert "associative_scan" in kernel.source and "lookback" not in kernel.source


def test_a_constant_that_nobody_knows_is_a_defect() -> None:
    with pytest.raises(CompileError, match="made the constant x"):
        device_free._real(None, "x")
