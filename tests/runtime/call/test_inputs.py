"""inputs: everything that could crash native code is refused, with a message that helps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.runtime.call.inputs import InputChecker, make_inputs
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest, TensorSpec
from tests.runtime.bundles import DummyBundle


def good(length: int = 5, batch: int = 1) -> dict[str, Any]:
    return {
        "input_ids": np.full((batch, length), 7),
        "attention_mask": np.ones((batch, length), dtype=np.int64),
    }


@pytest.fixture
def checker(manifest: Manifest) -> InputChecker:
    return InputChecker(manifest)


def message(checker: InputChecker, inputs: Any) -> str:
    with pytest.raises(InputError) as caught:
        checker.check(inputs)
    return caught.value.message


def test_good_inputs_are_passed_without_a_copy(checker: InputChecker) -> None:
    inputs = dict(reversed(list(good(5, 2).items())))
    arrays, sizes = checker.check(inputs)
    assert arrays[0] is inputs["input_ids"] and arrays[1] is inputs["attention_mask"]
    assert sizes == {"batch": 2, "length": 5}


def test_sizes_that_follow_from_axes_take_the_quick_way(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = TensorSpec("twice", "float32", ("batch", "2*length"))
    checker = InputChecker(manifest._replace(inputs=(*manifest.inputs, twice)))
    inputs = {**good(5, 2), "twice": np.ones((2, 10), np.float32)}
    wrong = {**inputs, "twice": np.ones((2, 9), np.float32)}
    assert "(2*length) has size 9, must be 10" in message(checker, wrong)
    monkeypatch.delattr(InputChecker, "_convert")  # of the slow way alone
    arrays, sizes = checker.check(inputs)
    assert sizes == {"batch": 2, "length": 5} and arrays[2] is inputs["twice"]


def test_a_default_of_a_negative_size_is_told_as_such(manifest: Manifest) -> None:
    tail = TensorSpec("tail", "float32", ("batch", "length-7"), default=0)
    other = tail._replace(name="other", shape=("other",))
    checker = InputChecker(manifest._replace(inputs=(*manifest.inputs, tail)))
    assert [array.shape for array in checker.check(good(9))[0]] == [(1, 9), (1, 9), (1, 2)]
    text = message(checker, good(5))
    assert text == "input tail: its default would have size -2 in dimension 1 (length-7)"
    checker = InputChecker(manifest._replace(inputs=(*manifest.inputs, other)))
    assert message(checker, good(5)) == "input other: is missing, and nothing else has its size"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"input_ids": None}, "input_ids: is missing"),
        ({"extra": np.zeros(1)}, "extra: the model has no such input"),
        ({"input_ids": np.ones((1, 5))}, "input_ids: has dtype float64, must be int64"),
        ({"input_ids": np.ones((1, 5), np.uint64)}, "input_ids: has dtype uint64, must be int64"),
        ({"input_ids": np.ones((1, 5), object)}, "input_ids: has dtype object, must be int64"),
        ({"input_ids": np.array([["a"] * 5])}, "has dtype <U1"),
        ({"input_ids": np.ones(5, np.int64)}, "input_ids: has shape [5] with 1 dimensions, must"),
        ({"input_ids": np.int64(3)}, "has shape [] with 0 dimensions"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids: "),
        (
            {"attention_mask": np.ones((1, 4), np.int64)},
            "attention_mask: dimension 1 (length) has size 4, but dimension 1 of input_ids has 5",
        ),
        ({"attention_mask": np.ones((2, 5), np.int64)}, "dimension 0 (batch) has size 2"),
        (
            {"input_ids": np.array([[0, 1, 100, 3, -1]])},
            "input_ids: 2 of 5 values lie outside 0..99, the first is 100 at [0, 2]",
        ),
        (
            {"input_ids": np.array([[0, 1, 2, 99, -1]])},
            "input_ids: 1 of 5 values lie outside 0..99, the first is -1 at [0, 4]",
        ),
        (
            {"input_ids": np.array([[0, -128, 2, 99, 3]], np.int8)},
            "input_ids: 1 of 5 values lie outside 0..99, the first is -128 at [0, 1]",
        ),
        (
            {"input_ids": np.array([[-(2**63), 1, 2, 3, 4]]).astype(">i8")},
            "input_ids: 1 of 5 values lie outside 0..99, the first is -9223372036854775808 at [0, 0]",
        ),
    ],
)
def test_bad_inputs(checker: InputChecker, change: dict[str, Any], text: str) -> None:
    inputs = {**good(), **change}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    assert text in message(checker, inputs)


def test_a_misnamed_input_is_named(checker: InputChecker) -> None:
    inputs = good()
    inputs["input_id"] = inputs.pop("input_ids")
    text = message(checker, inputs)
    assert text == "input input_id: the model has no such input; did you mean input_ids?"


def test_every_problem_is_reported_at_once(checker: InputChecker) -> None:
    inputs = {"input_ids": np.full((1, 5), 500), "attention_mask": np.ones((1, 5)), "x": 1}
    text = message(checker, inputs)
    assert text.startswith("3 problems with the inputs\n")
    for part in ("x: the model has", "500 at [0, 0]", "attention_mask: has dtype float64"):
        assert part in text


@pytest.mark.parametrize("inputs", [None, [1], np.zeros(3), "input_ids"])
def test_what_is_no_mapping(checker: InputChecker, inputs: Any) -> None:
    assert "inputs must be a mapping" in message(checker, inputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.uint32, bool, ">i8"])
def test_narrower_integers_are_widened(checker: InputChecker, dtype: Any) -> None:
    inputs = dict(good(), input_ids=np.ones((1, 5)).astype(dtype))
    arrays, _ = checker.check(inputs)
    assert arrays[0].dtype == np.int64 and arrays[0].dtype.isnative
    np.testing.assert_array_equal(arrays[0], np.ones((1, 5)))


def test_lists_and_other_layouts_become_contiguous_arrays(checker: InputChecker) -> None:
    wide = np.arange(20).reshape(2, 10)
    for value in ([[1, 2, 3, 4, 5]], wide[:1, ::2], np.asfortranarray(wide)[:1, :5]):
        arrays, _ = checker.check(dict(good(), input_ids=value))
        assert arrays[0].flags.c_contiguous and type(arrays[0]) is np.ndarray
        np.testing.assert_array_equal(arrays[0], value)


def test_an_object_that_cannot_be_an_array(checker: InputChecker) -> None:
    class Broken:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no data\nhere")

    assert "isn't an array: no data?here" in message(checker, dict(good(), input_ids=Broken()))


def with_float(bundle: DummyBundle, bounds: Any) -> InputChecker:
    document = bundle.listed()
    document["inputs"].append(
        {"name": "scale", "dtype": "float32", "shape": [2], "pad": None, "bounds": bounds}
    )
    return InputChecker(parse_manifest(json.dumps(document).encode()))


def test_floats(bundle: DummyBundle) -> None:
    checker = with_float(bundle, [-1.0, 1.0])
    checker.check(dict(good(), scale=np.array([-1, 1], np.float32)))
    for bad in (np.nan, np.inf, 1.5):
        text = message(checker, dict(good(), scale=np.array([0, bad], np.float32)))
        assert "1 of 2 values lie outside -1.0..1.0" in text
    for dtype in (np.float64, np.float16, np.int32):
        text = message(checker, dict(good(), scale=np.zeros(2, dtype)))
        assert f"has dtype {np.dtype(dtype)}, must be float32" in text
    text = message(checker, dict(good(), scale=np.zeros(3, np.float32)))
    assert "scale: dimension 0 has size 3, must be 2" in text
    with_float(bundle, None).check(dict(good(), scale=np.array([np.nan, 9], np.float32)))


@pytest.mark.parametrize(
    "masked",
    [
        np.ma.masked_equal(np.full((1, 5), 7), 3),
        [np.ma.masked_equal([7, 7, 0, 0, 0], 0)],
        [[7, 7, np.ma.masked, 7, 7]],
    ],
    ids=["an array", "a row", "a value"],
)
def test_a_mask_is_not_lost_silently(checker: InputChecker, masked: Any) -> None:
    text = message(checker, {**good(), "input_ids": masked})
    assert "mask would be lost" in text and "array.filled(value)" in text


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_other_kinds_of_arrays_are_taken(checker: InputChecker, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.int64, "w+", shape=(1, 5))
    for value in (np.asmatrix(good()["input_ids"]), mapped, np.full((1, 5), 7).view(np.recarray)):
        arrays, _ = checker.check({**good(), "input_ids": value})
        assert type(arrays[0]) is np.ndarray and np.array_equal(arrays[0], np.asarray(value))


@pytest.fixture
def defaulting(bundle: DummyBundle) -> InputChecker:
    """Its mask may be left out."""
    bundle.document["inputs"][1]["default"] = 1
    return InputChecker(parse_manifest(json.dumps(bundle.listed()).encode()))


def test_an_input_with_a_default_may_be_left_out(defaulting: InputChecker) -> None:
    ids = good(5, 2)["input_ids"]
    arrays, sizes = defaulting.check({"input_ids": ids})
    assert arrays[0] is ids and sizes == {"batch": 2, "length": 5}
    assert arrays[1].dtype == np.int64 and arrays[1].tolist() == [[1] * 5] * 2
    zeros = np.zeros((2, 5), np.int64)
    assert defaulting.check({"input_ids": ids, "attention_mask": zeros})[0][1] is zeros
    assert "input_ids: is missing" in message(defaulting, {"attention_mask": zeros})
    text = message(defaulting, {"input_ids": ids, "attn_mask": zeros})
    assert "did you mean attention_mask?" in text, "a misspelt name isn't replaced by the default"


def test_a_default_needs_sizes(bundle: DummyBundle) -> None:
    for item in bundle.document["inputs"]:
        item["default"] = 1
    both = InputChecker(parse_manifest(json.dumps(bundle.listed()).encode()))
    assert "input_ids: is missing, and nothing else has its size" in message(both, {})


def test_made_inputs_are_valid(manifest: Manifest, checker: InputChecker) -> None:
    sizes = {"batch": 2, "length": 33}
    plain = make_inputs(manifest, sizes)
    assert np.all(plain["input_ids"] == 1) and np.all(plain["attention_mask"] == 1)
    assert checker.check(plain)[1] == sizes
    for seed in range(5):
        inputs = make_inputs(manifest, sizes, seed)
        checker.check(inputs)
        assert len(np.unique(inputs["input_ids"])) > 5
        assert np.all(inputs["attention_mask"] == 1), "a mask masks nothing"
        again = make_inputs(manifest, sizes, seed)
        assert all(np.array_equal(inputs[name], again[name]) for name in inputs)


def test_made_inputs_of_every_dtype(manifest: Manifest) -> None:
    specs = (
        TensorSpec("low", "int8", (3,), None, (-9, -5)),
        TensorSpec("flag", "bool", (3,)),
        TensorSpec("free", "float16", (3,)),
        TensorSpec("wide", "int64", (3,), None, (-(2**63), 2**63 - 1)),
    )
    manifest = manifest._replace(inputs=specs)
    for seed in (None, 1):
        inputs = make_inputs(manifest, {}, seed)
        InputChecker(manifest).check(inputs)
