"""manifest and schema: what is written is what is read. FORMAT.md's rules: test_format.py."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.manifest.parse import check_path, parse_manifest
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, Manifest, Variant
from tests.runtime.bundles import DummyBundle


def test_round_trip_is_exact_and_deterministic(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    again = parse_manifest(data)
    assert again == manifest
    assert again.to_bytes() == data
    assert data.endswith(b"}\n") and data.isascii()


def test_order_of_files_does_not_matter(manifest: Manifest) -> None:
    backwards = dict(reversed(list(manifest.files.items())))
    assert manifest._replace(files=backwards).to_bytes() == manifest.to_bytes()


def test_free_form_keys_and_unknown_keys(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["plan"] = {"policy": ["a", {"b": 1.5}]}
    document["future"] = {"anything": [None]}
    document["inputs"][0]["future"] = 1
    manifest = parse_manifest(json.dumps(document).encode())
    assert manifest.plan == {"policy": ["a", {"b": 1.5}]}
    assert "future" not in manifest.to_json()


def test_optional_keys(bundle: DummyBundle) -> None:
    document = bundle.listed()
    for key in ("built_by", "plan", "expected"):
        del document[key]
    document["buckets"] = [dict(item, mode="exact") for item in document["buckets"]]
    for item in document["inputs"]:
        del item["pad"], item["bounds"]
    manifest = parse_manifest(json.dumps(document).encode())
    assert manifest.inputs[0].pad is None and manifest.inputs[0].bounds is None


def test_every_problem_is_reported_at_once(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["name"] = ""
    document["inputs"][0]["dtype"] = "int65"
    document["buckets"][1]["mode"] = "sometimes"
    document["files"]["../x"] = {"size": -1, "sha256": ""}
    del document["tolerance"]
    with pytest.raises(BundleError) as caught:
        parse_manifest(json.dumps(document).encode())
    message = caught.value.message
    assert message.startswith("manifest.json: 7 problems\n")
    for rule in (
        "name-form",
        "dtype-known",
        "bucket-mode",
        "path-form",
        "file-size",
        "file-sha256",
        "key-missing",
    ):
        assert f"[{rule}]" in message


def test_a_long_list_of_problems_is_cut(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["golden"] = [{"bucket": 9, "case": str(i), "file": "x"} for i in range(1000)]
    with pytest.raises(BundleError) as caught:
        parse_manifest(json.dumps(document).encode())
    assert "2000 problems" in caught.value.message
    assert "... and 1960 more" in caught.value.message


def test_variants_of_unknown_backends_are_read(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["variants"].append(
        {
            "name": "orin",
            "arch": "aarch64",
            "backend": "of-later",
            "requires": ["sm_87"],
            "glibc": None,
            "rank": 100,
            "plans": ["not looked at"],
        }
    )
    variant = parse_manifest(json.dumps(document).encode()).variants[1]
    assert variant == Variant("orin", "aarch64", "of-later", ("sm_87",), None, 100)


def test_a_model_without_a_length_axis(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["length_axis"] = None
    document["buckets"] = [dict(item, mode="exact") for item in document["buckets"]]
    assert parse_manifest(json.dumps(document).encode()).length_axis is None


def test_a_bucket_of_lengths_in_steps(bundle: DummyBundle) -> None:
    document = bundle.listed()
    document["buckets"][0]["mode"] = "stepped"
    document["buckets"][0]["axes"]["length"].update(hi=31, hint=15, step=2)
    manifest = parse_manifest(json.dumps(document).encode())
    (first, _), lengths = manifest.buckets, manifest.buckets[0].axes["length"]
    assert (first.mode, lengths) == ("exact", Extent(1, 31, 15, 2))
    assert [n for n in range(34) if n in lengths] == [*range(1, 32, 2)]
    assert [lengths.below(n) for n in (0, 1, 2, 30, 31, 40)] == [1, 1, 1, 29, 31, 31]
    assert parse_manifest(manifest.to_bytes()) == manifest
    assert manifest.to_json()["buckets"] == document["buckets"]


def test_padded_axes(bundle: DummyBundle) -> None:
    def buckets(pad_axes: Any) -> Manifest:
        document = bundle.listed()
        document["buckets"][1]["pad_axes"] = pad_axes
        return parse_manifest(json.dumps(document).encode())

    plain = parse_manifest(json.dumps(bundle.listed()).encode())
    assert plain == buckets(["length"]), "the length axis alone is the default"
    assert "pad_axes" not in plain.to_json()["buckets"][1]
    assert plain.padded_axes() == ("length",)
    assert plain.buckets[0].padded("length") == () and plain.buckets[1].padded(None) == ()
    spelt = plain.buckets[1]._replace(pad_axes=("length",))
    written = plain._replace(buckets=(plain.buckets[0], spelt))
    assert written.to_bytes() == plain.to_bytes()

    joint = buckets(["length", "batch"])
    assert joint.buckets[1].padded("length") == ("length", "batch")
    assert joint.padded_axes() == ("batch", "length"), "in the order of axes"
    assert joint.to_json()["buckets"][1]["pad_axes"] == ["length", "batch"]
    assert "pad_axes" not in joint.to_json()["buckets"][0]
    assert parse_manifest(joint.to_bytes()) == joint
    assert str(joint.buckets[1]) == "pad (length, batch) batch 1..2, length 33..64"


def test_buckets_may_overlap(bundle: DummyBundle) -> None:
    """As those of a bundle for measuring do: exact ones and static ones over the same lengths."""
    document = bundle.listed()
    exact, static = document["buckets"]
    exact["axes"]["length"] = {"lo": 1, "hi": 64, "hint": 16}
    static["axes"]["length"] = {"lo": 1, "hi": 64, "hint": 64}
    document["buckets"] = [exact, static, dict(static, pad_axes=["length", "batch"]), static]
    document["variants"][0]["programs"] *= 2
    assert len(parse_manifest(json.dumps(document).encode()).buckets) == 4


def test_varying_axes(manifest: Manifest) -> None:
    assert manifest.varying_axes() == ("length", "batch")
    fixed = manifest._replace(axes={**manifest.axes, "batch": Extent(2, 2)})
    assert fixed.varying_axes() == ("length",)
    nothing = manifest._replace(length_axis=None)
    assert nothing.varying_axes() == ("batch", "length")


def test_extents_and_buckets() -> None:
    bucket = BucketSpec("exact", {"batch": Extent(1, 2), "length": Extent(5, 9)})
    assert bucket.contains({"batch": 2, "length": 5})
    assert not bucket.contains({"batch": 3, "length": 5})
    assert not bucket.contains({"batch": 1, "length": 10})
    assert str(bucket) == "exact batch 1..2, length 5..9"


@pytest.mark.parametrize("path", ["a", "a/b.so", "code/x86-64/lib+1,2=~@_.so", ".hidden", "..."])
def test_good_paths(path: str) -> None:
    assert check_path(path) is None


def mutate(value: Any, rng: random.Random) -> Any:
    """A random change somewhere in a JSON value."""
    junk = [None, True, -1, 0, 2**40, 1.5, "", "x", "../x", [], {}, [[]], {"a": 1}]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        action = rng.random()
        result = dict(value)
        if action < 0.15:
            del result[key]
        elif action < 0.25:
            result[rng.choice(["", "extra", "a/b", "\x00"])] = result[key]
        else:
            result[key] = mutate(value[key], rng)
        return result
    if isinstance(value, list) and value and rng.random() < 0.9:
        result_list = list(value)
        index = rng.randrange(len(value))
        if rng.random() < 0.2:
            del result_list[index]
        else:
            result_list[index] = mutate(value[index], rng)
        return result_list
    return rng.choice(junk)


@pytest.mark.parametrize("seed", range(20))
def test_any_document_gives_a_manifest_or_a_bundle_error(bundle: DummyBundle, seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(100):
        document: Any = bundle.listed()
        for _ in range(rng.randint(1, 3)):
            document = mutate(document, rng)
        try:
            manifest = parse_manifest(json.dumps(document).encode())
        except BundleError as error:
            refused += 1
            assert "[" in error.message
        else:
            # What was accepted can be written, and reads the same again.
            assert parse_manifest(manifest.to_bytes()) == manifest
    assert refused > 50


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_give_a_manifest_or_a_bundle_error(manifest: Manifest, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        data = bytearray(manifest.to_bytes())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        with contextlib.suppress(BundleError):
            parse_manifest(bytes(data))
