"""Products that cuBLASLt may compute in the place of Triton's kernels.

They are those of a matrix of weights, and at most a bias behind it: whatever else Inductor joined to a product, cuBLASLt
would leave to a kernel of its own. The function that launches such a kernel first asks the runtime, which knows
whether `tune` found cuBLASLt faster for so many rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgecompile.errors import CompileError


@dataclass(frozen=True)
class PlainProduct:
    """``out = rows @ weights.T + bias``, each row-major and without gaps.

    Attributes:
        rows: the expression of its number of rows, of the kernel's arguments.
        columns, depth: its other sizes.
        dtype: the data type of all tensors, as torch's C ABI numbers it.
        bias: the kernel's argument, or "".
        out: the kernel's argument.
    """

    rows: str
    columns: int
    depth: int
    dtype: int
    bias: str
    out: str


#: By the name in a kernel's signature.
_DTYPES = {"*fp32": 6, "*fp16": 5, "*bf16": 15}

#: The template of a product as Inductor fills it in, with nothing joined to it but a bias.
_SOURCE = re.compile(
    r"""    ALLOW_TF32 : tl\.constexpr = (?P<tf32>\w+)
.*?    A = arg_A
    B = arg_B

    M = (?P<rows>[ks\d+* ()]+)
    N = (?P<columns>\d+)
    K = (?P<depth>\d+)
.*?    stride_am = (?P=depth)
    stride_ak = 1
    stride_bk = 1
    stride_bn = (?P=depth)
.*?        idx_n = a_k_idx_vals
        xindex = idx_n \+ (?P=depth)\*idx_m
        a = tl\.load\(A \+ \(xindex\)[^\n]*
\s+idx_m = b_k_idx_vals
        idx_n = offs_b_n\[None, :\]
        xindex = idx_n \+ (?P=columns)\*idx_m
        b = tl\.load\(B \+ \(\(tl\.broadcast_to\(idx_m \+ (?P=depth)\*idx_n, [^\n]*
\s+acc \+= tl\.dot\(a, b, [^\n]*
.*?    # inductor generates a suffix
    xindex = idx_n \+ (?P=columns)\*idx_m
(?:    tmp0 = tl\.load\((?P<bias>\w+) \+ \(tl\.broadcast_to\(idx_n, [^\n]*
    tmp1 = acc \+ tmp0
)?    tl\.store\((?P<out>\w+) \+ \(tl\.broadcast_to\(xindex, \[BLOCK_M, BLOCK_N\]\)\), (?P<value>acc|tmp1), mask\)
*\Z""",
    re.DOTALL,
)


def read_product(source: str, signature: Mapping[str, str]) -> PlainProduct | None:
    """Recognises a plain product in a kernel; None: it computes something else.

    Args:
        source: Triton's.
        signature: types of the kernel's arguments, as Triton writes them.
    """
    match = _SOURCE.search(source)
    if match is None or source.count("arg_A") != 2 or source.count("tl.store") != 1:
        return None
    bias, out = match["bias"] or "", match["out"]
    tensors = ["arg_A", "arg_B", out, *([bias] if bias else [])]
    types = {signature.get(name, "") for name in tensors}
    dtype = _DTYPES.get(types.pop(), 0) if len(types) == 1 else 0
    if not dtype or match["tf32"] != "False" or (match["value"] == "acc") == bool(bias):
        return None
    return PlainProduct(match["rows"], int(match["columns"]), int(match["depth"]), dtype, bias, out)


def offer_product(wrapper: str, name: str, number: int, product: PlainProduct) -> str:
    """The wrapper, which asks the runtime first to compute a product.

    Args:
        wrapper: C++ that launches the kernel.
        name: the name of the kernel.
        number: the number of the matmul in its program.
        product: the matmul that it computes.

    Raises:
        CompileError: torch's Inductor writes wrappers in another way.
    """
    match = re.search(rf"\nstatic [^\n]* void call_{name}\([^{{]*\){{\n", wrapper)
    if match is None:
        raise CompileError(
            "torch's Inductor launches a product in an unknown way",
            hint="this is a defect of edgecompile with this version of torch; please report it",
        )
    pointers = ["arg_A", "arg_B", product.bias, product.out]
    arguments = ", ".join(f"{name}.data_ptr()" if name else "nullptr" for name in pointers)
    sizes = f"{product.rows}, {product.columns}, {product.depth}"
    call = f"    if (ec_cuda_multiply({number}, {product.dtype}, {sizes}, {arguments})) return;\n"
    return wrapper[: match.end()] + call + wrapper[match.end() :]
