"""The instruction sets of this machine, and the variant of a bundle that fits it best.

Features come from a small native probe (CPUID and XGETBV, or the auxiliary vector), built for the
lowest baseline of the architecture: /proc/cpuinfo lies under emulation and says nothing about
what the operating system saves on a context switch.
"""

import ctypes
import os
import platform
import struct
import sys
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..base.errors import NativeError, UnsupportedHostError
from ..base.installation import newer_bundle_hint
from ..format.files.folder import BundleFolder
from ..format.manifest.schema import NOTHING, Manifest, Variant
from . import loaders
from .libraries import load_library, pin_library

_ARCHITECTURES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}
_PROBE_BYTES = 8192
VARIANT_VARIABLE = "EDGECOMPILE_VARIANT"


class Host(NamedTuple):
    """A machine as far as choosing a variant needs it, and its description in a target profile.

    ``glibc`` is None where the C library is another one; ``cpus`` counts the processors that this
    process may use; ``probed`` tells whether the CPU was asked for its features; ``memory`` is in
    bytes, 0 if unknown; ``model`` is for people only.
    """

    arch: str
    features: FrozenSet[str]
    glibc: Optional[Tuple[int, int]]
    cpus: int = 1
    model: str = ""
    bits: int = 64
    byteorder: str = "little"
    system: str = "Linux"
    versions: Mapping[str, str] = NOTHING
    probed: bool = True
    memory: int = 0

    def to_json(self) -> Dict[str, Any]:
        """Plain JSON values for ``info --host``; "features" is None if nothing asked the CPU."""
        return {
            "system": self.system,
            "arch": self.arch,
            "model": self.model,
            "cpus": self.cpus,
            "memory_bytes": self.memory or None,
            "features": sorted(self.features) if self.probed else None,
            "glibc": None if self.glibc is None else "{}.{}".format(*self.glibc),
            "versions": dict(self.versions),
        }


def architecture(machine: str) -> str:
    """The bundle's name of ``platform.machine()``; unknown ones stay as they are."""
    return _ARCHITECTURES.get(machine.lower(), machine)


def glibc_version() -> Optional[Tuple[int, int]]:
    """(major, minor) of the running glibc, or None where libc is another one."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    parts = text.split()
    if len(parts) != 2 or parts[0] != "glibc":
        return None
    numbers = parts[1].split(".")
    return int(numbers[0]), int(numbers[1])


def describe_host(folder: Optional[BundleFolder] = None) -> Host:
    """Describes this machine; CPU features only with a bundle that has a probe for it.

    Raises:
        DamagedBundleError: the probe differs from its recorded hash.
        NativeError: the probe can't be loaded or fails.
    """
    import numpy

    arch = architecture(platform.machine())
    features: FrozenSet[str] = frozenset()
    probed = False
    # A 32-bit Python on a 64-bit kernel can't load the probe, and no variant is for it anyway.
    if folder is not None and arch in folder.manifest.probes and struct.calcsize("P") == 8:
        features = probe_features(folder, folder.manifest.probes[arch])
        probed = True
    return Host(
        arch=arch,
        features=features,
        glibc=glibc_version(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        model=_cpu_model(),
        bits=8 * struct.calcsize("P"),
        byteorder=sys.byteorder,
        system=platform.system(),
        versions={
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "kernel": platform.release(),
        },
        probed=probed,
        memory=_memory(),
    )


def probe_features(folder: BundleFolder, name: str) -> FrozenSet[str]:
    """Runs the probe library ``name`` of a bundle; see native/probe/cpu_probe.c for the words."""
    pinned = pin_library(folder, name)
    library = load_library(pinned)
    try:
        probe = library.ec_probe
    except AttributeError:
        raise NativeError("{}: has no ec_probe [native-functions]".format(pinned.label)) from None
    probe.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    probe.restype = ctypes.c_int32
    buffer = ctypes.create_string_buffer(_PROBE_BYTES)
    if probe(buffer, _PROBE_BYTES) < 0:
        raise NativeError("{}: the probe needs more than 8192 bytes".format(pinned.label))
    return frozenset(buffer.value.decode("ascii", "replace").split())


def _memory() -> int:
    try:
        # -1 where the system doesn't say.
        return max(0, os.sysconf("SC_PHYS_PAGES")) * max(0, os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return 0


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "Hardware"):
                    return value.strip()
    except OSError:
        pass
    return ""


def missing(variant: Variant, host: Host) -> List[str]:
    """Why ``host`` can't run ``variant``; empty if it can."""
    reasons = []
    if host.system != "Linux":
        reasons.append("needs Linux, this is {}".format(host.system or "unknown"))
    if host.bits != 64 or host.byteorder != "little":
        text = "needs a 64-bit little-endian Python, this one is {}-bit {}-endian"
        reasons.append(text.format(host.bits, host.byteorder))
    if variant.arch != host.arch:
        reasons.append("is for {}, this is {}".format(variant.arch, host.arch))
        return reasons
    absent = [feature for feature in variant.requires if feature not in host.features]
    if absent:
        reasons.append("the CPU or the system lacks " + ", ".join(absent))
    if variant.glibc is not None:
        major, minor = variant.glibc.split(".")
        if host.glibc is None:
            reasons.append("needs glibc {}, this C library isn't glibc".format(variant.glibc))
        elif host.glibc < (int(major), int(minor)):
            text = "needs glibc {}, this is {}.{}"
            reasons.append(text.format(variant.glibc, *host.glibc))
    # Last: asking a backend may take the import of a framework, in vain if the CPU doesn't fit.
    refusal = None if reasons else loaders.refuse(variant)
    if refusal is not None:
        reasons.append(refusal.message)
    return reasons


def _refusal(
    manifest: Manifest, variants: Sequence[Variant], refused: Mapping[str, List[str]]
) -> UnsupportedHostError:
    """The error where none of ``variants`` can run: a backend's own if that is all that
    one of them lacks."""
    for item in variants:
        refusal = loaders.refuse(item)
        if refusal is not None and refused[item.name] == [refusal.message]:
            if not loaders.is_known(item.backend):
                refusal.hint = newer_bundle_hint(manifest.built_by) or refusal.hint
            return refusal
    hint = "build the bundle for a target that includes this machine"
    return UnsupportedHostError("", hint)


def choose_variant(
    manifest: Manifest,
    host: Host,
    variant_name: Optional[str] = None,
    without: Optional[Mapping[str, str]] = None,
) -> Tuple[Variant, Dict[str, List[str]]]:
    """The variant of the highest rank that ``host`` can run, the first of equals.

    Args:
        manifest: the bundle's manifest.
        host: the machine.
        variant_name: the name of the variant to take instead.
        without: backends, or variants by their names, that can't be used, each with the reason.

    Returns:
        The variant, and for each one that can't run here the reasons.

    Raises:
        UnsupportedHostError: none can run, or ``variant_name`` can't or doesn't exist; names what
            each variant lacks.
    """
    refused = {}
    fitting = []
    for variant in manifest.variants:
        reasons = missing(variant, host)
        if without is not None and not reasons:
            reasons += [without[key] for key in (variant.backend, variant.name) if key in without]
        if reasons:
            refused[variant.name] = reasons
        else:
            fitting.append(variant)
    if variant_name is not None:
        for variant in fitting:
            if variant.name == variant_name:
                return variant, refused
        names = ", ".join(item.name for item in manifest.variants)
        if variant_name not in refused:
            raise UnsupportedHostError(
                "there is no variant {!r}".format(variant_name), "the bundle has: " + names
            )
        text = "the variant {} can't run here: {}".format(
            variant_name, "; ".join(refused[variant_name])
        )
        named = [x for x in manifest.variants if x.name == variant_name]
        error = _refusal(manifest, named, refused)
        if type(error) is UnsupportedHostError:
            error.hint = "leave the choice to the loader, or build for this machine"
        raise type(error)(text, error.hint)
    if not fitting:
        lines = ["no variant of this bundle can run here"]
        lines += ["{}: {}".format(name, "; ".join(items)) for name, items in refused.items()]
        error = _refusal(manifest, manifest.variants, refused)
        raise type(error)("\n  ".join(lines), error.hint)
    return max(fitting, key=lambda item: item.rank), refused
