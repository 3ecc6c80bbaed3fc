"""Judges a built library against the target that it is to run on.

``judge`` gathers every problem of one library with its cure; ``require`` stops a build whose
libraries have any. What is judged here is what makes a library fail on another machine than the
one that built it: the loader's refusals, illegal instructions, and code that is silently slow.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from edgecompile.audit.elf import ElfInfo, read_elf, version_key
from edgecompile.audit.evidence import find_evidence
from edgecompile.audit.instructions import InstructionEvidence, find_objdump
from edgecompile.errors import AuditError
from edgecompile.files import plain_fields
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.native import BASELINE_MARCH

# On every glibc system of the architecture; libgcc_s and libstdc++ are not among them.
SYSTEM_LIBRARIES: tuple[str, ...] = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
)
# CPU_CAPABILITY to the word with which Inductor's metadata (AOTI_CPU_ISA) begins when its kernels
# were generated for it. What it writes when it fell back to scalar code is none of them.
_ISA_WORDS = {"AVX2": "AVX2", "AVX512": "AVX512", "NEON": "ASIMD"}
# Marks of the format rather than of functions, and the first glibc that accepts them.
_ABI_VERSIONS = {"ABI_DT_RELR": "2.36"}
# The largest pages with which systems of the architecture run: 64 KiB on some Arm servers, 16 KiB
# on the Raspberry Pi 5.
_PAGE_SIZES = {"x86-64": 4096, "aarch64": 65536}
_INSTALL = {"x86-64": "install binutils", "aarch64": "install binutils-aarch64-linux-gnu"}
#: Features that the library for GPUs uses only where the CPU has them, for hashes (c_runtime/bundle/sha256_fast.cpp).
GPU_LIBRARY_DISPATCHES = frozenset({"ssse3", "sse4_1", "sha_ni", "sha2"})
_SHOWN = 12


Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing to say about a library.

    Attributes:
        severity: an ``error`` stops the build; a ``note`` says what could not be checked.
        rule: a fixed word by which programs tell findings apart.
        what: the fact, with names and numbers.
        cure: the cure, or "".
    """

    severity: Severity
    rule: str
    what: str
    cure: str = ""


@dataclass(frozen=True)
class AuditVerdict:
    """All findings about one library, and the facts that they rest on.

    Attributes:
        library: the file's name.
        variant: name of the variant that it was judged for; the architecture for a CPU probe.
        target: name of the system.
        findings: errors first.
        machine: the machine that it is built for.
        glibc: highest glibc version needed, or None where none is.
        glibcxx: likewise of libstdc++; anything but None is an error.
        needed: DT_NEEDED entries.
        vectorised: whether packed arithmetic was looked for.
        instructions: the instructions in the disassembly, or None if it wasn't made.
    """

    library: str
    variant: str
    target: str
    findings: tuple[Finding, ...]
    machine: str = ""
    glibc: str | None = None
    glibcxx: str | None = None
    needed: tuple[str, ...] = ()
    vectorised: bool = False
    instructions: InstructionEvidence | None = None

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {"ok": self.ok, **plain_fields(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> AuditVerdict:
        """The inverse of :meth:`to_json`, without the facts that a disassembly showed."""
        fields = {name: value for name, value in data.items() if name not in ("ok", "instructions")}
        findings = tuple(Finding(**item) for item in data["findings"])
        return AuditVerdict(**{**fields, "findings": findings, "needed": tuple(data["needed"])})


def require(verdicts: Iterable[AuditVerdict]) -> None:
    """Passes if every verdict is without errors.

    Raises:
        AuditError: names every error of every library, each with its cure.
    """
    lines = []
    failed = [verdict for verdict in verdicts if not verdict.ok]
    for verdict in failed:
        lines.append(f"{verdict.library} ({verdict.variant}):")
        for finding in verdict.findings:
            if finding.severity == "error":
                cure = f" — {finding.cure}" if finding.cure else ""
                lines.append(f"  {finding.rule}: {finding.what}{cure}")
    if failed:
        noun = "library isn't" if len(failed) == 1 else "libraries aren't"
        raise AuditError(
            "\n".join([f"{len(failed)} {noun} fit for the target:", *lines]),
            hint="nothing was packed; the compile commands stand in the work folder",
        )


class System(Protocol):
    """The system that a library is judged for; a ``TargetProfile`` is one.

    ``name`` is for messages, ``glibc`` the oldest glibc that has to load it, such as "2.34".
    """

    @property
    def name(self) -> str: ...

    @property
    def glibc(self) -> str: ...


def baseline(arch: str) -> VariantSpec:
    """The variant that every CPU of an architecture can run, as which the CPU probe is built and judged.

    Its name is the architecture's, as the probe's folder in a bundle is.
    """
    requires = ("asimd",) if arch == "aarch64" else ()
    return VariantSpec(arch, arch, BASELINE_MARCH[arch], 128, "DEFAULT", requires, 0)


def judge(
    library: str | os.PathLike[str],
    variant: VariantSpec,
    profile: System,
    *,
    allowed_needed: Collection[str] = (),
    runtime_exports: Collection[str] = (),
    vector_isa: str | None = None,
    vectorised: bool = True,
    dispatched: Collection[str] = (),
    objdump: str | None = None,
) -> AuditVerdict:
    """Judges a shared library.

    Args:
        library: the file.
        variant: the variant that it was built as; its ``requires`` decide which instructions it may
            use.
        profile: the profile of the devices that it has to run on.
        allowed_needed: DT_NEEDED entries allowed beside ``SYSTEM_LIBRARIES``: the runtime
            library's soname.
        runtime_exports: symbols that those libraries export.
        vector_isa: AOTI_CPU_ISA from the metadata of the generated code, for a model's library.
        vectorised: whether it should hold packed floating-point arithmetic of the variant's
            width; False for the CPU probe, and for a model that computes nothing itself.
        dispatched: features beside the variant's that it uses only after it asked the CPU for them.
        objdump: the disassembler; found by itself if None.

    Raises:
        ElfError: the file is no ELF file, or is damaged.
    """
    info = read_elf(library)
    findings: list[Finding] = []
    if info.kind != "shared":
        findings.append(_error("kind", f"it is an ELF {info.kind} file, not a shared library"))
    right_machine = info.machine == variant.arch
    if not right_machine:
        what = f"it is built for {info.machine}, the variant is for {variant.arch}"
        findings.append(_error("machine", what, "check which compiler was called"))
    findings += _loading(info, variant.arch, allowed_needed)
    findings += _versions(info, profile, allowed_needed)
    findings += _symbols(info, allowed_needed, runtime_exports)
    if vector_isa is not None:
        findings += _claimed_isa(vector_isa, variant)
    evidence = None
    if right_machine:
        objdump = objdump or find_objdump(variant.arch)
        if objdump is None:
            what = f"its instructions were not looked at: no objdump for {variant.arch}"
            findings.append(Finding("note", "instructions", what, _INSTALL.get(variant.arch, "")))
        else:
            evidence = find_evidence(Path(library), variant.arch, objdump)
            findings += _instructions(evidence, variant, vectorised, dispatched)
    order = {"error": 0, "warning": 1, "note": 2}
    return AuditVerdict(
        library=info.name,
        variant=variant.name,
        target=profile.name,
        findings=tuple(sorted(findings, key=lambda finding: order[finding.severity])),
        machine=info.machine,
        glibc=info.highest_version("GLIBC"),
        glibcxx=info.highest_version("GLIBCXX"),
        needed=info.needed,
        vectorised=vectorised,
        instructions=evidence,
    )


def _error(rule: str, what: str, cure: str = "") -> Finding:
    return Finding("error", rule, what, cure)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _loading(info: ElfInfo, arch: str, allowed_needed: Collection[str]) -> list[Finding]:
    """Harm that the dynamic loader would do to the process, and its failures."""
    findings = []
    allowed = {*SYSTEM_LIBRARIES, *allowed_needed}
    unexpected = [name for name in info.needed if name not in allowed]
    if unexpected:
        what = f"it needs {_listed(unexpected)}, which a device may not have"
        cure = "link statically (-static-libstdc++ -static-libgcc), or leave -l out"
        findings.append(_error("needed", what, cure))
    if info.rpath:
        what = f"it looks for libraries in {_listed(info.rpath)} (RPATH or RUNPATH)"
        findings.append(_error("rpath", what, "link without -rpath"))
    if info.executable_stack:
        what = "it asks for an executable stack, which hardened systems refuse"
        cure = "link with -Wl,-z,noexecstack, and give assembly files a .note.GNU-stack section"
        findings.append(_error("execstack", what, cure))
    if info.text_relocations:
        what = "it has text relocations: loading it writes to its code"
        cure = "compile everything with -fPIC and link with -Wl,-z,text"
        findings.append(_error("textrel", what, cure))
    if info.static_tls:
        what = "its thread-local variables need room that a running process may have no more of"
        findings.append(_error("tls", what, "compile without -ftls-model=initial-exec"))
    pages = _PAGE_SIZES.get(arch, 0)
    if 0 < info.page_size < pages and info.machine == arch:
        what = f"it can't be mapped where pages have more than {info.page_size} bytes"
        cure = f"link with -Wl,-z,max-page-size={pages}: {arch} systems have up to {pages}"
        findings.append(_error("pages", what, cure))
    return findings


def _versions(info: ElfInfo, profile: System, allowed_needed: Collection[str]) -> list[Finding]:
    """Symbol versions newer than the oldest system that the profile promises."""
    findings = []
    floor = version_key(profile.glibc)
    newer: dict[str, list[str]] = {}
    for need in info.version_needs:
        series, _, number = need.version.partition("_")
        number = _ABI_VERSIONS.get(number, number)
        if series == "GLIBC" and number[:1].isdigit() and version_key(number) > floor:
            newer.setdefault(number, []).extend(need.symbols)
        elif series == "GLIBC" and number == "PRIVATE":
            what = f"it uses private symbols of {need.library}: {_listed(need.symbols)}"
            findings.append(_error("glibc", what, "they change with each glibc: don't link them"))
    for number in sorted(newer, key=version_key):
        names = _listed(newer[number]) or "its format (packed relocations)"
        what = f"{names} needs glibc {number}; {profile.name} promises {profile.glibc} only"
        cure = "don't use it, link with an older sysroot, or raise glibc in the profile"
        findings.append(_error("glibc", what, cure))
    if "libstdc++.so.6" not in allowed_needed:
        for series in ("GLIBCXX", "CXXABI"):
            highest = info.highest_version(series)
            if highest is not None:
                what = f"it needs {series}_{highest} of the device's libstdc++"
                cure = "link with -static-libstdc++ and hide its symbols (-Wl,--exclude-libs,ALL)"
                findings.append(_error("libstdc++", what, cure))
    return findings


def _symbols(
    info: ElfInfo, allowed_needed: Collection[str], runtime_exports: Collection[str]
) -> list[Finding]:
    """Symbols that no library will provide: dlopen with RTLD_NOW would fail."""
    exports = frozenset(runtime_exports)
    # The system's symbols are versioned; what other libraries would provide is reported with them.
    providers = {"", *allowed_needed}
    missing = [
        symbol.name
        for symbol in info.undefined
        if not symbol.weak and symbol.library in providers and symbol.name not in exports
    ]
    if not missing:
        return []
    what = f"{len(missing)} undefined symbols that the runtime doesn't export: {_listed(missing)}"
    cure = "the native runtime lacks these functions, or the library was linked without it"
    return [_error("undefined", what, cure)]


def _claimed_isa(vector_isa: str, variant: VariantSpec) -> list[Finding]:
    """Inductor falls back to scalar kernels in silence when its probe of the ISA fails."""
    word = _ISA_WORDS.get(variant.cpu_capability)
    if word is None:
        what = (
            f"Inductor has no vector code for {variant.name}: the model's own kernels are scalar, "
            "those of the runtime library (matrix products, attention) are not"
        )
        return [Finding("note", "scalar", what)]
    if vector_isa.upper().split()[:1] == [word]:
        return []
    what = f"its kernels were generated for {vector_isa or 'no vector ISA'!r}, not for {word}"
    cure = "set cpp.vec_isa_ok, cpp.simdlen and cpp.march before code generation"
    return [_error("scalar", what, cure)]


def _instructions(
    evidence: InstructionEvidence,
    variant: VariantSpec,
    vectorised: bool,
    dispatched: Collection[str],
) -> list[Finding]:
    findings = []
    for use in evidence.uses:
        if use.feature not in variant.requires and use.feature not in dispatched:
            what = f"{use.count} instructions need {use.feature}, first in {use.example}"
            cure = f"compile with -march={variant.march}, never with -march=native"
            findings.append(_error("instructions", what, cure))
    if vectorised and not evidence.packed_operations(variant.simdlen):
        what = (
            f"none of its {evidence.total} instructions is packed floating-point arithmetic "
            f"on {variant.simdlen}-bit registers"
        )
        cure = "it was compiled as scalar code: check -march, -O3 and the CPU_CAPABILITY macros"
        findings.append(_error("scalar", what, cure))
    return findings
