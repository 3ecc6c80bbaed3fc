"""The subject of a plan: a model, its target and its traffic, and the answers that every stage needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from edgecompile.backends import CPU
from edgecompile.export.store import ExportStore
from edgecompile.hosts.detection import runnable_variants
from edgecompile.models.loaded import LoadedModel, model_structure
from edgecompile.planning.generation_plan import (
    prompts_only,
    refuse_sources,
    refused_prompts,
    require_generation,
)
from edgecompile.planning.given_plan import check_plan
from edgecompile.planning.length_support import LengthSupport, find_length_support
from edgecompile.planning.notes import Notes
from edgecompile.planning.request import CHECKPOINT_PRECISION, PlanRequest
from edgecompile.planning.scope import PlanScope, plan_scope, with_traffic
from edgecompile.precision import Precision
from edgecompile.targets.profile import TargetProfile, VariantSpec


@dataclass(frozen=True)
class Subject:
    """A model to plan for. Scope, length support and the host's variants are found at their first use.

    Attributes:
        whole: exports of the model as it will be served.
        exports: exports of what is planned: of a model that generates, its runs of prompts.
        profile: the target.
        request: the request for the plan; its traffic is known.
        asked: the request as it was made; prompts may be longer than one run.
        work: folder for files that stages leave.
        notes: get what a person should know.
    """

    whole: ExportStore
    exports: ExportStore
    profile: TargetProfile
    request: PlanRequest
    asked: PlanRequest
    work: Path
    notes: Notes = field(default_factory=Notes)

    @property
    def model(self) -> LoadedModel:
        """The model to plan for."""
        return self.exports.model

    @cached_property
    def scope(self) -> PlanScope:
        """The scope: the traffic, and the range of every axis.

        Raises:
            PlanError, LengthsError: the sizes, or the plan that was given, don't fit the model.
        """
        if self.request.plan is not None:
            return check_plan(self.request.plan, self.model, self.request, self.profile)
        return plan_scope(self.model, self.request)

    @cached_property
    def serving(self) -> LengthSupport:
        """The part of the scope that can be served, and how.

        Raises:
            ExportError, PlanError: No length can be served; the message says why.
        """
        return find_length_support(self.exports, self.request, self.scope)

    @cached_property
    def runnable(self) -> list[VariantSpec]:
        """The target's variants that this host can run, the best one last."""
        return runnable_variants(self.profile, self.work)

    @property
    def precision(self) -> str:
        """The precision that was asked for, or the default of the target and the model."""
        stored = self.model.stored is not None and self.request.backend_for(self.profile) == CPU
        if self.request.precision is None and stored:
            return CHECKPOINT_PRECISION
        return self.request.precision_for(self.profile)

    def made_for(self, precision: Precision) -> dict[str, str]:
        """The subject as plans record it."""
        subject = {"structure": model_structure(self.whole.model), "target": self.profile.name}
        if self.profile.gpu is not None:
            return {**subject, "precision": self.request.precision_for(self.profile)}
        threads = self.request.threads
        return {
            **subject,
            "precision": precision.label,
            "backend": self.request.backend_for(self.profile),
            "threads": "all" if threads is None else str(threads),
        }


def make_subject(
    exports: ExportStore,
    profile: TargetProfile,
    request: PlanRequest,
    work: Path,
    notes: Notes | None = None,
) -> Subject:
    """The subject of a plan: a model and its scope.

    Args:
        exports: the exports of the model.
        profile: the target.
        request: the request for the plan. Without lengths, every batch size counts once.
        work: the folder for programs that are measured.
        notes: get what a person should know.

    Raises:
        ModelError: it generates, and not on the target or by the backend that was asked for.
        UsageError: its lengths vary, and none are given.
    """
    model, notes = exports.model, Notes() if notes is None else notes
    request = with_traffic(request, model)
    whole, asked = exports, request
    if model.generation is not None:
        refuse_sources(model)
        require_generation(model, request.backend_for(profile))
        notes.add(*refused_prompts(model, request))
        if request.plan is None:
            exports, request = prompts_only(exports, request)
    return Subject(whole, exports, profile, request, asked, work, notes)
