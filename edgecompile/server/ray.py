"""An application for Ray Serve, over many machines: each replica is our server, with its own scheduler.

    serve run edgecompile.server.ray:app bundle=/models/minilm.ecb max_replicas=8

Needs the extra ``ray``. Requests that a replica had begun are lost with it: clients repeat them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.model.proof import prove
from edgecompile.server.http.app import App
from edgecompile.server.serving import Repository, ServedModel
from edgecompile.server.settings import Settings


@dataclass(frozen=True)
class Options:
    """The options of the application.

    Attributes:
        bundle: its folder, at the same path on every machine.
        name: the name for clients; "": the bundle's own name.
        threads: the threads of a replica, which takes as many of a machine's CPUs.
        min_replicas, max_replicas: the smallest and the largest number of replicas of the
            deployment.
        slo_ms: the deadline of requests that name none; 0: none.
        backlog_ms: predicted work that a replica may have waiting before there is another one;
            0: a quarter of the deadline, or 100.
        token_ids: 1 where ids in place of texts are taken, as the model's own; 0: they are refused.
        lookup: 1 where texts try tokens that followed the same ones before; 0: they don't.
    """

    bundle: str
    name: str = ""
    threads: int = 2
    min_replicas: int = 1
    max_replicas: int = 4
    slo_ms: float = 0.0
    backlog_ms: float = 0.0
    token_ids: int = 0
    lookup: int = 0

    @property
    def backlog_s(self) -> float:
        """The backlog that is aimed at: below the deadline, past which nothing is admitted."""
        return (self.backlog_ms or self.slo_ms / 4 or 100.0) / 1e3


def read_options(arguments: Mapping[str, Any]) -> Options:
    """Options from the arguments of ``serve run`` or of a configuration file.

    Raises:
        InputError: lists what is wrong with them.
    """
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    types = {item.name: kinds[str(item.type)] for item in fields(Options)}
    problems = [f"there is no option {name!r:.40}" for name in arguments if name not in types]
    values = {}
    for name, kind in types.items():
        if name in arguments:
            try:
                values[name] = kind(arguments[name])
            except (TypeError, ValueError):
                problems.append(f"{name}={arguments[name]!r:.40} isn't of type {kind.__name__}")
    if not values.get("bundle"):
        problems.append("bundle=FOLDER is missing")
    if not problems:
        options = Options(**values)
        if not 1 <= options.min_replicas <= options.max_replicas:
            problems.append(
                f"min_replicas={options.min_replicas}, max_replicas={options.max_replicas}"
            )
        if options.threads < 1:
            problems.append(f"threads={options.threads}, must be from 1 on")
        if not (0 <= options.slo_ms < math.inf and 0 <= options.backlog_ms < math.inf):
            problems.append("slo_ms and backlog_ms are milliseconds")
    if problems:
        raise InputError("the application can't be made: " + "; ".join(problems))
    return options


class Replica:
    """A bundle behind the server's routes, in an actor of Ray."""

    def __init__(self, options: Options) -> None:
        """Opens the bundle and repeats its golden vectors; Ray calls it on the replica's event loop.

        Raises:
            EdgecompileError: the bundle can't be served on this machine.
        """
        slo = options.slo_ms / 1e3 or None
        self._model = ServedModel(
            open_bundle(options.bundle, threads=options.threads, concurrency=options.threads),
            options.name or None,
            lookup=options.lookup == 1,
        )
        prove(self._model.model)
        self._model.proven = True
        settings = Settings(slo_s=slo, threads=options.threads, token_ids=options.token_ids == 1)
        self._app = App(Repository([self._model]), settings)

    def __serve_build_asgi_app__(self) -> App:
        """The application that Ray hands requests to."""
        return self._app

    async def check_health(self) -> None:
        """Raises if a run is stuck, or the GPU is broken; Ray then replaces the replica."""
        if reason := self._app.sick():
            raise RuntimeError(reason)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures for :class:`Backlog`."""
        return {"backlog_s": self._model.scheduler.backlog}


class Backlog:
    """Ray's autoscaling: so many replicas that none has more predicted work waiting than ``target_s``."""

    def __init__(self, target_s: float) -> None:
        self.target_s = target_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that are wanted; Ray's delays and bounds come on top."""
        latest = (context.aggregated_metrics or {}).get("backlog_s", {})
        replicas = self.wanted(latest.values(), context.current_num_replicas)
        return max(
            context.capacity_adjusted_min_replicas,
            min(context.capacity_adjusted_max_replicas, replicas),
        ), {}

    def wanted(self, backlogs: Iterable[float], replicas: int) -> int:
        """Replicas for these backlogs in seconds; as many as there are while none has told its own."""
        seconds = list(backlogs)
        return max(1, math.ceil(sum(seconds) / self.target_s)) if seconds else replicas


def app(args: Mapping[str, Any]) -> Any:
    """The application, for ``serve run`` and ``serve.run``.

    Args:
        args: see :class:`Options`.

    Raises:
        InputError: the arguments make no sense.
        ImportError: Ray isn't installed.
    """
    options = read_options(args)
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    policy = AutoscalingPolicy(
        policy_function=f"{__name__}:{Backlog.__name__}",
        policy_kwargs={"target_s": options.backlog_s},
    )
    scaling = AutoscalingConfig(
        min_replicas=options.min_replicas,
        initial_replicas=options.min_replicas,
        max_replicas=options.max_replicas,
        policy=policy,
        metrics_interval_s=1,
        look_back_period_s=5,
        upscale_delay_s=5,
        downscale_delay_s=300,
    )
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="edgecompile",
        autoscaling_config=scaling,
        # The queue is ours: it knows what each request costs.
        max_ongoing_requests=Settings().limits.queue,
        ray_actor_options={"num_cpus": options.threads},
        health_check_period_s=1,
    )
    return deployment.bind(options)
