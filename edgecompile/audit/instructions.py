"""Finds the instruction sets that a library's machine code uses, by disassembling it.

The evidence works in one direction: an instruction that was seen is there. One that was not seen
may still be, as data between functions can throw a disassembler off, and the patterns below name
the families that compilers emit, not every mnemonic.
"""

from __future__ import annotations

import bisect
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgecompile.audit.elf import read_functions
from edgecompile.errors import ElfError
from edgecompile.files import plain_fields

# Mnemonics or operands that betray a feature, by architecture; features as the probe names them.
# What needs the EVEX encoding: wide, masked or upper registers, and mnemonics that have no other.
_X86_EVEX = (
    r"zmm\d|%k[0-7]\b|[xy]mm(?:1[6-9]|2\d|3[01])\b"
    r"|\tv(?:align[dq]|cvt[a-z0-9]*(?:udq|qq)[a-z0-9]*|expandp|compressp|getexp|getmant|fixupimm"
    r"|perm[it]2|rndscale|scalef|reduce|range|rcp14|rsqrt14|pternlog|pmullq|pabsq|psraq|pro[lr]v?[dq]"
    r"|pm(?:in|ax)[su]q|popcnt|pconflict|plzcnt|mov(?:dqu|dqa)(?:8|16|32|64)|p(?:and|or|xor)n?[dq]"
    r"|pmov[qdw][bwd]|(?:broadcast|extract|insert)[fi](?:32x|64x))"
)
_PATTERNS: Mapping[str, Mapping[str, str]] = {
    "x86-64": {
        "sse3": r"\t(?:addsubp|haddp|hsubp|lddqu|movddup|movs[hl]dup|fisttp)",
        "ssse3": r"\t(?:pabs[bwd]|palignr|ph(?:add|sub)(?:s?w|d)|pmaddubsw|pmulhrsw|pshufb|psign)",
        "sse4_1": r"\t(?:round[ps][sd]|p?blend|pm(?:in|ax)(?:sb|uw|sd|ud)|pmul(?:ld|dq)|insertps|dpp[sd]"
        r"|extractps|pextr[bdq]|pinsr[bdq]|pcmpeqq|pmov[sz]x|packusdw|phminposuw|ptest|mpsadbw|movntdqa)",
        "sse4_2": r"\t(?:pcmpgtq|pcmp[ei]str|crc32)",
        "popcnt": r"\tpopcnt",
        "cx16": r"\bcmpxchg16b",
        "lahf": r"\t[ls]ahf",
        "aes": r"\tv?aes(?:enc|dec|imc|keygen)",
        "pclmulqdq": r"\tv?pclmul",
        "sha_ni": r"\tsha(?:1|256)",
        "gfni": r"\tv?gf2p8",
        "adx": r"\tad[co]x",
        # All but the few system instructions that begin with a v, too.
        "avx": r"\tv(?!err|erw|m(?:call|launch|resume|xo|ptr|read|write|clear|func))[a-z]",
        "avx2": r"\tv(?:p[a-z0-9]+|extracti128|inserti128|gather[a-z]+)\b[^\n]*ymm\d|\tvpgather",
        "f16c": r"\tvcvt(?:ph2ps|ps2ph)\b",
        "fma": r"\tvfn?m(?:add|sub)(?:add|sub)?\d{3}",
        "bmi1": r"\t(?:andn|bextr|blsi|blsmsk|blsr)\b",
        "bmi2": r"\t(?:bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)\b",
        "lzcnt": r"\tlzcnt",
        "movbe": r"\tmovbe",
        "avx512f": _X86_EVEX,
        "avx512_bf16": r"\t(?:vdpbf16ps|vcvtne2?ps2bf16)",
        "avx512_fp16": r"\tv(?:add|mul|sub|div|fmadd\d{3}|fmsub\d{3})[ps]h\b",
        "amx_tile": r"%tmm\d|\tldtilecfg|\ttilerelease",
        "amx_bf16": r"\ttdpbf16ps",
        "amx_int8": r"\ttdpb(?:ss|su|us|uu)d",
        # Two encodings of one mnemonic: GNU objdump marks the VEX one.
        "avx_vnni": r"\t\{vex\} vpdp(?:bus|wss)ds?",
        "avx512_vnni": r"\tvpdp(?:bus|wss)ds?",
    },
    "aarch64": {
        "asimddp": r"\t[su]dot\tv",
        "asimdhp": r"\tf(?!cvt)[a-z0-9]+\tv\d+\.[48]h",
        "i8mm": r"\t(?:su|us)dot\t|\t(?:s|u|us)mmla\t",
        "bf16": r"\tbf(?:dot|mmla|mlal[bt]|cvt[a-z0-9]*)\t",
        "sve": r"\b[zp]\d+\.[bhsd]\b|\tptrue\t|\twhilel[eot]\t|\tcnt[bhwd]\t",
        "atomics": r"\t(?:cas|swp|(?:ld|st)(?:add|clr|set|eor|[su](?:max|min)))p?a?l?[bh]?\t",
        "crc32": r"\tcrc32",
        "asimdrdm": r"\tsqrdml[as]h\t",
        "asimdfhm": r"\tfml[as]l2?\tv",
        "fphp": r"\tf(?!cvt|mov)[a-z0-9]+\th\d",
        "fcma": r"\tfc(?:mla|add)\tv",
        "jscvt": r"\tfjcvtzs",
        "lrcpc": r"\tldapu?r",
        # Pointer authentication outside the hint space: older CPUs know only the hints.
        "paca": r"\t(?:ret|eret)a[ab]\b|\tbl?ra[ab]z?\t|\tldra[ab]\t",
        "aes": r"\taes(?:e|d|mc|imc)\t",
        "pmull": r"\tpmull2?\tv\d+\.1q",
        "sha2": r"\tsha256",
    },
}
# Packed floating-point arithmetic by the width of its registers in bits: what "vectorised" means.
_ARITHMETIC: Mapping[str, Mapping[int, str]] = {
    "x86-64": {
        512: r"\tv(?:add|sub|mul|div|max|min|fn?m(?:add|sub)\d{3})p[sd]\b[^\n]*zmm\d",
        256: r"\tv(?:add|sub|mul|div|max|min|fn?m(?:add|sub)\d{3})p[sd]\b[^\n]*ymm\d",
        128: r"\tv?(?:add|sub|mul|div|max|min|fn?m(?:add|sub)\d{3})p[sd]\b[^\n]*xmm\d",
    },
    "aarch64": {128: r"\tf(?:add|sub|mul|div|max|min|mla|mls)[a-z]*\tv\d+\.(?:4s|2d)"},
}
# Functions of the compiler's own library that ask the CPU before they use these instructions, or
# (the unwinder) use them only for frames whose tables speak of SVE registers.
_GUARDED = re.compile(
    r"__aarch64_(?:cas|swp|ld)[a-z]*\d+_"
    r"|(?:execute_stack_op|uw_update_context(?:_1)?|_Unwind_GetGR)(?:\.|$)"
)
_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_ADDRESS = re.compile(r" *[0-9a-f]+$")


@dataclass(frozen=True)
class FeatureUse:
    """One CPU feature that the code uses: how often, and where first."""

    feature: str
    count: int
    example: str


@dataclass(frozen=True)
class InstructionEvidence:
    """Counts from the disassembly.

    Attributes:
        total: instructions read.
        uses: features seen, in the order of the patterns.
        arithmetic: packed floating-point operations by the width of their registers in bits, widest
            first.
    """

    total: int
    uses: tuple[FeatureUse, ...]
    arithmetic: Mapping[int, int]

    def packed_operations(self, width: int) -> int:
        """Packed floating-point operations on registers of this many bits or more."""
        return sum(count for bits, count in self.arithmetic.items() if bits >= width)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return plain_fields(self)


def find_objdump(arch: str) -> str | None:
    """The path of an objdump that reads this architecture, or None.

    The cross binutils' own name is tried first: a distribution's plain objdump may know only its
    own machine.
    """
    triple = {"x86-64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}.get(arch, arch)
    plain = "objdump" if os.uname().machine.replace("_", "-") == arch else None
    names = [f"{triple}-objdump", *([plain] if plain else []), "llvm-objdump"]
    return next((path for name in names if (path := shutil.which(name))), None)


def scan_instructions(
    path: str | os.PathLike[str], arch: str, objdump: str | Sequence[str]
) -> InstructionEvidence:
    """Disassembles a library or object file.

    Args:
        path: the ELF file.
        arch: ``x86-64`` or ``aarch64``.
        objdump: the program, as from ``find_objdump``, with leading arguments if it's a sequence.

    Raises:
        ElfError: objdump can't be run, or can't read the file.
    """
    program = [objdump] if isinstance(objdump, str) else list(objdump)
    command = [*program, "-d", "--no-show-raw-insn", os.fspath(path)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ElfError(f"can't run {program[0]}: {error.strerror}") from error
    if result.returncode != 0:
        reason = (result.stderr.strip() or f"exit status {result.returncode}").splitlines()[-1]
        raise ElfError(f"{program[0]} can't read {os.fspath(path)}: {reason}")
    return _count(result.stdout, arch, read_functions(path))


def _count(
    listing: str, arch: str, functions: Sequence[tuple[int, int, str]]
) -> InstructionEvidence:
    """Counts in a listing; ``functions`` are (start, end, name) by address.

    objdump's own headings name the nearest symbol below, however far: right for object files,
    wrong for libraries that were stripped of most names.
    """
    starts = [start for start, _, _ in functions]
    features = _PATTERNS.get(arch, {})
    widths = _ARITHMETIC.get(arch, {})
    # One scan with all patterns finds the few instructions that are looked at with each.
    every = re.compile("|".join([*features.values(), *widths.values()]) or r"(?!)")
    feature_patterns = [(name, re.compile(pattern)) for name, pattern in features.items()]
    width_patterns = [(bits, re.compile(pattern)) for bits, pattern in widths.items()]

    def look(text: str) -> tuple[int | None, tuple[str, ...]] | None:
        """The width and the features of an instruction, None if it tells of nothing."""
        if not every.search(text):
            return None
        # A conversion may name two widths: the widest counts.
        width = next((bits for bits, pattern in width_patterns if pattern.search(text)), None)
        return width, tuple(name for name, pattern in feature_patterns if pattern.search(text))

    # Most instructions are there several times, word for word.
    seen: dict[str, tuple[int | None, tuple[str, ...]] | None] = {}
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}
    operations = dict.fromkeys(widths, 0)
    total = 0
    function = "?"
    for line in listing.splitlines():
        place, is_instruction, text = line.partition(":\t")
        if not is_instruction:
            if (heading := _FUNCTION.match(line)) is not None:
                function = heading[1]
            continue
        if _ADDRESS.match(place) is None:
            continue
        total += 1
        text = "\t" + text
        if text not in seen:
            seen[text] = look(text)
        if (traits := seen[text]) is None:
            continue
        if functions:
            address = int(place, 16)
            function = f"0x{address:x}"
            index = bisect.bisect_right(starts, address) - 1
            if index >= 0 and address < functions[index][1]:
                function = functions[index][2]
        if _GUARDED.match(function):
            continue
        width, names = traits
        if width is not None:
            operations[width] += 1
        for feature in names:
            counts[feature] = counts.get(feature, 0) + 1
            if feature not in examples:
                shown = " ".join(text.split("#")[0].split())
                examples[feature] = f"{function}: {shown}"
    uses = tuple(
        FeatureUse(name, counts[name], examples[name]) for name in features if name in counts
    )
    return InstructionEvidence(total, uses, dict(sorted(operations.items(), reverse=True)))
