"""Reads what a server is planned by from a bundle, or from a measurement of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import CostError
from edgecompile.json_files import read_object
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import SEQ2SEQ, Manifest
from edgecompile.server.schedule.batches import Batches
from edgecompile.server.schedule.costs import CostTable, read_costs
from edgecompile.server.schedule.simulate_texts import TextCosts

_BUILD = 'build it with `profile="server"`'
_MEASURE = "give a file of them, measured on the server: bench BUNDLE --serving FILE"
_HINT = _BUILD + ", or measure on the server: bench BUNDLE --serving FILE"


@dataclass(frozen=True)
class Serving:
    """The costs of a bundle's batches.

    Attributes:
        costs: the costs by threads, rows and length.
        cpus: the CPUs that they were measured on.
        lengths: the count of each length in the traffic that the bundle was planned for.
        mixes: whether requests of other lengths may share a run.
    """

    costs: CostTable
    cpus: int
    lengths: Mapping[int, int]
    mixes: bool


def read_serving(bundle: str | os.PathLike[str], costs: Path | None = None) -> Serving:
    """Reads the manifest, and the costs from another file if there is one.

    Raises:
        BundleError: the bundle is missing or damaged.
        CostError: there are no costs, or they make no sense.
    """
    manifest = _read_manifest(bundle)
    built = manifest.plan.get("server")
    plan: dict[str, Any] = dict(built) if isinstance(built, dict) else {}
    source = str(costs or bundle)
    if costs is not None:
        document, _ = read_object(costs, CostError, max_bytes=64 << 20, hint=_HINT)
        plan = {**plan, **{key: document.get(key) for key in ("cpus", "points")}}
    layout = Batches(manifest, plan)
    if not layout.joins:
        raise CostError(f"{bundle}: nothing says that requests can share a run", hint=_BUILD)
    if "points" not in plan or manifest.length_axis is None:
        raise CostError(f"{source}: has no costs of batches", hint=_HINT)
    extent = manifest.axes[manifest.length_axis]
    cpus, steps = plan.get("cpus"), plan.get("length_percentiles") or [extent.lo, extent.hi]
    try:
        table = read_costs(plan, most_rows=layout.most_rows, longest=extent.hi, shortest=extent.lo)
        if not isinstance(cpus, int) or cpus < 1 or not all(isinstance(n, int) for n in steps):
            raise ValueError(f"it was measured on {cpus!r} CPUs")
    except ValueError as error:
        raise CostError(f"{source}: its costs make no sense: {error}", hint=_HINT) from None
    return Serving(table, cpus, {n: steps.count(n) for n in steps}, layout.mixes)


@dataclass(frozen=True)
class TextServing:
    """The costs of a language model's runs.

    Attributes:
        costs: the costs of prompts and tokens.
        cpus: the CPUs that they were measured on.
        max_context: tokens of the longest text.
    """

    costs: TextCosts
    cpus: int
    max_context: int


def read_text_serving(
    bundle: str | os.PathLike[str], costs: Path | None = None
) -> TextServing | None:
    """Reads what texts of a language model cost from a file of measurements; None: the bundle is none.

    Raises:
        BundleError: the bundle is missing or damaged.
        CostError: there are no costs, or they make no sense.
    """
    manifest = _read_manifest(bundle)
    spec = manifest.generation
    if spec is None or spec.kind == SEQ2SEQ:
        return None
    if costs is None:
        raise CostError(f"{bundle}: a bundle has no costs of texts", hint=_MEASURE)
    document, _ = read_object(costs, CostError, max_bytes=64 << 20, hint=_MEASURE)
    found, cpus = document.get("texts"), document.get("cpus")
    if not isinstance(found, dict):
        raise CostError(f"{costs}: has no costs of texts", hint=_MEASURE)
    try:
        prompts, steps = (_read_runs(found.get(name)) for name in ("prompts", "steps"))
        if not isinstance(cpus, int) or cpus < 1:
            raise ValueError(f"they were measured on {cpus!r} CPUs")
        if sorted(steps) != list(range(1, len(steps) + 1)):
            raise ValueError("steps aren't of each number of texts from 1 on")
    except ValueError as error:
        raise CostError(f"{costs}: its costs make no sense: {error}", hint=_MEASURE) from None
    return TextServing(TextCosts(prompts, steps), cpus, spec.max_context)


def _read_runs(value: Any) -> dict[int, float]:
    """Seconds by a number, from pairs of that and milliseconds."""
    result = dict[int, float]()
    for pair in value if isinstance(value, list) else []:
        number, ms = pair if isinstance(pair, list) and len(pair) == 2 else (0, 0)
        whole = isinstance(number, int) and number >= 1
        if not whole or not isinstance(ms, (int, float)) or not 0 < ms < math.inf:
            raise ValueError(f"{pair!r} is no pair of a number from 1 on and milliseconds")
        result[number] = ms / 1e3
    if not result:
        raise ValueError("there are none")
    return result


def _read_manifest(bundle: str | os.PathLike[str]) -> Manifest:
    with closing(BundleFolder(os.fspath(bundle))) as folder:
        return folder.manifest
