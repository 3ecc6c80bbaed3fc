"""The request for a build or a plan: plain values, which load no framework."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from edgecompile.backends import RAY
from edgecompile.bundle.names import bundle_name, bundle_path
from edgecompile.errors import UsageError
from edgecompile.hosts.cluster import need_ray
from edgecompile.models.options import LoadOptions
from edgecompile.planning.options import SERVER
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.base.installation import refuse_mixed_wheels
from edgecompile.targets.profile import TargetProfile, load_target
from edgecompile.toolchain.torch_versions import check_torch

DEFAULT_TARGET = "cpu-x86-64"


#: The batches of a server, where none were asked for.
SERVER_BATCH = (1, 32)


@dataclass(frozen=True)
class BuildRequest:
    """A model, its target, the options, and where the results go.

    Attributes:
        model: the model argument of :func:`edgecompile.loaders.load.load_model`.
        target: name or path of a target profile.
        plan: the traffic and the options.
        load: the options for loading the model.
        work_dir: folder for the stages' files; None: a temporary one.
        output: path of the bundle; ``.ecb`` is appended if it is missing. None: the model's name, in
            the current folder.
        force: replace a bundle of the same name.

    With the profile ``server`` a batch of 1 becomes the range 1 to 32.
    """

    model: object
    target: str = DEFAULT_TARGET
    plan: PlanRequest = field(default_factory=lambda: PlanRequest(None))
    load: LoadOptions = field(default_factory=lambda: LoadOptions(batch=(1, 1)))
    work_dir: Path | None = None
    output: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.plan.profile == SERVER and self.load.batch in (None, (1, 1)):
            object.__setattr__(self, "load", replace(self.load, batch=SERVER_BATCH))

    @property
    def bundle(self) -> Path:
        """The path of the bundle.

        Raises:
            BundleWriteError: it ends in no name.
        """
        return bundle_path(self.output or Path(bundle_name(self.model)))

    def check_target(self, without_gpu: str = "") -> TargetProfile:
        """The target; refuses options that it doesn't support, before anything else is read.

        Args:
            without_gpu: the reason why a target with a GPU is refused; empty: it isn't.

        Raises:
            TargetError: there is none of that name.
            UsageError: an option doesn't fit it.
            MixedWheelsError: wheels of different versions are installed.
            MissingDependencyError: torch is of another version, or Ray isn't installed.
        """
        refuse_mixed_wheels()
        check_torch()
        profile = load_target(self.target)
        self.plan.check_target(profile)
        if without_gpu and profile.gpu is not None:
            raise UsageError(f"Target {self.target} has a GPU: {without_gpu}")
        if self.plan.on == RAY:
            need_ray()
        return profile

    def check_stage(self) -> TargetProfile:
        """As :meth:`check_target`, of a stage that is run alone, which no target with a GPU has."""
        return self.check_target(
            f"it is built for in one go: edgecompile build --target {self.target}"
        )
