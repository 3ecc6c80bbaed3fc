"""PTX to machine code, the containers that hold it, and the audit of it."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgecompile.backends.cuda.library import assembly
from edgecompile.errors import CompileError, ToolchainError
from edgecompile.targets.gpu import GpuFacts
from tests.needs import need_triton

need_triton()
from edgecompile.backends.cuda.cubins import (  # noqa: E402
    MOST_SPILLED,
    Assembled,
    Image,
    assemble,
    audit_kernels,
)
from edgecompile.backends.cuda.requirements import find_ptxas, ptxas_version, run_assembler  # noqa: E402
from edgecompile.backends.cuda.source import Kernel  # noqa: E402

ORIN = GpuFacts(87, 8, 163 << 10, 1536, 2 << 20)
PTX = """.version {version}
.target {target}
.address_size 64
.visible .entry add(.param .u64 p)
{{
  .reg .b64 %rd<3>;
  .reg .f32 %f<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.f32 %f1, [%rd2];
  add.f32 %f2, %f1, 0f3F800000;
  st.global.f32 [%rd2], %f2;
  {more}
  ret;
}}
"""


def kernel(target: str = "sm_80", version: str = "8.0", more: str = "", source: str = "") -> Kernel:
    ptx = PTX.format(target=target, version=version, more=more)
    return Kernel("add_0", "add", ptx, 4, 1024, source)


def parse(container: bytes) -> list[tuple[int, bytes]]:
    """A container's images as the runtime's contract has it; those for Hopper and later ones wait."""
    assert container[:8] == b"ECUBIN1\0"
    count, zero = struct.unpack_from("<II", container, 8)
    assert zero == 0
    images = []
    for index in range(count):
        arch, flags, offset, size = struct.unpack_from("<IIQQ", container, 16 + 24 * index)
        assert offset % 16 == 0 and offset + size <= len(container)
        assert flags == (1 if arch & 0xFF >= 90 else 0)
        images.append((arch, container[offset : offset + size]))
    return images


def test_code_for_several_architectures_and_ptx_for_later_ones() -> None:
    (made,) = assemble([kernel()], [80, 87, 90], find_ptxas())
    images = parse(made.container())
    assert [arch for arch, _ in images] == [80, 87, 90, 80 | 1 << 31]
    assert all(code[:4] == b"\x7fELF" for _, code in images[:3])
    assert images[3][1] == made.kernel.ptx.encode() + b"\0"
    assert {image.spilled for image in made.images} == {0}
    assert all(image.registers >= 4 for image in made.images)
    assert audit_kernels([made], ORIN, "mine").findings == ()


def test_no_ptx_where_no_later_gpu_will_run_it() -> None:
    (made,) = assemble([kernel()], [87], find_ptxas(), ptx=False)
    assert made.ptx is None
    assert [arch for arch, _ in parse(made.container())] == [87]


def test_the_same_ptx_gives_the_same_bytes() -> None:
    first, second = (assemble([kernel()], [87], find_ptxas())[0].container() for _ in range(2))
    assert first == second


def test_ptx_that_only_calls_itself_hoppers_serves_later_gpus() -> None:
    (made,) = assemble([kernel("sm_90a")], [90], find_ptxas())
    assert made.ptx is not None and ".target sm_90\n" in made.ptx
    fenced = kernel("sm_90a", more="setmaxnreg.dec.sync.aligned.u32 40;")
    (made,) = assemble([fenced], [90], find_ptxas())
    assert made.ptx is None
    assert [arch for arch, _ in parse(made.container())] == [90]


def test_kernels_for_hopper_wait_for_the_one_ahead_before_anything_else() -> None:
    (made,) = assemble([kernel("sm_90a")], [90], find_ptxas())
    assert made.ptx is not None
    head, body = made.ptx.split("griddepcontrol.wait;")
    assert head.endswith(".reg .f32 %f<3>;\n\t") and "ld.param" in body
    # The instruction is one of the machine code, too, where older GPUs' lack it.
    (both,) = assemble([kernel()], [80, 90], find_ptxas())
    old, new = both.images
    assert len(new.code) > 0 and disassembled(new.code).count("ACQBULK") == 1
    assert "ACQBULK" not in disassembled(old.code)
    assert both.ptx == kernel().ptx
    broken = replace(
        kernel("sm_90a"), ptx=kernel("sm_90a").ptx.replace(".visible .entry", ".entry")
    )
    with pytest.raises(CompileError, match="begins in an unknown way"):
        assemble([broken], [90], find_ptxas())


def disassembled(cubin: bytes) -> str:
    tool = find_ptxas().with_name("nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return run_assembler([str(tool), file.name])


def test_jetpacks_assembler_takes_ptx_of_its_version() -> None:
    ptxas = find_ptxas("12.6")
    assert ptxas_version(ptxas) == "V12.6.85"
    assert assemble([kernel(version="8.5")], [87], ptxas)[0].images[0].arch == 87
    with pytest.raises(CompileError, match=r"refuses the kernel add_0[\s\S]*8\.7"):
        assemble([kernel(version="8.7")], [87], ptxas)


def test_an_unknown_assembler_is_named() -> None:
    with pytest.raises(ToolchainError, match=r"no ptxas of CUDA 10\.1 is known"):
        find_ptxas("10.1")


def judged(made: Assembled, *private: str, gpu: GpuFacts = ORIN) -> dict[str, str]:
    verdict = audit_kernels([made], gpu, "mine", private)
    return {finding.rule: finding.severity for finding in verdict.findings}


def test_the_audit_refuses_what_does_not_fit() -> None:
    (made,) = assemble([kernel()], [87], find_ptxas())
    image = made.images[0]
    assert judged(replace(made, images=(replace(image, arch=90),))) == {"architecture": "error"}
    large = replace(made, kernel=replace(made.kernel, shared_memory=200 << 10))
    assert judged(large) == {"shared-memory": "error"}
    spilling = replace(made, images=(replace(image, spilled=MOST_SPILLED + 4),))
    assert judged(spilling) == {"spills": "warning"}
    assert judged(replace(made, images=(replace(image, registers=1024),))) == {"registers": "error"}
    assert judged(made, "add.f32") == {"paths": "error"}


def test_products_have_to_reach_the_tensor_cores() -> None:
    (made,) = assemble([kernel()], [87], find_ptxas())
    claims = replace(made.kernel, ptx=made.kernel.ptx + "\nmma.sync.aligned.m16n8k16\n")
    assert judged(replace(made, kernel=claims)) == {"tensor-cores": "error"}
    plain = replace(made.kernel, source="acc = tl.dot(a, b)  # fp16")
    assert judged(replace(made, kernel=plain)) == {"tensor-cores": "note"}


def test_the_assembly_text_holds_each_container_at_its_symbol(tmp_path: Path) -> None:
    made = Assembled(kernel(), (Image(87, b"\x7fELF-code", 4, 0, 0),), None, 87)
    text = assembly([made])
    assert "__add_0_start:" in text and ".hidden __add_0_start" in text
    words = [int(word, 16) for line in text.splitlines() if line.startswith(".quad")
             for word in line.removeprefix(".quad ").split(",")]  # fmt: skip
    data = struct.pack(f"<{len(words)}Q", *words)
    assert data[: len(made.container())] == made.container()
