"""A generative manifest with dummy libraries, and what breaks each rule about it."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np

from tests.runtime.bundles import DELETE, DummyBundle
from tests.runtime.golden_files import write_case

CONTEXT = {"lo": 8, "hi": 64, "hint": 40}
INPUTS: list[dict[str, Any]] = [
    {"name": "input_ids", "dtype": "int64", "shape": [1, "length"], "pad": 0, "bounds": [0, 99]},
    {"name": "position", "dtype": "int64", "shape": [1], "pad": None, "bounds": None},
    {"name": "last", "dtype": "int64", "shape": [1], "pad": None, "bounds": None},
    {"name": "key", "dtype": "float32", "shape": ["context", 2, 3], "pad": 0, "bounds": None},
    {"name": "value", "dtype": "float32", "shape": ["context", 2, 4], "pad": 0.5, "bounds": None},
]
#: The first of the caches in bfloat16.
HALF: dict[str, Any] = {**INPUTS[3], "dtype": "bfloat16", "pad": None}
#: The first of the caches in int8, of two heads of 3 numbers.
SCALED: dict[str, Any] = {**INPUTS[3], "dtype": "int8", "shape": ["context", 2, 5]}
GENERATION: dict[str, Any] = {
    "kind": "causal-lm",
    "input": "input_ids",
    "position": "position",
    "last": "last",
    "logits": "logits",
    "length_axis": "length",
    "context_axis": "context",
    "max_context": 64,
    "caches": ["key", "value"],
    "eos": [1, 2],
    "bos": 3,
    "pad": 0,
    "defaults": {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 50,
        "top_p": 1,
        "repetition_penalty": 1.1,
        "max_new_tokens": 20,
    },
}


def bucket(mode: str, lo: int, hi: int) -> dict[str, Any]:
    return {
        "mode": mode,
        "axes": {"length": {"lo": lo, "hi": hi, "hint": hi}, "context": dict(CONTEXT)},
    }


def make_generative(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into a valid generative one of two buckets."""
    document = bundle.document
    document["inputs"] = copy.deepcopy(INPUTS)
    document["outputs"] = [{"name": "logits", "dtype": "float32", "shape": [1, 100]}]
    document["axes"] = {
        "length": {"lo": 1, "hi": 16},
        "context": {"lo": CONTEXT["lo"], "hi": CONTEXT["hi"]},
    }
    document["buckets"] = [bucket("exact", 1, 1), bucket("pad", 2, 16)]
    document["generation"] = copy.deepcopy(GENERATION)
    put_golden_runs(bundle)
    put_generations(bundle, {"cases": [{"prompt": [1, 5], "tokens": [7, 8]}]})


def put_golden_runs(bundle: DummyBundle, **beside: np.ndarray | None) -> None:
    """A golden run for each bucket of the generative bundle, with further inputs; without those of None."""
    for index, length in ((0, 1), (1, 5)):
        inputs = {
            "input_ids": np.ones((1, length), np.int64),
            "position": np.array([3]),
            "last": np.array([0]),
            "key": np.zeros((40, 2, 3), np.float32),
            "value": np.zeros((40, 2, 4), np.float32),
            **beside,
        }
        inputs = {name: array for name, array in inputs.items() if array is not None}
        outputs = {"logits": np.zeros((1, 100), np.float32)}
        bundle.files[f"golden/{index}-hint.npz"] = write_case(inputs, outputs)


def make_halves(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into a generative one, one of whose caches is bfloat16."""
    make_generative(bundle)
    bundle.document["inputs"][3] = copy.deepcopy(HALF)
    put_golden_runs(bundle, key=np.full((40, 2, 3), 0x3F80, np.uint16))


def make_lookup(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into a generative one with runs that give several rows of logits."""
    make_generative(bundle)
    document = bundle.document
    document["outputs"][0]["shape"] = [None, 100]
    document["axes"]["length"]["hi"] = 8
    document["buckets"] = [bucket("exact", 1, 1), bucket("exact", 2, 8)]
    document["generation"]["lookup"] = 8
    outputs = {"logits": np.zeros((5, 100), np.float32)}
    inputs = {
        "input_ids": np.ones((1, 5), np.int64),
        "position": np.array([3]),
        "last": np.array([0]),
        "key": np.zeros((40, 2, 3), np.float32),
        "value": np.zeros((40, 2, 4), np.float32),
    }
    bundle.files["golden/1-hint.npz"] = write_case(inputs, outputs)


STATE: dict[str, Any] = {
    "name": "state", "dtype": "float32", "shape": [4, 5], "pad": None, "bounds": None,
}  # fmt: skip


def make_recurrent(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into that of a model with a state of a fixed size beside its caches."""
    make_generative(bundle)
    document = bundle.document
    document["inputs"].append(copy.deepcopy(STATE))
    document["generation"]["kind"] = "recurrent-lm"
    document["generation"]["caches"].append("state")
    put_golden_runs(bundle, state=np.zeros((4, 5), np.float32))


def make_states_alone(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into that of a model without a cache that grows."""
    make_recurrent(bundle)
    document = bundle.document
    document["inputs"] = [item for item in document["inputs"] if "context" not in item["shape"]]
    del document["axes"]["context"]
    for item in document["buckets"]:
        del item["axes"]["context"]
    document["generation"].update(caches=["state"], context_axis=None)
    put_golden_runs(bundle, state=np.zeros((4, 5), np.float32), key=None, value=None)


CROSS: list[dict[str, Any]] = [
    {"name": name, "dtype": "float32", "shape": ["source", 2, 3], "pad": 0, "bounds": None}
    for name in ("cross_key", "cross_value")
]
SOURCE: dict[str, Any] = {
    "kind": "seq2seq",
    "encoder": "encoder",
    "source": "input_ids",
    "cross": ["cross_key", "cross_value"],
    "start": [3],
    "suppress": [4],
    "suppress_first": [],
}
#: What stands for the encoder's manifest: a reader of the outer one only sees that it is listed.
ENCODER_FILE = "encoder/manifest.json"


def make_seq2seq(bundle: DummyBundle) -> None:
    """Turns the dummy bundle into that of a decoder behind an encoder, whose own bundle is none."""
    make_generative(bundle)
    document = bundle.document
    document["inputs"] += copy.deepcopy(CROSS)
    document["axes"]["source"] = {"lo": 1, "hi": 32}
    for item in document["buckets"]:
        item["axes"]["source"] = {"lo": 1, "hi": 32, "hint": 8}
    document["generation"].update(copy.deepcopy(SOURCE))
    bundle.files[ENCODER_FILE] = b"{}"
    put_golden_runs(bundle, **{item["name"]: np.zeros((8, 2, 3), np.float32) for item in CROSS})
    put_generations(bundle, {"cases": [{"source": [9], "prompt": [3, 5], "tokens": [7, 8]}]})


def put_generations(bundle: DummyBundle, document: Any) -> None:
    bundle.files["golden/generation.json"] = json.dumps(document).encode()


NARROW = {
    "mode": "exact",
    "axes": {
        "length": {"lo": 2, "hi": 16, "hint": 9},
        "context": {"lo": 8, "hi": 12, "hint": 9},
    },
}


def batch(texts: int, program: str = "code/x86-64-v3/bucket-0.so") -> dict[str, Any]:
    return {"texts": texts, "programs": {"x86-64-v3": program}}


#: (rule, key path, value that breaks it, text of the error), as in test_hostile_manifest.py
HOSTILE_GENERATIONS: list[tuple[str, str, Any, str]] = [
    ("key-type", "generation", None, "generation: must be an object, not null"),
    ("key-type", "generation", [], "generation: must be an object, not list"),
    *[("key-missing", f"generation.{key}", DELETE, f"generation.{key}") for key in GENERATION],
    *[("key-type", f"generation.{key}", 0.5, f"generation.{key}: must be") for key in GENERATION],
    ("key-type", "generation.caches.0", 3, "generation.caches[0]: must be a string"),
    ("key-type", "generation.eos.1", "2", "generation.eos[1]: must be an integer"),
    ("key-type", "generation.bos", "<s>", "generation.bos: must be an integer, not string"),
    ("key-type", "generation.pad", True, "generation.pad: must be an integer, not true/false"),
    ("key-type", "generation.defaults.do_sample", 1, "must be true or false, not integer"),
    ("key-type", "generation.defaults.top_k", 1.0, "defaults.top_k: must be an integer"),
    ("key-type", "generation.defaults.top_p", None, "defaults.top_p: must be a number, not null"),
    ("list-size", "generation.caches", [], "generation.caches: has 0 entries"),
    ("list-size", "generation.eos", [1] * 65, "has 65 entries, must have 0 to 64"),
    ("generation-kind", "generation.kind", "seq2seq-lm", "'seq2seq-lm' is none of causal"),
    ("generation-default", "generation.defaults.temperature", -0.5, "-0.5 makes no sense"),
    ("generation-default", "generation.defaults.top_k", -1, "-1 isn't within 0..2147483647"),
    ("generation-default", "generation.defaults.top_p", 0, "defaults.top_p: 0 makes no sense"),
    ("generation-default", "generation.defaults.top_p", 1.5, "1.5 makes no sense"),
    ("generation-default", "generation.defaults.repetition_penalty", 0.0, "0.0 makes no sense"),
    ("generation-default", "generation.defaults.max_new_tokens", 0, "0 isn't within 1.."),
    ("generation-default", "generation.defaults.max_new_tokens", 2**31, "2147483648 isn't"),
    ("key-type", "generation.batch", 3, "generation.batch: must be an object, not integer"),
    ("key-missing", "generation.batch", {"texts": 2}, "generation.batch.programs: is required"),
    ("generation-batch", "generation.batch", batch(1), "1 isn't within 2..64"),
    ("key-type", "generation.windows", ["key"], "generation.windows: must be an object, not list"),
    ("key-type", "generation.windows", {"key": 8.0}, "windows.key: must be an integer"),
    ("list-size", "generation.windows", {}, "has 0 entries, must have 1 to 509"),
    ("generation-windows", "generation.windows", {"key": 0}, "0 of 'key' isn't within 1..63"),
    ("generation-windows", "generation.windows", {"value": 64}, "64 of 'value' isn't within"),
    ("generation-windows", "generation.windows", {"key": 2**62}, "isn't within 1..63"),
    ("generation-windows", "generation.windows", {"last": 8}, "'last' is none of the caches"),
    (
        "generation-windows",
        "generation.windows",
        {"no": 8},
        "'no' is none of the caches",
    ),
    ("key-type", "generation.masked_head", 1, "masked_head: must be true or false, not integer"),
    ("generation-batch", "generation.batch", batch(65), "65 isn't within 2..64"),
    ("path-listed", "generation.batch", batch(2, "code/no.so"), "isn't listed"),
    ("generation-axes", "generation.length_axis", "context", "'context' isn't the length_axis"),
    ("generation-axes", "generation.length_axis", "", "'' isn't the length_axis"),
    ("generation-axes", "generation.context_axis", "length", "'length' isn't another one"),
    ("generation-axes", "generation.context_axis", "rows", "'rows' isn't another one"),
    ("generation-axes", "generation.max_context", 65, "is 65, but the axis 'context' reaches 64"),
    ("generation-inputs", "generation.input", "ids", "'ids' isn't an input"),
    ("generation-inputs", "generation.last", "position", "an input is named twice"),
    ("generation-inputs", "generation.caches", ["key", "key"], "an input is named twice"),
    ("generation-inputs", "generation.caches", ["key"], "what the input 'value' is"),
    ("generation-inputs", "generation.caches.1", "logits", "'logits' isn't an input"),
    ("generation-logits", "generation.logits", "key", "the only output must be 'key'"),
    ("generation-logits", "outputs.1", {"name": "x", "dtype": "int8", "shape": [1]}, "only output"),
    ("generation-shape", "inputs.0.dtype", "int32", "'input_ids' must be int64[1, length]"),
    ("generation-shape", "inputs.0.shape", ["length", 1], "'input_ids' must be int64[1, length]"),
    ("generation-shape", "inputs.1.shape", [], "'position' must be int64[1]"),
    ("generation-shape", "inputs.2.dtype", "int32", "'last' must be int64[1]"),
    ("generation-shape", "inputs.3.dtype", "float16", "'key' must be float32[context, 2, 3]"),
    ("generation-shape", "inputs.2.dtype", "bfloat16", "'last' must be int64[1]"),
    ("dtype-known", "outputs.0.dtype", "bfloat16", "outputs[0].dtype: 'bfloat16'"),
    ("dtype-cache", "inputs.3.dtype", "bfloat16", "inputs[3].pad: must be null, as it is bfloat16"),
    ("dtype-cache", "inputs.3", {**HALF, "bounds": [0, 1]}, "inputs[3].bounds: must be null"),
    ("dtype-cache", "inputs.3", {**HALF, "default": 0}, "inputs[3].default: must be null"),
    ("generation-shape", "inputs.3", {**HALF, "shape": [2, 3]}, "'key' must be bfloat16[context"),
    ("generation-shape", "inputs.3", {**SCALED, "shape": [2, 5]}, "'key' must be int8[context"),
    (
        "generation-shape",
        "inputs.3",
        {**SCALED, "dtype": "uint8"},
        "must be float32[context, 2, 5]",
    ),
    ("generation-scales", "inputs.3", {**SCALED, "shape": ["context", 2, 2]}, "rows of 2 bytes"),
    ("generation-scales", "inputs.3", {**SCALED, "shape": ["context", 1]}, "rows of 1 bytes"),
    ("generation-scales", "inputs.3", {**SCALED, "shape": ["context", 2, 69]}, "of 69 bytes"),
    ("generation-scales", "inputs.3", {**SCALED, "shape": ["context", 2, 70]}, "of 70 bytes"),
    ("generation-shape", "inputs.3.shape", [2, "context"], "fixed sizes behind it"),
    ("generation-shape", "inputs.3.shape", [2, 3], "'key' must be float32[context, 3]"),
    ("generation-shape", "inputs.4.shape", ["context"], "'value' must have the context's axis"),
    ("generation-shape", "inputs.4.shape", ["context", "context"], "fixed sizes behind it"),
    ("generation-shape", "outputs.0.shape", [1, "length"], "float32 of the shape [1, vocabulary]"),
    ("generation-shape", "outputs.0.shape", [100], "float32 of the shape [1, vocabulary]"),
    ("generation-shape", "outputs.0.shape", [2, 100], "'logits' must be float32[1, 100]"),
    ("generation-shape", "outputs.0.dtype", "float64", "'logits' must be float32[1, 100]"),
    ("generation-tokens", "inputs.0.bounds", None, "must hold every token, 0..99"),
    ("generation-tokens", "inputs.0.bounds", [0, 98], "must hold every token, 0..99"),
    ("generation-tokens", "outputs.0.shape", [1, 101], "must hold every token, 0..100"),
    ("generation-tokens", "generation.pad", 5, "is 5, but the input 'input_ids' is padded with 0"),
    ("generation-tokens", "generation.eos", [100], "generation.eos: 100 isn't a token, 0..99"),
    ("generation-tokens", "generation.eos", [-1], "-1 isn't a token"),
    ("generation-tokens", "generation.bos", 2**63 - 1, "generation.bos: 9223372036854775807 isn't"),
    ("generation-bounds", "inputs.1.bounds", [0, 62], "must be null or hold 0..63"),
    ("generation-bounds", "inputs.1.bounds", [1, 63], "must be null or hold 0..63"),
    ("generation-bounds", "inputs.2.bounds", [0, 14], "must be null or hold 0..15"),
    ("generation-buckets", "buckets.0", bucket("pad", 1, 16), "no bucket takes one token"),
    ("generation-buckets", "buckets.0.axes.context.lo", 9, "no bucket takes one token"),
    ("generation-buckets", "buckets.1.axes.context.hint", 15, "hint 15 is less than 16 tokens"),
    ("generation-buckets", "buckets.1", NARROW, "takes more tokens, 16, than context, 12"),
    ("generation-buckets", "buckets.1.pad_axes", ["length", "context"], "pads the context"),
]

STEPPED = {
    "mode": "stepped",
    "axes": {"length": {"lo": 2, "hi": 8, "hint": 8, "step": 2}, "context": dict(CONTEXT)},
}

#: The same of a bundle with runs that give several rows of logits.
HOSTILE_LOOKUPS: list[tuple[str, str, Any, str]] = [
    ("key-type", "generation.lookup", "8", "generation.lookup: must be an integer, not string"),
    ("generation-lookup", "generation.lookup", 1, "generation.lookup: 1 isn't within 2..8"),
    ("generation-lookup", "generation.lookup", 9, "generation.lookup: 9 isn't within 2..8"),
    ("generation-lookup", "generation.lookup", 7, "no bucket takes 2 to 7 tokens"),
    ("generation-lookup", "generation.lookup", 7, "bucket 1 takes 2 to 8 tokens"),
    ("generation-lookup", "buckets.1", STEPPED, "no bucket takes 2 to 8 tokens"),
    ("generation-shape", "outputs.0.shape", [1, 100], "'logits' must be float32[null, 100]"),
    ("generation-shape", "generation.lookup", DELETE, "'logits' must be float32[1, 100]"),
]

#: The same of a bundle with a state of a fixed size.
HOSTILE_STATES: list[tuple[str, str, Any, str]] = [
    ("generation-states", "inputs.5.shape", ["context", 4], "all have the context's axis"),
    ("generation-shape", "generation.kind", "causal-lm", "'state' must be float32[context, 5]"),
    ("generation-shape", "generation.context_axis", None, "'key' must be float32 of fixed sizes"),
    ("generation-shape", "inputs.5.dtype", "float64", "'state' must be float32 of fixed sizes"),
    ("generation-shape", "inputs.5.dtype", "bfloat16", "'state' must be float32 of fixed sizes"),
    ("generation-shape", "inputs.5.dtype", "int8", "'state' must be float32 of fixed sizes"),
    ("generation-shape", "inputs.5.shape", [], "'state' must be float32 of fixed sizes"),
    ("generation-shape", "inputs.5.shape", [4, "context"], "'state' must be float32 of fixed"),
    ("generation-shape", "inputs.3.shape", ["context"], "'key' must have the context's axis first"),
    ("generation-inputs", "generation.caches.2", "states", "'states' isn't an input"),
    ("generation-windows", "generation.windows", {"state": 3}, "'state' has no row for each token"),
]

#: The same of a bundle without a cache that grows.
HOSTILE_STATES_ALONE: list[tuple[str, str, Any, str]] = [
    ("key-missing", "generation.context_axis", DELETE, "generation.context_axis: is required"),
    ("key-type", "generation.kind", "causal-lm", "context_axis: must be a string, not null"),
    ("generation-axes", "generation.context_axis", "context", "'context' isn't another one"),
    ("generation-axes", "generation.max_context", 0, "is 0, must be 1 to 2147483647"),
    ("generation-axes", "generation.max_context", 2**31, "is 2147483648, must be 1 to"),
    ("generation-buckets", "generation.max_context", 15, "a run can have 16 tokens, a text 15"),
    (
        "generation-buckets",
        "buckets.0",
        {"mode": "pad", "axes": {"length": {"lo": 1, "hi": 16, "hint": 16}}},
        "no bucket takes one token",
    ),
]

#: The same of a bundle behind an encoder.
HOSTILE_SOURCES: list[tuple[str, str, Any, str]] = [
    ("generation-batch", "generation.batch", batch(2), "isn't for the kind seq2seq"),
    ("generation-head", "generation.masked_head", False, "isn't for the kind seq2seq"),
    ("generation-windows", "generation.windows", {"key": 8}, "isn't for the kind seq2seq"),
    *[("key-missing", f"generation.{key}", DELETE, f"generation.{key}") for key in SOURCE],
    *[("key-type", f"generation.{key}", 0.5, f"generation.{key}: must be") for key in SOURCE],
    ("key-type", "generation.cross.0", 3, "generation.cross[0]: must be a string"),
    ("key-type", "generation.start.0", "3", "generation.start[0]: must be an integer"),
    ("list-size", "generation.start", [], "generation.start: has 0 entries, must have 1 to 64"),
    ("list-size", "generation.cross", [], "generation.cross: has 0 entries"),
    ("generation-inputs", "generation.kind", "causal-lm", "what the input 'cross_key' is"),
    ("generation-inputs", "generation.cross", ["cross_key"], "what the input 'cross_value' is"),
    ("generation-inputs", "generation.cross.0", "key", "an input is named twice"),
    ("generation-encoder", "generation.encoder", "inner", "'inner/manifest.json' isn't listed"),
    ("generation-encoder", "generation.encoder", "", "'/manifest.json' isn't listed"),
    ("generation-tokens", "generation.start", [100], "generation.start: 100 isn't a token"),
    ("generation-tokens", "generation.start", [3] * 64, "has 64 tokens, the context 64"),
    ("generation-tokens", "generation.suppress", [-1], "generation.suppress: -1 isn't a token"),
    ("generation-tokens", "generation.suppress_first", [100], "suppress_first: 100 isn't a token"),
    ("generation-shape", "inputs.5.dtype", "float64", "must be float32[source, 2, 3]"),
    (
        "generation-shape",
        "inputs.5",
        {**CROSS[0], "dtype": "bfloat16", "pad": None},
        "must be float32[source, 2, 3]",
    ),
    ("generation-shape", "inputs.6.shape", [8, 2, 3], "must be float32[source, 2, 3]"),
    ("generation-shape", "inputs.6.shape", ["source", "source"], "fixed sizes behind it"),
    ("generation-shape", "inputs.5.shape", ["context", 2, 3], "can't have the size 'context'"),
    ("generation-shape", "inputs.5.shape", ["2*source", 2, 3], "can't have the size '2*source'"),
    ("generation-buckets", "buckets.1.axes.source.lo", 2, "bucket 1 doesn't take every source"),
    ("generation-buckets", "buckets.1.pad_axes", ["length", "source"], "pads the source"),
    ("generation-lookup", "generation.lookup", 8, "a model with an encoder has no such runs"),
]

#: What is wrong with golden/generation.json: (rule, document, text of the error).
HOSTILE_GOLDEN_GENERATIONS: list[tuple[str, Any, str]] = [
    ("key-missing", {}, "cases: is required"),
    ("list-size", {"cases": []}, "cases: has 0 entries, must have 1 to 1024"),
    ("key-type", {"cases": [[1]]}, "cases[0]: must be an object"),
    ("key-missing", {"cases": [{"prompt": [1]}]}, "cases[0].tokens: is required"),
    ("list-size", {"cases": [{"prompt": [], "tokens": [1]}]}, "prompt: has 0 entries"),
    ("key-type", {"cases": [{"prompt": [1.0], "tokens": [1]}]}, "must be an integer"),
    ("golden-generation", {"cases": [{"prompt": [100], "tokens": [1]}]}, "100 isn't a token"),
    ("golden-generation", {"cases": [{"prompt": [1], "tokens": [-1]}]}, "-1 isn't a token"),
    (
        "golden-generation",
        {"cases": [{"prompt": [1] * 60, "tokens": [1] * 5}]},
        "60 and 5 tokens, the context has 64",
    ),
]

#: The same of a bundle behind an encoder: one case.
HOSTILE_GOLDEN_SOURCES: list[tuple[str, Any, str]] = [
    ("key-missing", {"prompt": [3], "tokens": [1]}, "source: is required"),
    ("list-size", {"source": [], "prompt": [3], "tokens": [1]}, "source: has 0 entries"),
    ("key-type", {"source": ["a"], "prompt": [3], "tokens": [1]}, "must be an integer"),
    ("golden-generation", {"source": [1], "prompt": [1, 3], "tokens": [1]}, "start tokens"),
    (
        "golden-generation",
        {"source": {"shape": [1, 2], "float32": "AAAA"}, "prompt": [3], "tokens": [1]},
        "isn't float32 numbers of the shape [1, 2]",
    ),
    (
        "key-missing",
        {"source": {"shape": [1]}, "prompt": [3], "tokens": [1]},
        "source.float32: is required",
    ),
]
