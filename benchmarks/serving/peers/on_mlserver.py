"""Runs in MLServer's environment: MODEL INSTANCES THREADS BATCH PORT; ends with its stdin.

A text's ids are one element of type BYTES: of tensors of several lengths it would mix up the rows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings, types
from mlserver.codecs import NumpyCodec

from benchmarks.serving.connections import free_ports
from benchmarks.serving.peers.engine import Engine


class Encoder(MLModel):  # type: ignore[misc]  # its package isn't in this environment
    """A worker's model."""

    async def load(self) -> bool:
        """Makes the session."""
        self.engine = Engine(
            self.settings.parameters.uri, self.settings.parameters.extra["threads"]
        )
        return True

    async def predict(self, payload: Any) -> Any:
        """Embeds the texts of a batch."""
        texts = [np.array(item.split(), np.int64) for item in payload.inputs[0].data]
        output = NumpyCodec.encode_output("embedding", self.engine.run(texts))
        return types.InferenceResponse(model_name=self.name, outputs=[output])


async def main() -> None:
    """Serves; its server wants to be made on the loop."""
    from benchmarks.serving.peers.on_mlserver import Encoder  # as its workers import it

    path, (instances, threads, most, port) = sys.argv[1], map(int, sys.argv[2:])
    other = free_ports(2)
    settings = Settings(
        host="127.0.0.1",
        http_port=port,
        grpc_port=other[0],
        metrics_port=other[1],
        parallel_workers=instances,
        load_models_at_startup=False,
        debug=False,
    )
    model = ModelSettings(
        name="minilm",
        implementation=Encoder,
        max_batch_size=most if most > 1 else 0,
        max_batch_time=0.005 if most > 1 else 0,
        parameters={"uri": path, "extra": {"threads": threads}},
    )

    def wait() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(main())
