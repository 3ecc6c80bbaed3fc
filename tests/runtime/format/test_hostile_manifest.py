"""Hostile manifests, recipes and generations: fixtures for rules of FORMAT.md; see test_format.py."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from edgecompile.runtime.base.errors import (
    BundleError,
    FormatVersionError,
)
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.generation.golden import FILE as GENERATIONS
from tests.runtime.bundles import DELETE, DummyBundle, each_rule, put
from tests.runtime.format.refusals import read_everything, refused
from tests.runtime.generations import (
    HOSTILE_GENERATIONS,
    HOSTILE_GOLDEN_GENERATIONS,
    HOSTILE_GOLDEN_SOURCES,
    HOSTILE_LOOKUPS,
    HOSTILE_SOURCES,
    HOSTILE_STATES,
    HOSTILE_STATES_ALONE,
    make_generative,
    make_halves,
    make_lookup,
    make_recurrent,
    make_seq2seq,
    make_states_alone,
    put_generations,
)
from tests.runtime.policies import HOSTILE_POLICIES, add_policy
from tests.runtime.recipes import HOSTILE_RECIPES
from tests.runtime.speeches import HOSTILE_CTCS, HOSTILE_SPEECHES, add_ctc, add_speech
from tests.runtime.states import HOSTILE_STREAMS, add_state
from tests.runtime.texts import HOSTILE_TEXTS, add_texts

# --- The manifest: (rule, key path, value that breaks the rule, text of the error). DELETE removes.
LONG = "n" * 201
#: A mask whose default is within its bounds at some lengths only.
FOLLOWING: dict[str, Any] = {
    "name": "attention_mask", "dtype": "int64", "shape": ["batch", "length"], "pad": 0,
    "bounds": [0, "length-1"], "default": 1,
}  # fmt: skip
#: Sums of axes that are no dimension by themselves: neither gives the size of one.
TWO_UNKNOWN = {"name": "x", "dtype": "int64", "shape": ["batch+length", "2*batch+length"]}


def stepped(lo: int, hi: int, hint: int, **step: Any) -> dict[str, Any]:
    """A bucket whose lengths go in steps."""
    length = {"lo": lo, "hi": hi, "hint": hint, **step}
    return {"mode": "stepped", "axes": {"batch": {"lo": 1, "hi": 2, "hint": 1}, "length": length}}


HOSTILE_VALUES: list[tuple[str, str, Any, str]] = [
    ("key-missing", "name", DELETE, "name: is required"),
    ("key-missing", "inputs.0.shape", DELETE, "inputs[0].shape"),
    ("key-missing", "buckets.0.axes.length.hint", DELETE, "buckets[0].axes.length.hint"),
    ("key-missing", "length_axis", DELETE, "length_axis"),
    ("key-missing", "variants.0.glibc", DELETE, "variants[0].glibc"),
    ("key-missing", "files.weights~fp32.size", DELETE, "files.weights.fp32.size"),
    ("key-type", "format_version", 1.0, "must be an integer, not number"),
    ("key-type", "format_version", True, "must be an integer, not true/false"),
    ("key-type", "name", 7, "must be a string, not integer"),
    ("key-type", "axes", [], "must be an object, not list"),
    ("key-type", "buckets", {}, "must be a list, not object"),
    ("key-type", "built_by", {"torch": 2}, "built_by.torch"),
    ("key-type", "inputs.0", "input_ids", "inputs[0]: must be an object"),
    ("key-type", "inputs.0.shape", "length", "inputs[0].shape: must be a list"),
    ("key-type", "inputs.0.shape.1", True, "inputs[0].shape[1]"),
    ("key-type", "inputs.0.pad", "0", "inputs[0].pad: must be a number, not string"),
    ("key-type", "axes.length.lo", None, "axes.length.lo: must be an integer, not null"),
    ("key-type", "tolerance.atol", "1", "tolerance.atol: must be a number"),
    ("list-size", "inputs", [], "inputs: has 0 entries, must have 1 to 512"),
    ("list-size", "variants", [], "variants: has 0 entries"),
    ("list-size", "probes", {}, "probes: has 0 entries"),
    ("list-size", "weights", {}, "weights: has 0 entries"),
    ("name-form", "name", "", "name: ''"),
    ("name-form", "name", "a b", "name: 'a b'"),
    ("name-form", "name", "-rf", "name: '-rf'"),
    ("name-form", "inputs.0.name", "a\nb", "inputs[0].name: 'a?b' isn't a name"),
    ("name-form", "variants.0.name", LONG, "variants[0].name"),
    ("name-form", "golden.0.case", "../x", "golden[0].case"),
    ("name-form", "variants.0.requires.0", "", "variants[0].requires: '' isn't a name"),
    ("name-unique", "inputs.1.name", "input_ids", "inputs[1].name: 'input_ids' occurs twice"),
    ("name-unique", "outputs.1.name", "embedding", "outputs[1].name"),
    ("name-unique", "golden.1.bucket", 0, "the case 'hint' of bucket 0"),
    ("version-known", "format_version", 2, "format version 2, this runtime knows version 1"),
    ("version-known", "format_version", 0, "format version 0"),
    ("dtype-known", "inputs.0.dtype", "bfloat16", "inputs[0].dtype: 'bfloat16'"),
    ("dtype-known", "outputs.0.dtype", "object", "outputs[0].dtype: 'object'"),
    ("shape-rank", "outputs.0.shape", [1] * 9, "9 dimensions, at most 8"),
    ("shape-size", "outputs.0.shape.1", 0, "the size 0 isn't within 1..2147483647"),
    ("shape-size", "outputs.0.shape.1", -4, "the size -4"),
    ("shape-size", "outputs.0.shape.1", 2**31, "the size 2147483648"),
    ("shape-axis", "inputs.0.shape.1", "width", "inputs[0].shape[1]: 'width'"),
    ("shape-axis", "inputs.0.shape.1", "2*width", "inputs[0].shape[1]: '2*width'"),
    ("shape-axis", "inputs.0.shape.1", "2**length", "isn't one of the axes, nor a sum of them"),
    ("shape-axis", "inputs.0.shape.1", "length-1", "'length-1' is 0 to 63, not within 1.."),
    ("shape-axis", "inputs.0.shape.1", "9999999*length", "nor a sum of them"),
    ("shape-axis", "inputs.0.shape.1", "length+0*width", "nor a sum of them"),
    ("shape-axis", "inputs.0.shape.1", "1048576*length+1048576*batch*2", "nor a sum of them"),
    ("tensor-bytes", "outputs.0.shape", [2**31 - 1, 2**20], "at most 1099511627776"),
    ("tensor-bytes", "outputs.0.shape", ["1000000*length", "1000000*length"], "at most"),
    ("pad-value", "inputs.0.pad", 0.5, "0.5 isn't a value of int64"),
    ("pad-value", "inputs.0.pad", 2**63 - 1 + 0.0, "isn't a value of int64"),
    ("bounds-form", "inputs.0.bounds", [5, 1], "[5, 1]"),
    ("bounds-form", "inputs.0.bounds", [1], "must be null or [smallest, largest]"),
    ("bounds-form", "inputs.0.bounds", [0, 1.5], "[0, 1.5]"),
    ("bounds-form", "inputs.0.bounds", [0, "width"], "inputs[0].bounds[1]: 'width'"),
    ("bounds-form", "inputs.0.bounds", ["length+99", 9], "[100, 9] isn't"),
    ("bounds-form", "inputs.0.bounds", [0, "length*2"], "nor a sum of them"),
    ("default-value", "inputs.1", FOLLOWING, "1 isn't a value of int64 within its bounds"),
    ("pad-bounds", "inputs.0.pad", 100, "100 isn't within the bounds 0..99"),
    ("default-value", "inputs.1.default", 2, "2 isn't a value of int64 within its bounds"),
    ("default-value", "inputs.0.default", 0.5, "0.5 isn't a value of int64"),
    ("key-type", "inputs.0.default", "1", "inputs[0].default: must be a number"),
    ("axis-range", "axes.length", {"lo": 5, "hi": 4}, "lo 5 and hi 4"),
    ("axis-range", "axes.length.lo", 0, "lo 0 and hi 64"),
    ("axis-range", "axes.length.hi", 2**31, "2147483648"),
    ("axis-used", "axes.width", {"lo": 1, "hi": 1}, "axes.width: no input gives the size of this"),
    ("axis-used", "inputs", [TWO_UNKNOWN], "axes.batch: no input gives the size of this axis"),
    ("axis-buckets", "axes.length.hi", 65, "is 1..65, but the buckets reach from 1 to 64"),
    ("axis-buckets", "buckets.0.axes.length.lo", 2, "reach from 2 to 64"),
    ("length-axis", "length_axis", "width", "length_axis: 'width'"),
    ("bucket-mode", "buckets.0.mode", "static", "buckets[0].mode: 'static'"),
    ("key-missing", "buckets.0.mode", "stepped", "buckets[0].axes.length.step: is required"),
    ("key-type", "buckets.0", stepped(1, 31, 15, step="2"), "must be an integer, not string"),
    ("bucket-step", "buckets.0", stepped(1, 31, 15, step=1), "1 isn't within 2..2147483647"),
    ("bucket-step", "buckets.0", stepped(1, 31, 15, step=0), "0 isn't within 2..2147483647"),
    ("bucket-step", "buckets.0", stepped(1, 32, 15, step=2), "hi 32 isn't reached from lo 1 in"),
    ("bucket-step", "buckets.0", stepped(1, 31, 16, step=2), "hint 16 isn't reached from lo 1"),
    ("bucket-axes", "buckets.0.axes.batch", DELETE, "has length, must have batch, length"),
    ("bucket-axes", "buckets.0.axes.x", {"lo": 1, "hi": 1, "hint": 1}, "has batch, length, x"),
    ("bucket-range", "buckets.0.axes.length.hint", 33, "the hint 33 isn't within 1..32"),
    ("bucket-range", "buckets.0.axes.length.lo", -1, "lo -1 and hi 32"),
    ("bucket-pad", "inputs.1.pad", None, "needs a pad value for the input 'attention_mask'"),
    ("bucket-pad", "length_axis", None, "pad mode needs a length_axis"),
    ("bucket-pad", "outputs.0.shape.1", None, "a size that can't be cut after padding"),
    ("bucket-pad", "buckets.1.pad_axes", ["length", "batch"], "the input 'scale'"),
    ("bucket-pad", "inputs.0.shape.1", "2*length", "a size that follows from a padded axis"),
    ("bucket-pad-axes", "buckets.1.pad_axes", ["batch"], "must have the length axis 'length'"),
    ("bucket-pad-axes", "buckets.1.pad_axes", ["length", "width"], "'width' isn't one of the axes"),
    ("bucket-pad-axes", "buckets.1.pad_axes", ["length", "length"], "'length' occurs twice"),
    ("bucket-pad-axes", "buckets.0.pad_axes", ["length"], "mode exact pads no axis"),
    ("list-size", "buckets.1.pad_axes", [], "buckets[1].pad_axes: has 0 entries"),
    ("list-size", "buckets.1.pad_axes", ["length"] * 17, "has 17 entries, must have 1 to 16"),
    ("key-type", "buckets.1.pad_axes", "length", "must be a list, not string"),
    ("key-type", "buckets.1.pad_axes", None, "must be a list, not null"),
    ("key-type", "buckets.1.pad_axes", ["length", 1], "buckets[1].pad_axes[1]: must be a string"),
    ("key-type", "inputs.0.shape.1", None, "must be a size or the name of an axis"),
    ("variant-glibc", "variants.0.glibc", "2", "variants[0].glibc: '2'"),
    ("variant-glibc", "variants.0.glibc", "GLIBC_2.34", "must look like 2.34"),
    ("variant-programs", "variants.0.programs.1", DELETE, "1 programs for 2 buckets"),
    ("variant-probe", "variants.0.arch", "aarch64", "no probe for the architecture 'aarch64'"),
    ("weights-precision", "precision", "int8", "no weights for the precision 'int8'"),
    ("golden-bucket", "golden.0.bucket", 2, "there is no bucket 2, only 0..1"),
    ("golden-bucket", "golden.0.bucket", -1, "there is no bucket -1"),
    ("tolerance-range", "tolerance.rtol", -0.1, "tolerance.rtol: -0.1 is negative"),
    ("path-listed", "weights.fp32", "weights", "weights.fp32: 'weights' isn't listed in files"),
    ("path-listed", "weights.fp32", "/etc/passwd", "'/etc/passwd' isn't listed"),
    ("path-listed", "probes.x86-64", "../probe.so", "isn't listed"),
    ("path-listed", "variants.0.runtime", "rt.so", "variants[0].runtime"),
    ("path-listed", "variants.0.runtime", "", "variants[0].runtime: '' isn't listed"),
    ("path-listed", "variants.0.programs.0", "x", "variants[0].programs[0]"),
    ("path-listed", "golden.0.file", "x", "golden[0].file"),
    ("key-missing", "variants.0.backend", "tensorrt", "variants[0].recipe: is required"),
    ("key-missing", "variants.0.backend", "torch", "variants[0].torch: is required"),
    ("path-manifest", "files.manifest~json", {"size": 1, "sha256": "0" * 64}, "list itself"),
    ("file-size", "files.weights~fp32.size", -1, "-1 is negative"),
    ("file-sha256", "files.weights~fp32.sha256", "0" * 63, "isn't 64 lower-case hex digits"),
    ("file-sha256", "files.weights~fp32.sha256", "A" * 64, "isn't 64 lower-case hex digits"),
    *[
        ("path-form", f"files.{path}", {"size": 1, "sha256": "0" * 64}, "files.")
        for path in (
            "/etc/passwd",
            "../secret",
            "a/../b",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "a b",
            "a\u202eb",
            "a\x00b",
            "d/" * 600 + "x",
            "s" * 256,
        )
    ],
]


GPU: dict[str, Any] = {
    "compute_capabilities": ["8.7", "9.0"],
    "ptx": "8.0",
    "driver": 12060,
    "precision": "fp32",
    "tolerance": {"atol": 0.001, "rtol": 0.01},
    "min_cosine": 0.999,
    "padding": True,
    "checks": ["graph"],
}
HOSTILE_GPUS: list[tuple[str, str, Any, str]] = [
    ("key-missing", "gpu", DELETE, "variants[1].gpu: is required"),
    ("key-missing", "gpu.padding", DELETE, "variants[1].gpu.padding: is required"),
    ("key-missing", "gpu.ptx", DELETE, "variants[1].gpu.ptx: is required"),
    ("key-type", "gpu", [], "variants[1].gpu: must be an object"),
    ("key-type", "gpu.ptx", 9.0, "variants[1].gpu.ptx: must be a string"),
    ("key-type", "gpu.driver", "12.6", "variants[1].gpu.driver"),
    ("key-type", "gpu.padding", 1, "must be true or false"),
    ("key-type", "gpu.graphs", "no", "variants[1].gpu.graphs: must be true or false"),
    ("key-type", "gpu.compute_capabilities.0", 87, "variants[1].gpu.compute_capabilities[0]"),
    ("key-type", "gpu.checks", "graph", "variants[1].gpu.checks: must be a list"),
    ("key-type", "gpu.min_cosine", "1", "variants[1].gpu.min_cosine: must be a number"),
    ("list-size", "gpu.compute_capabilities", ["8.0"] * 33, "has 33 entries"),
    ("name-form", "gpu.checks", ["a b"], "'a b' isn't a name"),
    ("variant-gpu", "gpu.compute_capabilities.0", "87", "'87' must look like 8.7"),
    ("variant-gpu", "gpu.ptx", "sm_87", "'sm_87' must look like 8.7"),
    ("variant-gpu", "gpu.driver", 12, "12 isn't within 11000..99999"),
    ("weights-precision", "gpu.precision", "fp16", "no weights for the precision 'fp16'"),
    ("tolerance-range", "gpu.tolerance.atol", -1, "variants[1].gpu.tolerance.atol: -1 is negative"),
    ("tolerance-range", "gpu.min_cosine", 2, "2 isn't within -1..1"),
    ("variant-programs", "programs.1", DELETE, "1 programs for 2 buckets"),
    ("variant-probe", "arch", "aarch64", "no probe for the architecture 'aarch64'"),
    ("path-listed", "runtime", "rt.so", "variants[1].runtime"),
    ("path-listed", "alternatives", [["a.so"], []], "variants[1].alternatives[0][0]"),
    ("variant-programs", "alternatives", [[]], "1 lists of alternatives for 2 buckets"),
    ("key-type", "alternatives", [[], "a.so"], "variants[1].alternatives[1]: must be a list"),
    ("list-size", "alternatives", [["a.so"] * 9, []], "has 9 entries, must have 0 to 8"),
]  # fmt: skip


def add_triton(bundle: DummyBundle) -> dict[str, Any]:
    """Adds a variant of Triton kernels, with the files of the one for CPUs."""
    variant = copy.deepcopy(bundle.document["variants"][0])
    variant.update(name="cuda", backend="triton", rank=60, gpu=copy.deepcopy(GPU))
    bundle.document["variants"].append(variant)
    return variant


def test_a_variant_for_gpus_is_read_and_written(bundle: DummyBundle) -> None:
    variant = add_triton(bundle)
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    assert manifest.to_json()["variants"][1] == variant
    assert manifest.variants[1].alternatives == ()
    variant["alternatives"] = [[], [variant["programs"][0]]]
    again = parse_manifest(json.dumps(bundle.listed()).encode())
    assert again.to_json()["variants"][1] == variant
    assert again.variants[1].alternatives == ((), (variant["programs"][0],))
    del variant["alternatives"]
    variant["gpu"]["graphs"] = False
    again = parse_manifest(json.dumps(bundle.listed()).encode())
    assert again.to_json()["variants"][1] == variant
    assert again.variants[1].gpu is not None and not again.variants[1].gpu.graphs
    del variant["gpu"]["graphs"]
    spec = manifest.variants[1].gpu
    assert spec is not None and spec.graphs and spec.driver == 12060 and spec.tolerance.rtol == 0.01
    del variant["gpu"]["checks"], variant["gpu"]["min_cosine"]
    variant["gpu"].update(ptx=None)
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    assert manifest.to_json()["variants"][1]["gpu"] == {
        **variant["gpu"], "min_cosine": None, "checks": [],
    }  # fmt: skip


def test_a_variant_for_gpus_has_code(bundle: DummyBundle) -> None:
    add_triton(bundle)["gpu"].update(compute_capabilities=[], ptx=None)
    refused(bundle, "variant-gpu", "has neither machine code nor PTX")


@each_rule("rule, path, value, text", HOSTILE_GPUS)
def test_hostile_gpu(bundle: DummyBundle, rule: str, path: str, value: Any, text: str) -> None:
    add_triton(bundle)
    bundle.document = bundle.listed()
    put(bundle.document, f"variants.1.{path}", value)
    refused(bundle, rule, text)


@each_rule("rule, path, value, text", HOSTILE_VALUES)
def test_hostile_value(bundle: DummyBundle, rule: str, path: str, value: Any, text: str) -> None:
    if "scale" in text:
        scale = {"name": "scale", "dtype": "float32", "shape": ["batch"]}
        bundle.document["inputs"].append(scale)
    bundle.document = bundle.listed()
    put(bundle.document, path, value)
    error = refused(bundle, rule, text)
    assert (type(error) is FormatVersionError) == (rule == "version-known")


#: Sections of a manifest: a function that adds one to a valid bundle, and what it may not hold.
SECTIONS = (
    (add_texts, HOSTILE_TEXTS),
    (add_state, HOSTILE_STREAMS),
    (add_speech, HOSTILE_SPEECHES),
    (add_ctc, HOSTILE_CTCS),
    (add_policy, HOSTILE_POLICIES),
)


@each_rule(
    "rule, path, value, text, add",
    [(*case, add) for add, cases in SECTIONS for case in cases],
)
def test_hostile_section(
    bundle: DummyBundle, rule: str, path: str, value: Any, text: str, add: Any
) -> None:
    add(bundle)
    bundle.document = bundle.listed()
    read_everything(bundle.write())
    put(bundle.document, path, value)
    refused(bundle, rule, text)


@pytest.mark.parametrize(
    "key, add", [("state", add_state), ("policy", add_policy), ("speech", add_ctc)]
)
def test_a_section_is_read_and_written(bundle: DummyBundle, key: str, add: Any) -> None:
    add(bundle)
    document = bundle.listed()
    manifest = parse_manifest(json.dumps(document).encode())
    assert manifest.to_json()[key] == document[key]
    read_everything(bundle.write())


def test_a_state_of_two_unknown_types(bundle: DummyBundle) -> None:
    add_state(bundle)
    bundle.document = bundle.listed()
    for path in ("inputs.2.dtype", "outputs.2.dtype"):
        put(bundle.document, path, "float8")
    refused(bundle, "dtype-known", "'float8'")


def test_speech_is_read_and_written(bundle: DummyBundle) -> None:
    add_speech(bundle)
    document = bundle.listed()
    manifest = parse_manifest(json.dumps(document).encode())
    assert manifest.to_json()["speech"] == document["speech"]
    for key in ("timestamps", "forced", "languages", "tasks", "language", "task", "previous"):
        del document["speech"]["windows"][key]
    del document["speech"]["tokenizer"]
    manifest = parse_manifest(json.dumps(document).encode())
    assert manifest.to_json()["speech"] == document["speech"]


@each_rule("rule, path, value, text", HOSTILE_RECIPES)
def test_hostile_recipe(bundle: DummyBundle, rule: str, path: str, value: Any, text: str) -> None:
    recipe = bundle.add_tensorrt()
    put(recipe, path, value)
    bundle.put_recipe(recipe)
    error = refused(bundle, rule, text)
    assert "recipe.json: " in error.message
    assert (type(error) is FormatVersionError) == (rule == "recipe-version")


def test_the_generative_fixture_itself_is_valid(bundle: DummyBundle) -> None:
    for make in (make_generative, make_halves):
        make(bundle)
        read_everything(bundle.write())


GENERATIVE = (
    (make_generative, HOSTILE_GENERATIONS),
    (make_lookup, HOSTILE_LOOKUPS),
    (make_recurrent, HOSTILE_STATES),
    (make_states_alone, HOSTILE_STATES_ALONE),
    (make_seq2seq, HOSTILE_SOURCES),
)


@each_rule(
    "rule, path, value, text, make",
    [(*case, make) for make, cases in GENERATIVE for case in cases],
)
def test_hostile_generation(
    bundle: DummyBundle, rule: str, path: str, value: Any, text: str, make: Any
) -> None:
    make(bundle)
    put(bundle.document, path, value)
    refused(bundle, rule, text)


def test_the_fixture_with_lookup_is_valid(bundle: DummyBundle) -> None:
    make_lookup(bundle)
    spec = parse_manifest(json.dumps(bundle.listed()).encode()).generation
    assert spec is not None and spec.lookup == 8 and spec.to_json()["lookup"] == 8
    read_everything(bundle.write())


def test_the_fixtures_with_states_are_valid(bundle: DummyBundle) -> None:
    for make, caches in (
        (make_recurrent, ("key", "value", "state")),
        (make_states_alone, ("state",)),
    ):
        make(bundle)
        spec = parse_manifest(json.dumps(bundle.listed()).encode()).generation
        assert spec is not None and spec.kind == "recurrent-lm" and spec.caches == caches
        read_everything(bundle.write())


def test_the_fixture_behind_an_encoder_is_valid(bundle: DummyBundle) -> None:
    make_seq2seq(bundle)
    read_everything(bundle.write())


@each_rule("rule, case, text", HOSTILE_GOLDEN_SOURCES)
def test_hostile_golden_sources(bundle: DummyBundle, rule: str, case: Any, text: str) -> None:
    make_seq2seq(bundle)
    put_generations(bundle, {"cases": [case]})
    refused(bundle, rule, text)


@each_rule("rule, document, text", HOSTILE_GOLDEN_GENERATIONS)
def test_hostile_golden_generation(
    bundle: DummyBundle, rule: str, document: Any, text: str
) -> None:
    make_generative(bundle)
    put_generations(bundle, document)
    assert GENERATIONS in refused(bundle, rule, text).message


@pytest.mark.parametrize(
    ("key", "most"), [("inputs", 512), ("outputs", 64), ("buckets", 256), ("variants", 64)]
)
def test_every_list_has_an_upper_limit(bundle: DummyBundle, key: str, most: int) -> None:
    bundle.document[key] = [{**bundle.document[key][0], "name": f"n{i}"} for i in range(most + 1)]
    with pytest.raises(BundleError) as caught:
        read_everything(bundle.write())
    text = f"{key}: has {most + 1} entries, must have 1 to {most} [list-size]"
    assert text in caught.value.message
