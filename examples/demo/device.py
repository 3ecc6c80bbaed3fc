"""The demo's program on the device: the standard library, numpy and the bundle's own runtime.

    device.py check                    that torch can't be imported here
    device.py embed BUNDLE SENTENCES   embed sentences (token ids), show how similar they are

The runtime comes from the bundle: python3 BUNDLE device.py ...
"""

import importlib.metadata
import importlib.util
import json
import sys

import numpy as np


def check() -> None:
    """Ends the program with an error if torch could be imported."""
    for name in ("torch", "onnxruntime", "transformers", "tokenizers"):
        if importlib.util.find_spec(name) is not None:
            sys.exit(f"error: {name} can be imported in {sys.prefix}")
    packages = sorted(
        "{} {}".format(item.metadata["Name"], item.version)
        for item in importlib.metadata.distributions()
    )
    print("torch can't be imported; installed: " + ", ".join(packages))


def embed(bundle: str, sentences: str) -> None:
    """Prints the cosine similarity of every pair of sentences."""
    from edgecompile.runtime import open_bundle

    with open(sentences, encoding="utf-8") as stream:
        items = json.load(stream)
    rows = []
    with open_bundle(bundle) as model:
        for item in items:
            ids = np.array([item["input_ids"]], dtype=np.int64)
            outputs = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
            rows.append(outputs["sentence_embedding"][0])
    print("\n".join(["", *format_similarity([item["text"] for item in items], np.stack(rows)), ""]))


def format_similarity(texts: list[str], embeddings: np.ndarray) -> list[str]:
    """A table of the cosines of all pairs, a line each; the embeddings have length 1."""
    similarity = embeddings @ embeddings.T
    width = max(16, *map(len, texts))
    lines = ["cosine similarity".ljust(width + 3)]
    lines[0] += "".join(f"{i + 1:6}" for i in range(len(texts)))
    for i, text in enumerate(texts):
        lines.append(f"{i + 1:2} {text.ljust(width)}" + "".join(f"{x:6.2f}" for x in similarity[i]))
    return lines


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
    elif len(sys.argv) == 4 and sys.argv[1] == "embed":
        embed(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
