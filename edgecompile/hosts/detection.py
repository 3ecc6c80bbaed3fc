"""The machine that builds: the features of its CPU, the variants that it runs, its target profile.

Another machine that described itself gets a profile as well.

Features come from the CPU probe, as everywhere: /proc tells what a kernel or an emulator likes to.
What can't be asked for is left out (bandwidth, peak): costs are measured then, or a calibration
brings them.
"""

from __future__ import annotations

import ctypes
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import CompileError, TargetError, ToolchainError
from edgecompile.json_files import read_object
from edgecompile.runtime.cpu.host import architecture, describe_host
from edgecompile.runtime.format.document import shorten
from edgecompile.targets.profile import TargetProfile, VariantSpec, list_variants, load_variant
from edgecompile.targets.schema import FEATURES
from edgecompile.toolchain.compilers import find_toolchain
from edgecompile.toolchain.native import build_probe

#: The name of a detected machine that isn't given one.
DEFAULT_NAME = "this-machine"

_MAX_BYTES = 1 << 20
_TYPES: Mapping[str, tuple[type, ...]] = {
    "arch": (str,),
    "cpus": (int,),
    "memory_bytes": (int,),
    "features": (list, type(None)),
    "glibc": (str, type(None)),
    "versions": (dict,),
}


def probe_features(probe: Path) -> frozenset[str]:
    """The features of this CPU, from a probe library that was just built.

    Raises:
        ToolchainError: the probe can't be loaded or fails.
    """
    try:
        function = ctypes.CDLL(str(probe)).ec_probe
    except (OSError, AttributeError) as error:
        raise ToolchainError(f"the CPU probe can't be loaded: {error}") from error
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    buffer = ctypes.create_string_buffer(4096)
    length = function(buffer, len(buffer))
    if length < 0:
        raise ToolchainError(f"the CPU probe failed with {length}")
    return frozenset(buffer.value.decode("ascii").split())


def runnable_variants(profile: TargetProfile, work: Path) -> list[VariantSpec]:
    """The profile's variants that this host can run, the best one last; the CPU probe is built in ``work``.

    Raises:
        ToolchainError: the probe can't be built or loaded, or fails.
    """
    arch = architecture(platform.machine())
    if arch not in profile.archs:
        return []
    features = probe_features(build_probe(arch, work / "probe"))
    usable = [v for v in profile.variants if v.arch == arch and features.issuperset(v.requires)]
    return sorted(usable, key=lambda v: v.rank)


@dataclass(frozen=True)
class TargetCheck:
    """The result of :func:`check_target`.

    Attributes:
        profile: the target.
        compilers: version of the compiler by architecture, as far as there are any.
        runs_here: names of the variants that this machine runs, the best one last.
        problems: one for each architecture that can't be built for.
    """

    profile: TargetProfile
    compilers: Mapping[str, str]
    runs_here: tuple[str, ...]
    problems: tuple[ToolchainError, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "target": self.profile.name,
            "ok": not self.problems,
            "compilers": dict(self.compilers),
            "runs_here": list(self.runs_here),
            "problems": [error.message for error in self.problems],
        }

    def require(self) -> None:
        """Raises ToolchainError with all problems, if there are any."""
        if self.problems:
            hints = [error.hint for error in self.problems if error.hint]
            raise ToolchainError(
                "\n".join(error.message for error in self.problems), hint="; ".join(hints) or None
            )


def check_target(profile: TargetProfile) -> TargetCheck:
    """Finds out whether this machine can build for a target, and which variants it runs.

    Raises:
        ToolchainError: the CPU probe can't be built or loaded, or fails.
    """
    compilers: dict[str, str] = {}
    problems: list[ToolchainError] = []
    for arch in profile.archs:
        try:
            compilers[arch] = find_toolchain(arch).version
        except ToolchainError as error:
            problems.append(error)
    runs: list[VariantSpec] = []
    try:
        with tempfile.TemporaryDirectory(prefix="edgecompile-probe-") as folder:
            runs = runnable_variants(profile, Path(folder))
    except (ToolchainError, CompileError):
        if not problems:
            raise
    names = tuple(variant.name for variant in runs)
    return TargetCheck(profile, compilers, names, tuple(problems))


def describe_here() -> dict[str, Any]:
    """This machine, in the words of the runtime's ``info --host --json``.

    Raises:
        TargetError: nothing can be built for its architecture.
        ToolchainError: the CPU probe can't be built.
    """
    arch = architecture(platform.machine())
    if arch not in FEATURES:
        raise TargetError(
            f"nothing can be built for {arch} machines", hint=f"known: {', '.join(FEATURES)}"
        )
    with tempfile.TemporaryDirectory(prefix="edgecompile-probe-") as folder:
        features = probe_features(build_probe(arch, Path(folder)))
    return describe_host()._replace(features=features, probed=True).to_json()


def describe_device(path: Path) -> dict[str, Any]:
    """A device's output of ``python3 BUNDLE info --host --json``, whose probe asks the CPU.

    Raises:
        TargetError: the file can't be read, or isn't that.
    """
    hint = "write it on the device: python3 BUNDLE info --host --json"
    document, _ = read_object(path, TargetError, max_bytes=_MAX_BYTES, hint=hint)
    host = document.get("host")
    if not isinstance(host, dict):
        raise TargetError(f"{path} describes no machine: it has no object host", hint=hint)
    wrong = [
        f"{key} is {shorten(repr(host[key]))}" if key in host else f"{key} is missing"
        for key, types in _TYPES.items()
        if type(host.get(key, ...)) not in types
    ]
    if wrong:
        raise TargetError(f"{path} describes no machine: {', '.join(wrong)}", hint=hint)
    if host["features"] is None:
        raise TargetError(
            f"{path}: nothing asked the CPU for its features",
            hint=f"{hint}; with a BUNDLE for that architecture, whose probe asks",
        )
    return host


def detect_target(host: Mapping[str, Any], name: str = DEFAULT_NAME) -> TargetProfile:
    """The profile of a machine that was described, with the best variant that it can run.

    Args:
        host: the result of ``describe_here`` or ``describe_device``.
        name: the name of the profile.

    Raises:
        TargetError: nothing can be built for it; says what it lacks.
    """
    arch, glibc, versions = host["arch"], host["glibc"], host["versions"]
    if arch not in FEATURES:
        raise TargetError(
            f"nothing can be built for {shorten(arch)} machines",
            hint=f"known: {', '.join(FEATURES)}",
        )
    if glibc is None:
        raise TargetError("its C library isn't glibc, which the libraries need")
    features = [feature for feature in FEATURES[arch] if feature in host["features"]]
    variants = [v for v in map(load_variant, list_variants()) if v.arch == arch]
    usable = [v for v in variants if set(v.requires) <= set(features)]
    if not usable:
        least = min(variants, key=lambda v: v.rank)
        lacking = sorted(set(least.requires) - set(features))
        raise TargetError(
            f"its CPU can run no variant: {least.name} requires also {', '.join(lacking)}"
        )
    best = max(usable, key=lambda v: v.rank)
    memory = host["memory_bytes"]
    if not memory:
        raise TargetError("how much memory it has isn't known")
    source = "found on the machine by edgecompile targets detect"
    model = "".join(c for c in str(host.get("model") or "") if c.isprintable()).strip()
    return TargetProfile.from_json(
        {
            "name": name,
            "kind": "cpu",
            "description": f"{model or arch}, as it described itself",
            "variants": [best.to_json()],
            "cores": host["cpus"],
            "memory_gib": round(memory / 2**30, 2),
            "glibc": glibc,
            "python": ".".join(str(versions.get("python", "")).split(".")[:2]),
            "features": {arch: features},
            "sources": {
                "cores": f"{source}: the CPUs that the process may use",
                "memory_gib": f"{source}: physical memory",
                "glibc": f"{source}: the running C library",
                "python": f"{source}: the interpreter",
                "features": f"{source}: the CPU probe",
            },
        }
    )


def format_profile(profile: TargetProfile) -> str:
    """A profile as the TOML file that ``load_target`` reads; its variants by their names."""
    data = profile.to_json()
    data["variants"] = [variant.name for variant in profile.variants]
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    lines = [
        f"{key} = {_toml(value)}"
        for key, value in data.items()
        if key not in tables and value is not None
    ]
    unknown = [key for key in ("bandwidth_gbs", "peak_gflops") if not data[key]]
    if unknown:
        lines += [
            "",
            f"# Unknown: {', '.join(unknown)}. Without them costs have to be measured on the",
            "# machine: edgecompile plan --calibration-bundle, bench --calibrate, build --calibration.",
        ]
    for key, table in tables.items():
        if table:
            lines += ["", f"[{key}]", *(f"{_key(k)} = {_toml(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _toml(name)


def _toml(value: str | float | Sequence[Any]) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
