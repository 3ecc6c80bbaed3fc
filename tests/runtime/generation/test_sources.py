"""Whether the bundle within makes what the outer one takes; no native code runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.generation.sources import check_encoder
from tests.runtime.bundles import DummyBundle
from tests.runtime.generations import make_generative, make_seq2seq


def outer(folder: Path, *, rows: Any = "source") -> Manifest:
    bundle = DummyBundle(folder / "outer.ecb")
    make_seq2seq(bundle)
    if rows != "source":
        for item in bundle.document["inputs"][-2:]:
            item["shape"] = [rows, 2, 3]
        del bundle.document["axes"]["source"]
        for item in bundle.document["buckets"]:
            del item["axes"]["source"]
    return parse(bundle)


def parse(bundle: DummyBundle) -> Manifest:
    return parse_manifest(json.dumps(bundle.listed()).encode())


def encoder(folder: Path) -> DummyBundle:
    """Of sources of 1 to 32 tokens with a mask."""
    bundle = DummyBundle(folder / "inner.ecb")
    document = bundle.document
    for item in document["inputs"]:
        item["shape"] = [1, "length"]
    document["outputs"] = [
        {"name": name, "dtype": "float32", "shape": ["length", 2, 3]}
        for name in ("cross_key", "cross_value")
    ]
    document["axes"] = {"length": {"lo": 1, "hi": 32}}
    document["buckets"] = [
        {"mode": "exact", "axes": {"length": {"lo": lo, "hi": hi, "hint": hi}}}
        for lo, hi in ((1, 16), (17, 32))
    ]
    return bundle


def check(folder: Path, bundle: DummyBundle, **how: Any) -> None:
    manifest = outer(folder, **how)
    assert manifest.generation is not None
    check_encoder(manifest.generation, manifest, parse(bundle), "outer.ecb/encoder")


def test_one_that_fits(tmp_path: Path) -> None:
    check(tmp_path, encoder(tmp_path))


def test_one_of_a_fixed_size(tmp_path: Path) -> None:
    bundle = encoder(tmp_path)
    for item in bundle.document["outputs"]:
        item["shape"] = [24, 2, 3]
    check(tmp_path, bundle, rows=24)
    with pytest.raises(BundleError, match=r"must be float32\[25, 2, 3\]"):
        check(tmp_path, bundle, rows=25)


def test_one_whose_rows_only_a_run_tells(tmp_path: Path) -> None:
    bundle = encoder(tmp_path)
    for item in bundle.document["outputs"]:
        item["shape"] = [None, 2, 3]
    bundle.document["axes"]["length"]["hi"] = 2000
    bundle.document["buckets"][1]["axes"]["length"]["hi"] = 2000
    check(tmp_path, bundle)
    bundle.document["outputs"][1]["shape"] = [7, 2, 3]
    with pytest.raises(BundleError, match=r"'cross_value' must be float32\[null, 2, 3\]"):
        check(tmp_path, bundle)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("outputs.0.name", "key", "must be what the decoder takes: cross_key, cross_value"),
        ("outputs.1.dtype", "float64", r"'cross_value' must be float32\[length, 2, 3\]"),
        ("outputs.1.shape", ["length", 2, 4], r"'cross_value' must be float32\[length, 2, 3\]"),
        ("outputs.0.shape", [7, 2, 3], r"'cross_key' must be float32\[length, 2, 3\]"),
        ("inputs.0.name", "ids", "'input_ids' isn't one of them"),
        ("inputs.1.dtype", "float32", "nothing says what 'attention_mask' is"),
        ("inputs.1.shape", ["length"], "nothing says what 'attention_mask' is"),
        ("inputs.1.bounds", [-3, 0], "nothing says what 'attention_mask' is"),
    ],
)
def test_one_that_does_not(tmp_path: Path, path: str, value: Any, text: str) -> None:
    bundle = encoder(tmp_path)
    key, index, name = path.split(".")
    bundle.document[key][int(index)][name] = value
    with pytest.raises(BundleError, match=text) as caught:
        check(tmp_path, bundle)
    assert "[generation-encoder]" in caught.value.message


def test_sources_that_the_decoder_does_not_take(tmp_path: Path) -> None:
    bundle = encoder(tmp_path)
    bundle.document["axes"]["length"]["hi"] = 33
    bundle.document["buckets"][1]["axes"]["length"]["hi"] = 33
    with pytest.raises(BundleError, match=r"reach 1\.\.33, the decoder takes sources of 1\.\.32"):
        check(tmp_path, bundle)


def test_one_that_generates_itself(tmp_path: Path) -> None:
    bundle = DummyBundle(tmp_path / "inner.ecb")
    make_generative(bundle)
    with pytest.raises(BundleError, match="an encoder cannot generate text") as caught:
        check(tmp_path, bundle)
    assert "must be what the decoder takes" in caught.value.message
