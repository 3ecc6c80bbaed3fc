"""Runs in Triton's environment: MODEL INSTANCES THREADS BATCH PORT; ends with its stdin.

A text's ids are one element of type BYTES: tensors of equal shape, which the batcher joins whatever their lengths.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.serving.connections import free_ports
from benchmarks.serving.peers.engine import SIZE, Engine


def make(path: str, threads: int) -> Any:
    """What an instance runs."""
    engine = Engine(path, threads)

    @batch  # type: ignore[untyped-decorator]
    def run(ids: Any) -> list[Any]:
        return [engine.run([np.frombuffer(item, np.int64) for item in ids[:, 0]])]

    return run


def main() -> None:
    path, (instances, threads, most, port) = sys.argv[1], map(int, sys.argv[2:])
    other = free_ports(2)
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_port=other[0],
        metrics_port=other[1],
        # Its own client's connections stay open, and it would wait for them for 30 s.
        exit_timeout_secs=1,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="minilm",
            infer_func=[make(path, threads) for _ in range(instances)],
            inputs=[Tensor(name="ids", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="embedding", dtype=np.float32, shape=(SIZE,))],
            config=ModelConfig(max_batch_size=most, batcher=DynamicBatcher()),
        )
        triton.run()
        sys.stdin.read()


if __name__ == "__main__":
    main()
