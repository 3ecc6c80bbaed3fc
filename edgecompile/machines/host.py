"""What this host can run: the build side's view of the runtime's CPU probe."""

from __future__ import annotations

import ctypes
from pathlib import Path

from edgecompile.errors import ToolchainError
from edgecompile.runtime.cpu.host import architecture
from edgecompile.targets.profile import TargetProfile, VariantSpec


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


def host_variants(profile: TargetProfile, probe: Path) -> list[VariantSpec]:
    """The profile's variants that this host can run, the best one last."""
    import platform

    arch = architecture(platform.machine())
    features = probe_features(probe)
    usable = [v for v in profile.variants if v.arch == arch and features.issuperset(v.requires)]
    return sorted(usable, key=lambda v: v.rank)
