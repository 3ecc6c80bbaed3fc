"""PTX to code for certain GPUs, by ptxas, which runs on any host; and the audit of the result."""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgecompile.audit.judge import AuditVerdict, Finding
from edgecompile.backends.cuda.requirements import find_ptxas, run_assembler
from edgecompile.backends.cuda.source import Kernel
from edgecompile.errors import CompileError, ToolchainError
from edgecompile.files import plain_fields
from edgecompile.targets.gpu import GpuFacts

#: Code of a major release of CUDA runs on drivers of the same one, the oldest included, and of later ones.
LEAST_DRIVER = 12000
#: Bytes that a thread may spill to local memory: what a few registers' worth costs is less than what a
#: smaller tile would.
MOST_SPILLED = 64

_MAGIC = b"ECUBIN1\0"
#: Of an image's architecture: it is PTX, for that one and later ones.
_PTX = 1 << 31
#: Of an image's flags: it waits for the kernel ahead of it.
_WAITS = 1
#: From this architecture on a kernel may be put in place before the one ahead of it has ended.
_OVERLAPPING = 90
_ALIGNMENT = 16

_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
#: Instructions of tensor cores, in PTX and in machine code.
_TENSOR_PTX = re.compile(r"^\s*(?:@%p\d+ )?(?:mma\.sync|wgmma\.mma_async)", re.MULTILINE)
_TENSOR_CODE = re.compile(r"\b[HIQBD]G?MMA\b")
_DOT = re.compile(r"\btl\.dot\(")


@dataclass(frozen=True)
class Image:
    """Code of a kernel for one architecture.

    Attributes:
        arch: such as 87.
        code: a cubin.
        registers: the registers of a thread.
        spilled: bytes that a thread stores to and loads from local memory for want of registers.
        static_shared: bytes of shared memory beside what the launch asks for.
    """

    arch: int
    code: bytes
    registers: int
    spilled: int
    static_shared: int


@dataclass(frozen=True)
class Assembled:
    """A kernel in every form that is shipped.

    Attributes:
        kernel: the kernel that it was made from.
        images: the images for the architectures that were asked for.
        ptx: the PTX for later ones; None where the code is for one architecture alone.
        ptx_arch: the least architecture for it.
    """

    kernel: Kernel
    images: tuple[Image, ...]
    ptx: str | None
    ptx_arch: int

    def container(self) -> bytes:
        """All images as one file, from which the runtime takes the one that fits its device.

        ``ECUBIN1\\0``, u32 count, u32 0, count times {u32 arch, u32 flags, u64 offset, u64 size}, the
        images, each at a multiple of 16 bytes; PTX ends with a zero byte.
        """
        parts = [(image.arch, image.code) for image in self.images]
        if self.ptx is not None:
            parts.append((self.ptx_arch | _PTX, self.ptx.encode() + b"\0"))
        head, body = bytearray(_MAGIC + struct.pack("<II", len(parts), 0)), bytearray()
        start = _aligned(len(head) + 24 * len(parts))
        for arch, code in parts:
            flags = _WAITS if arch & ~_PTX >= _OVERLAPPING else 0
            head += struct.pack("<IIQQ", arch, flags, start + len(body), len(code))
            body += code.ljust(_aligned(len(code)), b"\0")
        return bytes(head).ljust(start, b"\0") + bytes(body)

    def to_json(self) -> dict[str, Any]:
        """The kernel's facts for a report."""
        images = []
        for image in self.images:
            facts = plain_fields(image)
            facts["bytes"] = len(facts.pop("code"))
            images.append(facts)
        return {
            "name": self.kernel.name,
            "warps": self.kernel.num_warps,
            "shared_memory": self.kernel.shared_memory,
            "images": images,
            "ptx": None if self.ptx is None else self.ptx_arch,
        }


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def assemble(
    kernels: Sequence[Kernel], archs: Sequence[int], ptxas: Path, *, ptx: bool = True
) -> tuple[Assembled, ...]:
    """Assembles kernels for architectures.

    Args:
        kernels: the kernels from Inductor.
        archs: such as 87; none older than what the PTX is for.
        ptxas: the assembler.
        ptx: whether to ship PTX for later architectures, where it can serve them.

    Raises:
        CompileError: the assembler refuses a kernel.
    """
    texts = [_plain_target(kernel.ptx) for kernel in kernels]
    jobs = [
        (kernel, text, arch)
        for kernel, (text, _, _) in zip(kernels, texts, strict=True)
        for arch in archs
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        images = list(pool.map(lambda job: _assemble(job[0], job[1], job[2], ptxas), jobs))
    result = []
    for index, (kernel, (text, least, later)) in enumerate(zip(kernels, texts, strict=True)):
        own = tuple(images[index * len(archs) : (index + 1) * len(archs)])
        shipped = _waiting(text, least) if ptx and later else None
        result.append(Assembled(kernel, own, shipped, least))
    return tuple(result)


def _plain_target(ptx: str) -> tuple[str, int, bool]:
    """PTX for its architecture and later ones, that architecture, and whether later ones do take it.

    Triton calls every Hopper ``sm_90a``, which no other GPU runs; the instructions of that one alone
    are few, and most kernels have none.
    """
    match = re.search(r"^\.target sm_(\d+)(a?)", ptx, re.MULTILINE)
    if match is None:
        raise CompileError("Triton's code names no target")
    if not match[2] or re.search(r"\b(?:wgmma|setmaxnreg)\.", ptx):
        return ptx, int(match[1]), not match[2]
    start, end = match.span()
    return f"{ptx[:start]}.target sm_{match[1]}{ptx[end:]}", int(match[1]), True


def _waiting(ptx: str, arch: int) -> str:
    """PTX of a kernel that waits for the one ahead of it, so that the driver may put it in place before that ends.

    Each waits before it reads or writes anything, so all that ran before the one ahead has ended, too. See
    "griddepcontrol" in NVIDIA's PTX ISA. That the next kernel is let in early, too, gained nothing.

    Args:
        ptx: the PTX with one entry.
        arch: the architecture that it is for; before 90 it stays as it is.

    Raises:
        CompileError: Triton writes PTX in another way.
    """
    if arch < _OVERLAPPING:
        return ptx
    ptx, count = _BODY.subn(r"\1\tgriddepcontrol.wait;\n", ptx)
    if count != 1:
        raise CompileError("Triton's code begins in an unknown way")
    return _OLD_TARGET.sub(f".target sm_{_OVERLAPPING}", ptx)


#: What stands before the first instruction: the entry's parameters, sizes, and registers.
_BODY = re.compile(
    r"(^\.visible \.entry [^{]*\{\n(?:[ \t]*\.(?:reg|local|shared)\b.*\n)*)", re.MULTILINE
)
_OLD_TARGET = re.compile(r"^\.target sm_[1-8]\d\b", re.MULTILINE)


def _assemble(kernel: Kernel, text: str, arch: int, ptxas: Path) -> Image:
    exact = re.search(r"^\.target sm_\d+a", text, re.MULTILINE) is not None
    text = _waiting(text, arch)
    with tempfile.TemporaryDirectory(prefix="edgecompile-ptxas-") as name:
        source, output = Path(name) / "kernel.ptx", Path(name) / "kernel.cubin"
        source.write_text(text)
        command = [str(ptxas), "-v", "--regAllocOptLevel=2", f"--gpu-name=sm_{arch}{'a' * exact}"]
        log = run_assembler([*command, str(source), "-o", str(output)], kernel.name)
        code = output.read_bytes()
    used, spilled = _USED.search(log), _SPILLED.search(log)
    return Image(
        arch,
        code,
        int(used[1]) if used else 0,
        max(int(spilled[2]), int(spilled[3])) if spilled else 0,
        int(used[2] or 0) if used else 0,
    )


def audit_kernels(
    assembled: Sequence[Assembled], gpu: GpuFacts, target: str, private: Sequence[str] = ()
) -> AuditVerdict:
    """Judges kernels for a target: their architecture, memory, tensor cores, and what they give away.

    Args:
        assembled: the kernels.
        gpu: the GPU that they have to run on.
        target: its name.
        private: texts, such as folders of this host, that no kernel may hold.
    """
    findings: list[Finding] = []
    for item in assembled:
        kernel = item.kernel
        products = bool(_TENSOR_PTX.search(kernel.ptx))
        if _DOT.search(kernel.source) and not products and "fp32" not in kernel.source:
            what = f"{kernel.name} multiplies matrices without tensor cores"
            findings.append(Finding("note", "tensor-cores", what))
        for image in item.images:
            where = f"{kernel.name} for sm_{image.arch}"
            if _arch_of(image.code) != image.arch:
                what = f"{where} is code for sm_{_arch_of(image.code)}"
                findings.append(Finding("error", "architecture", what, "check which ptxas ran"))
            shared = kernel.shared_memory + image.static_shared
            if shared > gpu.shared_memory:
                what = f"{where} wants {shared} bytes of shared memory, a block has {gpu.shared_memory}"
                cure = "a smaller tile or fewer stages fit"
                findings.append(Finding("error", "shared-memory", what, cure))
            if image.spilled > MOST_SPILLED:
                what = f"{where} spills {image.spilled} bytes a thread with {image.registers} registers"
                findings.append(Finding("warning", "spills", what, "a smaller tile needs fewer"))
            if products and not _has_tensor_code(image.code):
                what = f"{where} has no instruction of the tensor cores, its PTX has"
                findings.append(Finding("error", "tensor-cores", what, "check which ptxas ran"))
            if image.registers * 32 * kernel.num_warps > 65536:
                what = f"{where} needs more registers than a multiprocessor has"
                findings.append(Finding("error", "registers", what, "fewer warps need fewer"))
        held = item.container()
        named = [text for text in private if text.encode() in held]
        if named:
            what = f"{kernel.name} names folders of the build host: {', '.join(named)}"
            findings.append(
                Finding("error", "paths", what, "TRITON_DISABLE_LINE_INFO=1 drops them")
            )
    order = {"error": 0, "warning": 1, "note": 2}
    archs = sorted({image.arch for item in assembled for image in item.images})
    name = ", ".join(f"sm_{arch}" for arch in archs)
    ordered = tuple(sorted(findings, key=lambda finding: order[finding.severity]))
    return AuditVerdict("kernels", name, target, ordered, machine=name)


def _arch_of(cubin: bytes) -> int:
    """The architecture of a cubin: of the flags of its ELF header the second byte from ABI 8 on, the
    first of older ones, which CUDA 12 writes with both alike."""
    if cubin[:4] != b"\x7fELF":
        return 0
    flags: int = struct.unpack_from("<I", cubin, 48)[0]
    return flags & 0xFF


@lru_cache(maxsize=256)
def _has_tensor_code(cubin: bytes) -> bool:
    """Whether a cubin has an instruction of the tensor cores, by NVIDIA's disassembler if it is there."""
    try:
        disassembler = find_ptxas().with_name("nvdisasm")
    except ToolchainError:
        return True
    if not os.access(disassembler, os.X_OK):
        return True
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return bool(_TENSOR_CODE.search(run_assembler([str(disassembler), file.name])))
