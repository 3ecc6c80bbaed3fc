"""Changes to Inductor while it generates code for a GPU: a product's tile, the range of a number that is read
from the GPU, the warps that reduce a line, and two mistakes.

One mistake: what stands outside a tensor is read as a load with a mask, such as a pool's zeros around an image.
Where the tensor was made by the same kernel, Inductor takes the value at hand and forgets the mask; in an image
of one pixel all nine places of a window then count as that pixel.

The other: a running sum that it would divide among several blocks of threads fails if it then tiles the dimensions
around it by two ("Unexpected tiling"). So one block goes through each line.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sympy import Integer, sympify  # type: ignore[import-untyped]
from torch._inductor import ir, lowering, select_algorithm
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.triton import TritonKernelOverrides
from torch._inductor.runtime.hints import HeuristicType, ReductionHint
from torch._inductor.virtualized import V
from torch._inductor.virtualized import _ops as ops

from edgecompile.backends.cuda.gemm.row_tiles import TileChooser, read_template
from edgecompile.backends.cuda.gemm.tiles import FP8_TILES, PRODUCT_TILES, Product, Tile
from edgecompile.backends.cuda.number_ranges import number_range
from edgecompile.toolchain.torch_versions import torch_version

aten = torch.ops.aten
#: Values of a reduced line for each warp.
_LINE_OF_A_WARP = 32 * 16

_masked: Callable[..., Any] = TritonKernelOverrides.masked
_tiles: Any = importlib.import_module(torch_version().tile_heuristics)
_configurations: Callable[..., Any] = _tiles.BaseConfigHeuristic.preprocess_mm_configs
_falls_back: Callable[..., Any] = lowering.use_scatter_fallback
_splits: Callable[..., Any] = ir.Scan.num_splits
_dynamic_scalar: Callable[..., Any] = CppWrapperCpu._codegen_dynamic_scalar


def _keep_mask(mask: Any, body: Any, other: Any) -> Any:
    result = _masked(mask, body, other)
    at_hand = V.kernel.cse.store_cache
    outputs = [arg for node in body.graph.find_nodes(op="output") for arg in node.args]
    if not any(arg.target == "load" and arg.args[1] in at_hand for arg in outputs):
        return result
    return ops.where(mask, result, ops.constant(other, result.dtype))


def _offer_tiles(
    self: Any, m: Any, n: Any, k: Any, configs: Any, *args: Any, **options: Any
) -> Any:
    """In half precision and fp8 our tiles in the place of Inductor's; it cuts all of them to the product's rows."""
    tiles = {1: FP8_TILES, 2: PRODUCT_TILES}.get(options.get("dtype_size", 0))
    if tiles is not None and configs is self.mm_configs:
        configs = [_tiles.GemmConfig(t.m, t.n, t.k, t.stages, t.warps) for t in tiles]
    return _configurations(self, Integer(_largest(m)), n, k, configs, *args, **options)


def _largest(size: Any) -> int:
    """The most that a size may be; its hint where that has no end."""
    sizevars = V.graph.sizevars
    upper = sizevars.shape_env.bound_sympy(sympify(size)).upper
    return int(upper) if upper.is_Integer else int(sizevars.optimization_hint(size))


def _never_split(cls: Any, *args: Any, **options: Any) -> tuple[Any, int]:
    hint, _ = _splits(*args, **options)
    return hint, 1


def _expect_number(self: Any, node: Any) -> None:
    """Says first what an integer may be: memory is planned for it before it is known."""
    if node.sym.is_integer:
        factor = math.prod(getattr(key, "divisor", 1) for key in node.keypath)
        ends = number_range(V.graph.sizevars.shape_env, node.sym)
        least, most = (self.codegen_cpp_sizevar(factor * end) for end in ends)
        self.writeline(f"ec_cuda_expect_number({least}, {most});")
    _dynamic_scalar(self, node)


def configuration(tuner: Any) -> Any:
    """The options for compiling a kernel: as Inductor would, but for the warps where each block reduces one line.

    A thread takes 16 values. Inductor's eight warps for a line of 768 take up to 1.5 times the time for thousands of
    lines on an H200, and as long for few.
    """
    config = tuner.configs[0]
    meta = tuner.inductor_meta
    if (
        tuner.heuristic_type is not HeuristicType.PERSISTENT_REDUCTION
        or meta.get("reduction_hint") is not ReductionHint.INNER
        or config.kwargs != {"XBLOCK": 1}
    ):
        return config
    config = copy.copy(config)
    config.num_warps = min(config.num_warps, max(1, tuner.size_hints["r0_"] // _LINE_OF_A_WARP))
    return config


def round_each_step(tuner: Any) -> None:
    """Keeps products and sums of a kernel apart if it divides exactly: its quotients decide something.

    One instruction for both rounds once, which may give another quotient. Templates stay as they are: a float32 product
    is made of such instructions.
    """
    if "div_rn(" in tuner.fn.src and read_template(tuner.fn.src) is None:
        tuner.triton_meta["enable_fp_fusion"] = False


def _scatter_falls_back(operator: Any, reduction: str | None, *args: Any) -> bool:
    """Whether a scatter is left to a kernel of torch: not one that only writes, whatever its type.

    Inductor takes one of whole numbers for a sum, for which there is no atomic instruction.
    """
    plain = reduction is None and operator.overloadpacket is aten.scatter_
    return not plain and bool(_falls_back(operator, reduction, *args))


#: What to put in the place of which attribute.
PATCHES = (
    (TritonKernelOverrides, "masked", staticmethod(_keep_mask)),
    (ir.Scan, "num_splits", classmethod(_never_split)),
    (_tiles.BaseConfigHeuristic, "preprocess_mm_configs", _offer_tiles),
    (CppWrapperCpu, "_codegen_dynamic_scalar", _expect_number),
    (lowering, "use_scatter_fallback", _scatter_falls_back),
)


@contextmanager
def choosing(chooser: TileChooser) -> Iterator[None]:
    """Has ``chooser`` decide what is otherwise timed.

    Of products before their templates are filled in, which takes long; of convolutions behind.
    """

    class Choices(InductorChoices):
        def _finalize_template_configs(
            self, template_choices: Any, kernel_inputs: Any, *args: Any, **kwargs: Any
        ) -> list[Any]:
            offered = super()._finalize_template_configs(
                template_choices, kernel_inputs, *args, **kwargs
            )
            templates = [
                c for c in offered if isinstance(c.template, select_algorithm.TritonTemplate)
            ]
            if len(templates) < 2:
                return templates or offered
            products = _products(kernel_inputs)
            tiles = [Tile.from_options(choice.params.to_kwargs()) for choice in templates]
            best = templates.pop(chooser.choose(products, tiles))
            tiles = [Tile.from_options(choice.params.to_kwargs()) for choice in templates]
            # The next best stands by in case that the template refuses the best.
            return [best, templates[chooser.choose(products, tiles)]]

    def pick(choices: list[Any]) -> list[Any]:
        templates = [c for c in choices if type(c) is select_algorithm.TritonTemplateCaller]
        if not templates or "convolution" not in templates[0].name:
            return templates[:1] or choices
        tiles = [Tile.from_facts(choice.info_dict()) for choice in templates]
        return [templates[chooser.choose([_convolution(templates[0])], tiles)]]

    select_algorithm.add_preprocessing_fn(pick)
    try:
        with V.set_choices_handler(Choices()):
            yield
    finally:
        select_algorithm.clear_preprocessing_fns()


def _products(inputs: Any) -> list[Product]:
    """The sizes of a product: those of the hints, and where they vary the largest ones, too, and those between."""
    first, sizevars = inputs.nodes()[inputs._mat1_idx], V.graph.sizevars
    width = first.get_dtype().itemsize

    def sizes(size_of: Callable[[Any], int]) -> list[int]:
        batch = math.prod(map(size_of, first.get_size()[:-2]))
        return [*map(size_of, inputs.mnk_symbolic()), batch]

    hints, most = sizes(sizevars.optimization_hint), sizes(_largest)
    between = [math.isqrt(a * b) for a, b in zip(hints, most, strict=True)]
    products = [Product(m, n, k, b, width) for m, n, k, b in (hints, between, most)]
    return products[:1] if hints == most else products


def _convolution(choice: Any) -> Product:
    hint = V.graph.sizevars.optimization_hint
    sizes = [hint(size) for size in choice.layout.size]
    depth = math.prod(hint(size) for size in choice.input_nodes[1].get_size()[1:])
    return Product(math.prod(sizes) // sizes[1], sizes[1], depth, 1, choice.layout.dtype.itemsize)
