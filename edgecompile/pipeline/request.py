"""Requests for plans and builds: plain values, which load no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edgecompile.bundle.names import bundle_name, bundle_path
from edgecompile.errors import UsageError
from edgecompile.models.options import LoadOptions
from edgecompile.planning.request import PlanRequest
from edgecompile.targets.profile import TargetProfile, load_target

__all__ = ["AUTO", "BACKENDS", "TORCH_TENSORRT", "BuildRequest", "ModelRequest"]

DEFAULT_TARGET = "cpu-x86-64"

#: What makes a GPU's engine: the device, from the bundle's ONNX; or torch-tensorrt, here and now, for
#: the very GPU of this machine.
AUTO, TORCH_TENSORRT = "auto", "torch-tensorrt"
BACKENDS = (AUTO, TORCH_TENSORRT)


@dataclass(frozen=True)
class ModelRequest:
    """A model, its target and what decides its plan.

    Attributes:
        model: what :func:`edgecompile.loaders.load.load_model` takes.
        target: name or path of a target profile.
        plan: the traffic, and what decides the buckets.
        load: how the model is loaded.
        work_dir: folder for the stages' files; None: a temporary one.
    """

    model: object
    target: str = DEFAULT_TARGET
    plan: PlanRequest = field(default_factory=lambda: PlanRequest(None))
    load: LoadOptions = field(default_factory=lambda: LoadOptions(batch=(1, 1)))
    work_dir: Path | None = None

    def check_target(self) -> TargetProfile:
        """The target; refuses options that it doesn't support, before anything else is read.

        Raises:
            TargetError: there is none of that name.
            UsageError: an option doesn't fit it.
        """
        profile = load_target(self.target)
        self.plan.check_target(profile)
        return profile

    def check_kit(self) -> TargetProfile:
        """As :meth:`check_target`, of a kit, which a GPU's costs aren't measured with."""
        profile = self.check_target()
        if profile.gpu is not None:
            raise UsageError(
                "--kit is for CPUs: what a GPU takes is measured with a bundle of several padded "
                "buckets (build --mode pad --buckets K, on the device finish and bench --calibrate)."
            )
        return profile

    def check_stage(self) -> TargetProfile:
        """As :meth:`check_target`, of a stage that is run alone, which no GPU has."""
        profile = self.check_target()
        if profile.gpu is not None:
            raise UsageError(
                f"{self.target} has a GPU, which is built for in one go: "
                f"edgecompile build --target {self.target}."
            )
        return profile


@dataclass(frozen=True)
class BuildRequest(ModelRequest):
    """Everything that decides a build.

    Attributes:
        output: path of the bundle; ``.ecb`` is appended if it is missing. None: the model's name, in
            the current folder.
        force: replace a bundle of the same name.
        jetpack: the release that a Jetson has; None: the first of its profile.
        backend: one of :data:`BACKENDS`.
        tokenizer: whether the model's tokenizer travels along, if it has one.
        emulate: whether variants that this host can't run are verified under qemu, where it is
            installed.
    """

    output: Path | None = None
    force: bool = False
    jetpack: str | None = None
    backend: str = AUTO
    tokenizer: bool = True
    emulate: bool = True

    @property
    def bundle(self) -> Path:
        """The path of the bundle.

        Raises:
            BundleWriteError: it ends in no name.
        """
        return bundle_path(self.output or Path(bundle_name(self.model)))

    def check_target(self) -> TargetProfile:
        """As :meth:`ModelRequest.check_target`, JetPack and backend included.

        Raises:
            MissingDependencyError: torch-tensorrt isn't installed.
        """
        profile = super().check_target()
        if self.jetpack is not None and self.jetpack not in profile.jetpacks:
            known = " or ".join(profile.jetpacks)
            cure = f"choose {known}" if known else "it is for targets such as jetson-orin"
            raise UsageError(
                f"Target {profile.name} does not support --jetpack {self.jetpack}: {cure}."
            )
        if self.backend == TORCH_TENSORRT:
            from edgecompile.tensorrt.torch_tensorrt_check import need_torch_tensorrt

            need_torch_tensorrt(profile, self.plan.precision_for(profile))
        return profile
