"""Reads what a server is planned by from a bundle, or from a measurement of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import CostError
from edgecompile.json_files import read_object
from edgecompile.runtime.format.folder import BundleFolder
from edgecompile.server.schedule.batches import Batches
from edgecompile.server.schedule.costs import CostTable, read_costs

_BUILD = 'build it with `profile="server"`'
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
    folder = BundleFolder(os.fspath(bundle))
    try:
        manifest = folder.manifest
    finally:
        folder.close()
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
