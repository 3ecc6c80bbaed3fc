"""Runs in Ray's environment: MODEL INSTANCES THREADS BATCH PORT; ends with its stdin."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.serving.peers.engine import Engine

#: More than ever ask at once: where its replicas are full, Ray's router asks again only after 0.025 to 0.5 s, in
#: which they have nothing to do (ray-project/ray issue 52609).
ONGOING = 1024


def make(path: str, instances: int, threads: int, most: int) -> Any:
    """The application."""

    @serve.deployment(
        num_replicas=instances,
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=ONGOING,
    )
    class Encoder:
        def __init__(self) -> None:
            self.engine = Engine(path, threads)

        @serve.batch(max_batch_size=most, batch_wait_timeout_s=0.005)  # type: ignore[untyped-decorator]
        async def embed(self, bodies: list[bytes]) -> list[bytes]:
            texts = [np.frombuffer(body, np.int64) for body in bodies]
            embeddings = await asyncio.to_thread(self.engine.run, texts)
            return [row.tobytes() for row in embeddings]

        async def __call__(self, request: Request) -> Response:
            return Response(await self.embed(await request.body()))

    return Encoder.bind()  # type: ignore[attr-defined]


def main() -> None:
    path, (instances, threads, most, port) = sys.argv[1], map(int, sys.argv[2:])
    ray.init(num_cpus=instances * threads, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(make(path, instances, threads, most))
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
