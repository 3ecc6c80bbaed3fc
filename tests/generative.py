"""A generative bundle of the decoder of tests/factories/decoder.py, made by the real pipeline.

The stages compile and pack the decoder as any model. What makes the bundle a generative one (the
key "generation", golden vectors that begin behind row 0, golden generations) is put in afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, NativeError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.text import CHAT_FILE
from edgecompile.runtime.generation.prefix import FILE as PREFIX_FILE
from tests.runtime.golden_files import write_case
from tests.runtime.texts import TOKENIZER, a_tokenizer

EOS = 7
PROMPTS = [[5], [1, 2, 3], [9] * 17, list(range(1, 41)), [3, 1, 4, 1, 5, 9, 2, 6] * 9]
NEW_TOKENS = 12
#: (length, context, position, last) of the golden vectors that are added, by bucket.
GOLDEN = {0: (1, 128, 100, 0), 1: (11, 64, 40, 10), 2: (20, 192, 160, 7)}


def generation_entry(caches: list[str], max_context: int, pad: int) -> dict[str, Any]:
    """The manifest's "generation"."""
    return {
        "kind": "causal-lm",
        "input": "input_ids",
        "position": "position",
        "last": "last",
        "logits": "logits",
        "length_axis": "length",
        "context_axis": "context",
        "max_context": max_context,
        "caches": caches,
        "eos": [EOS],
        "bos": None,
        "pad": pad,
        "defaults": {"max_new_tokens": 30},
    }


def build_decoder(output: Path, work: Path) -> None:
    """Compiles the decoder in three buckets (one token, padded to 16, 17 to 32) and packs it."""
    from edgecompile.backends.compilation import compile_buckets
    from edgecompile.buckets.plan import BucketPlan
    from edgecompile.buckets.ranges import AxisRange, Bucket
    from edgecompile.bundle.staging import Staging
    from edgecompile.export.store import ExportStore, export_buckets
    from edgecompile.loaders.load import load_model
    from edgecompile.models.modules import NamedModule
    from edgecompile.pipeline.packing import Contents, pack_bundle
    from edgecompile.targets.profile import load_target
    from tests.factories import decoder as d

    model = load_model(f"{Path(d.__file__)}:decoder")
    # Of inputs that a factory's model changes it would get copies; the caches are meant to change.
    assert isinstance(model.module, NamedModule) and set(model.module.copied) == set(d.CACHES)
    model.module.copied = ()
    inputs = tuple(replace(spec, in_place=spec.name in d.CACHES) for spec in model.inputs)
    model = replace(model, inputs=inputs, notes=())
    context = ("context", AxisRange(d.LEAST_CONTEXT, d.MAX_CONTEXT, d.LEAST_CONTEXT))
    buckets = (
        Bucket("exact", (("length", AxisRange(1, 1, 1)), context)),
        Bucket("pad", (("length", AxisRange(2, 16, 16)), context)),
        Bucket("exact", (("length", AxisRange(17, d.LONGEST_CHUNK, d.LONGEST_CHUNK)), context)),
    )
    store = ExportStore(model, work / "exported")
    exported = export_buckets(store, buckets)
    keys = [store.key(bucket) for bucket in buckets]
    profile = load_target("cpu-x86-64-v3")
    compiled = compile_buckets(exported, buckets, profile, work / "artifacts", keys=keys)
    assert all(
        made.lowering["counts"]["heads"] for made in compiled.artifacts[profile.variants[0].name]
    )
    contents = Contents(model, BucketPlan("length", buckets), compiled)
    with Staging(work / "packed.ecb") as claim:
        made = pack_bundle(contents, claim)
    make_generative(made.bundle_path, model.module)
    os.rename(made.bundle_path, output)


def make_generative(folder: Path, module: Any) -> None:
    """Turns the packed decoder into a generative bundle; everything expected comes from eager."""
    import torch

    from tests.factories import decoder as d

    document = json.loads((folder / "manifest.json").read_bytes())
    for entry in document["inputs"]:
        if entry["name"] in ("position", "last"):
            entry["bounds"] = None
    document["generation"] = generation_entry(d.CACHES, d.MAX_CONTEXT, d.PAD)
    document["generation"]["masked_head"] = True
    random = np.random.default_rng(3)
    files: dict[str, bytes] = {}
    for bucket, (length, rows, position, last) in GOLDEN.items():
        inputs: dict[str, Any] = {
            "input_ids": random.integers(1, d.VOCABULARY, (1, length)),
            "position": np.array([position]),
            "last": np.array([last]),
        }
        for name in d.CACHES:
            shape = (rows, d.KV_HEADS, d.HEAD_DIM)
            inputs[name] = random.standard_normal(shape, dtype=np.float32)
        # Copies: the module changes what it is given.
        tensors = {name: torch.from_numpy(array.copy()) for name, array in inputs.items()}
        with torch.no_grad():
            outputs = {"logits": module(**tensors)["logits"].numpy()}
        name = f"golden/{bucket}-inside.npz"
        files[name] = write_case(inputs, outputs)
        document["golden"].append({"bucket": bucket, "case": "inside", "file": name})
    cases = [{"prompt": p, "tokens": d.generate(module, p, NEW_TOKENS)} for p in PROMPTS]
    files["golden/generation.json"] = json.dumps({"cases": cases}).encode()
    replace_files(folder, document, files)


def replace_files(folder: Path, document: dict[str, Any], files: dict[str, bytes]) -> None:
    """Puts files into a bundle and writes its manifest anew, as ``document`` with them."""
    for name, data in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        document["files"][name] = {"size": len(data), "sha256": digest}
    data = json.dumps(document, indent=1).encode()
    parse_manifest(data)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_bytes(data)


def caches_behind(model: Model, tokens: list[int]) -> bytes:
    """The content of the file of a prompt's caches, by the bundle's own programs."""
    session = model.session()
    session.generate(tokens, max_new_tokens=1, do_sample=False, eos=())
    caches, spec = session._caches, session._spec
    rows = [caches.arrays[x][: len(tokens)] for x in spec.caches if x in caches.growing]
    states = [caches.arrays[x] for x in spec.caches if x not in caches.growing]
    parts = [np.array(tokens, "<i8"), *rows, *states]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def put_prefix(bundle: Path, output: Path, data: bytes) -> Path:
    """A copy of a bundle with a file of a prompt's caches."""
    shutil.copytree(bundle, output)
    document = json.loads((output / "manifest.json").read_text())
    (output / PREFIX_FILE).parent.mkdir()
    replace_files(output, document, {PREFIX_FILE: data})
    return output


def put_words(bundle: Path, output: Path) -> Path:
    """A copy of a bundle with a tokenizer of a word per token."""
    shutil.copytree(bundle, output)
    document = json.loads((output / "manifest.json").read_text())
    tokenizer = json.loads(a_tokenizer())
    words, size = tokenizer["model"]["vocab"], document["outputs"][0]["shape"][1]
    words.update({f"w{index}": index for index in range(len(words), size)})
    document["text"] = {
        "tokenizer": TOKENIZER, "max_length": 16, "pad_id": 0, "inputs": {"input_ids": "ids"},
    }  # fmt: skip
    (output / TOKENIZER).parent.mkdir()
    replace_files(output, document, {TOKENIZER: json.dumps(tokenizer).encode()})
    return output


def put_chat(bundle: Path) -> None:
    """Gives a bundle with words a chat template, as data alone: its program would fail."""
    turns = {
        "after": {
            "": {"user": {"before": "the ", "content": "strip"}, "system": {"before": "on ", "content": "as-is"}},
            "system": {"user": {"before": " the ", "content": "strip"}},
            "user": {"assistant": {"before": " sat ", "content": "strip"}},
            "assistant": {"user": {"before": " the ", "content": "strip"}},
        },
        "end": " sat",
    }  # fmt: skip
    chat = {"template": "{{ 1 / 0 }}", "special_tokens": {}, "turns": turns}
    document = json.loads((bundle / "manifest.json").read_bytes())
    replace_files(bundle, document, {CHAT_FILE: json.dumps(chat).encode()})


@contextmanager
def broken_runs(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets every run fail, and asserts that the caller is told."""

    def fail(*given: Any) -> None:
        raise NativeError("broken")

    with monkeypatch.context() as patch, pytest.raises(NativeError, match="broken"):
        patch.setattr(model, "run_bound", fail)
        yield
