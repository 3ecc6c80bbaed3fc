"""Inspects a bundle from outside: the devices that could run it, and an audit of its libraries.

Nothing of the bundle is loaded here. The questions of the loader (:mod:`edgecompile.runtime.cpu.host`)
are asked about a target's devices instead of this machine, and the libraries are audited again
against the promises of the manifest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.audit.elf import read_elf, version_key
from edgecompile.audit.judge import (
    GPU_LIBRARY_DISPATCHES,
    AuditVerdict,
    Finding,
    System,
    baseline,
    judge,
)
from edgecompile.backends import LIBTORCH
from edgecompile.errors import ElfError, TargetError
from edgecompile.runtime.base.errors import UnsupportedHostError
from edgecompile.runtime.cpu.host import Host, choose_variant, missing
from edgecompile.runtime.format.manifest.schema import AOTI_CPU, TORCH, Manifest, Variant
from edgecompile.targets.profile import TargetProfile, VariantSpec, load_variant
from edgecompile.toolchain.native import BASELINE_MARCH

#: The oldest Python that the runtime works on.
OLDEST_PYTHON = "3.8"

_REPORT = "reports/audit.json"
_MAX_AUDIT_BYTES = 16 << 20


def judge_target(manifest: Manifest, profile: TargetProfile) -> dict[str, Any]:
    """Whether a target's devices can run a bundle.

    Returns:
        Plain JSON values: "name", "ok" (every device can run some variant), "problem" (why not,
        or None), "chosen" (the variant that the least of them would load, or None) and "variants":
        by name, why not every device can run it; an empty list if all can.
    """
    # Whether a device has torch isn't the target's to say.
    variants = [
        v._replace(backend=AOTI_CPU) if v.backend == TORCH else v for v in manifest.variants
    ]
    manifest = manifest._replace(variants=tuple(variants))
    chosen: dict[str, str | None] = {}
    reasons: dict[str, list[str]] = {}
    for arch in profile.archs:
        host = _least_device(profile, arch)
        for variant in manifest.variants:
            if variant.arch == arch:
                reasons[variant.name] = missing(variant, host)
        try:
            chosen[arch] = choose_variant(manifest, host)[0].name
        except UnsupportedHostError:
            chosen[arch] = None
    for variant in manifest.variants:
        if variant.name not in reasons:
            reasons[variant.name] = [f"is for {variant.arch}, {profile.name} is not"]
    problems = [f"no variant for its {arch} devices" for arch, name in chosen.items() if not name]
    if version_key(profile.python) < version_key(OLDEST_PYTHON):
        problems.append(f"its Python {profile.python} is older than {OLDEST_PYTHON}")
    return {
        "name": profile.name,
        "ok": not problems,
        "problem": "; ".join(problems) or None,
        "chosen": chosen,
        "variants": {variant.name: reasons[variant.name] for variant in manifest.variants},
    }


def _least_device(profile: TargetProfile, arch: str) -> Host:
    major, minor = profile.glibc.split(".")
    return Host(
        arch=arch,
        features=frozenset(profile.features_of(arch)),
        glibc=(int(major), int(minor)),
        cpus=profile.cores,
    )


@dataclass(frozen=True)
class _Promise:
    """The needs of a variant by the manifest, as a system to be judged for."""

    name: str
    glibc: str


def audit_bundle(
    bundle: Path, manifest: Manifest, system: System | None = None
) -> tuple[AuditVerdict, ...]:
    """Audits every library of a bundle.

    Each variant's may use the instructions that the manifest says it requires, whatever a variant
    of that name means here.

    Args:
        bundle: the folder, its files checked.
        manifest: its manifest.
        system: judge for its glibc; None: for the one that the manifest promises, variant by
            variant.

    Returns:
        The probes' verdicts, then each variant's runtime library and programs. A file that is no
        library, or a damaged one, is a finding like any other.
    """
    calculates = _vectorised(bundle) if _REPORT in manifest.files else {}
    verdicts = []
    for arch, name in manifest.probes.items():
        if arch in BASELINE_MARCH:
            target = system or _Promise("the manifest", _oldest_glibc(manifest, arch))
            verdicts.append(_judge(bundle / name, baseline(arch), target, vectorised=False))
    for variant in manifest.variants:
        spec, width_known = _spec(variant)
        target = system or _Promise("the manifest", variant.glibc or "0.0")
        soname: str = LIBTORCH
        exports: tuple[str, ...] = ()
        if variant.backend != TORCH:
            native = bundle / variant.runtime
            dispatched = () if variant.gpu is None else GPU_LIBRARY_DISPATCHES
            verdicts.append(
                _judge(native, spec, target, vectorised=width_known, dispatched=dispatched)
            )
            soname, exports = _offered(native)
        for program in variant.files():
            path = bundle / program
            if variant.backend == TORCH:
                exports = _unversioned(path)
            verdicts.append(
                _judge(
                    path,
                    spec,
                    target,
                    allowed_needed=(soname,),
                    runtime_exports=exports,
                    vectorised=width_known and calculates.get((variant.name, path.name), False),
                )
            )
    return tuple(verdicts)


def _judge(path: Path, spec: VariantSpec, system: System, **options: Any) -> AuditVerdict:
    """As :func:`judge`; a file that it can't read is a finding."""
    try:
        return judge(path, spec, system, **options)
    except ElfError as error:
        finding = Finding("error", "elf", error.message, error.hint or "")
        return AuditVerdict(path.name, spec.name, system.name, (finding,))


def _offered(library: Path) -> tuple[str, tuple[str, ...]]:
    """The name by which programs ask for a runtime library, and its exports."""
    try:
        info = read_elf(library)
    except ElfError:
        return library.name, ()
    return info.soname or library.name, info.exported


def _unversioned(program: Path) -> tuple[str, ...]:
    """The symbols that a program asks of torch: whether torch has them is known only where torch is."""
    try:
        return tuple(symbol.name for symbol in read_elf(program).undefined if not symbol.library)
    except ElfError:
        return ()


def _oldest_glibc(manifest: Manifest, arch: str) -> str:
    """The probe is loaded on hosts that then run the least demanding variant, or none."""
    floors = [v.glibc for v in manifest.variants if v.arch == arch and v.glibc]
    return min(floors, key=version_key, default="2.17")


def _spec(variant: Variant) -> tuple[VariantSpec, bool]:
    """The variant as the bundle's loader sees it, and whether its vector width is known here."""
    try:
        spec = load_variant(variant.name)
    except TargetError:
        spec = VariantSpec(variant.name, variant.arch, "", 128, "DEFAULT", (), variant.rank)
        return dataclasses.replace(spec, march=variant.name, requires=variant.requires), False
    width_known = spec.arch == variant.arch
    return dataclasses.replace(spec, arch=variant.arch, requires=variant.requires), width_known


def _vectorised(bundle: Path) -> Mapping[tuple[str, str], bool]:
    """The libraries, by variant, in which the build expected arithmetic: a model of linear
    layers only has none of its own. Empty if the bundle's report of it can't be read."""
    try:
        with (bundle / _REPORT).open("rb") as stream:
            document = json.loads(stream.read(_MAX_AUDIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    items = (
        [item for item in document if isinstance(item, dict)] if isinstance(document, list) else []
    )
    calculating = [item for item in items if item.get("vectorised") is True]
    return {(str(item.get("variant")), str(item.get("library"))): True for item in calculating}
