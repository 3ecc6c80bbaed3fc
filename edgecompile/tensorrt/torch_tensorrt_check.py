"""Checks whether torch-tensorrt can build an engine on this machine, before any other work.

What is asked first costs nothing: the versions of installed packages, and whether torch sees a GPU.
Only where all of that is there, a process of its own asks CUDA and TensorRT what this device is.
"""

from __future__ import annotations

import platform
from importlib import metadata

from edgecompile.errors import GpuError, MissingDependencyError, TargetError
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.finish.worker import Workers
from edgecompile.runtime.format.recipe import version_pair
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.targets.jetpack import find_jetpack
from edgecompile.targets.profile import TargetProfile

#: What torch-tensorrt is asked to compute in. For int8 it needs another package, which changes the
#: model before it is exported.
PRECISIONS = ("fp32", "fp16")

_PACKAGE = "torch-tensorrt"


def need_torch_tensorrt(profile: TargetProfile, precision: str) -> DeviceIdentity:
    """This device, as an engine of torch-tensorrt depends on it.

    Args:
        profile: the target; it has to describe this machine's GPU.
        precision: what the engine computes in.

    Raises:
        TargetError: the profile describes no GPU or another one, or the precision isn't there.
        MissingDependencyError: there is no GPU, no torch-tensorrt, or none that goes with torch;
            names all that is missing.
    """
    if profile.gpu is None:
        raise TargetError(
            f"the target {profile.name} describes no GPU, so torch-tensorrt can't build for it",
            hint="write a profile of kind cuda for this machine's GPU: docs/targets.md",
        )
    if precision not in PRECISIONS:
        raise TargetError(
            f"torch-tensorrt isn't asked for {precision}: {' or '.join(PRECISIONS)}",
            hint="without `backend` the engine is built from the ONNX, which may be int8",
        )
    missing = _missing()
    if missing:
        raise MissingDependencyError(
            "torch-tensorrt can't build an engine on this machine: " + "; ".join(missing),
            hint="build on a host with the GPU, or without `backend`: then the device builds the "
            "engine from the bundle's ONNX, once (docs/jetson.md)",
        )
    try:
        device = DeviceIdentity(**Workers(None, False).describe()["device"])
    except GpuError as error:
        raise MissingDependencyError(
            f"torch-tensorrt can't build an engine on this machine: {error.message}", error.hint
        ) from None
    differs = _differences(profile, device)
    if differs:
        raise TargetError(
            f"{profile.name} doesn't describe this machine, {device}: " + "; ".join(differs),
            hint="an engine runs on the GPU that it was built on: give a profile of this one "
            "(docs/targets.md), or build without `backend`",
        )
    return device


def torch_tensorrt_version() -> str | None:
    """The version of the installed package, which isn't loaded; None where there is none."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def _missing() -> list[str]:
    import torch

    problems = []
    version = torch_tensorrt_version()
    if version is None:
        problems.append(f"the package {_PACKAGE} isn't installed")
    elif version_pair(version) != version_pair(torch.__version__):
        # Both count alike since 2.0; its libraries are linked against that one minor version.
        problems.append(
            f"{_PACKAGE} {version} goes with another torch than {torch.__version__}, which is "
            "installed: the first two numbers have to be equal"
        )
    if not _sees_gpu():
        reason = "is built for CPUs" if torch.version.cuda is None else "sees no CUDA GPU"
        problems.append(f"no GPU can be used: torch {torch.__version__} {reason}")
    return problems


def _sees_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _differences(profile: TargetProfile, device: DeviceIdentity) -> list[str]:
    assert profile.gpu is not None
    problems = []
    here = architecture(platform.machine())
    if profile.archs[0] != here:
        problems.append(f"its variants are for {profile.archs[0]}, this machine is {here}")
    for what, expected, actual in (
        ("compute capability", profile.gpu.compute_capability, device.compute_capability),
        ("multiprocessors", profile.gpu.sm_count, device.sm_count),
    ):
        if expected not in (None, actual):
            problems.append(f"{what} {expected}, this GPU has {actual}")
    releases = [find_jetpack(profile, name) for name in profile.jetpacks or (None,)]
    if not any(item.takes(device.tensorrt) for item in releases):
        ranges = ", ".join(f"{item.tensorrt_least} to {item.tensorrt_below}" for item in releases)
        problems.append(f"TensorRT {ranges} (excluded), installed is {device.tensorrt}")
    return problems
