"""Triton's own client asks a server of ours; run by test_tritonclient.py in an environment of its own."""

from __future__ import annotations

import json
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

PAIR = triton.InferRequestedOutput("pooler_output", class_count=2)
WRONG = {
    "model": lambda c: c.infer("other", inputs([1])),
    "version": lambda c: c.infer("tiny", inputs([1]), model_version="9"),
    "missing": lambda c: c.infer("tiny", inputs([1])[1:]),
    "datatype": lambda c: c.infer("tiny", [tensor("input_ids", [1], np.float32), inputs([1])[1]]),
    "output": lambda c: c.infer("tiny", inputs([1]), outputs=[triton.InferRequestedOutput("x")]),
    "classes": lambda c: c.infer("tiny", inputs([1]), outputs=[PAIR]),
    "vocabulary": lambda c: c.infer("tiny", inputs([10**9])),
}


def tensor(name: str, row: list[int], dtype: type = np.int64) -> triton.InferInput:
    array = np.array([row], dtype)
    made = triton.InferInput(name, list(array.shape), "INT64" if dtype is np.int64 else "FP32")
    made.set_data_from_numpy(array)
    return made


def inputs(row: list[int]) -> list[triton.InferInput]:
    return [tensor("input_ids", row), tensor("attention_mask", [1] * len(row))]


def main(address: str) -> None:
    client = triton.InferenceServerClient(address)
    told: dict[str, object] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": [client.is_model_ready(name) for name in ("tiny", "other")],
        "server": client.get_server_metadata(as_json=True),
        "model": client.get_model_metadata("tiny", as_json=True),
    }
    answers = []
    for row in ([5, 6, 7], list(range(5, 25))):
        result = client.infer("tiny", inputs(row), request_id="me", timeout=60_000_000)
        names = [output.name for output in result.get_response().outputs]
        answers.append(
            {
                "row": row,
                "id": result.get_response().id,
                "outputs": {name: result.as_numpy(name).tolist() for name in names},
            }
        )
    told["answers"] = answers
    texts = triton.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["the cat sat", "the"], object))
    pooled = triton.InferRequestedOutput("pooler_output")
    embeddings = client.infer("tiny", [texts], outputs=[pooled]).as_numpy("pooler_output")
    told["texts"] = embeddings.tolist()
    told["config"] = client.get_model_config("tiny", as_json=True)
    told["statistics"] = client.get_inference_statistics("tiny", as_json=True)
    refusals = {}
    for name, ask in WRONG.items():
        try:
            ask(client)
            refusals[name] = ["OK", ""]
        except InferenceServerException as error:
            refusals[name] = [str(error.status()), error.message()]
    told["refusals"] = refusals
    client.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
