"""Opening a bundle: what is loaded, which variant, what is verified and what is refused."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import (
    DamagedBundleError,
    InputError,
    ModelClosedError,
    UnsupportedHostError,
)
from edgecompile.runtime.format.manifest.parse import parse_manifest
from tests.runtime.bundles import DummyBundle
from tests.runtime.model.test_model import assert_agree, golden


def test_programs_are_loaded_at_first_use_without_warm_up(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False, threads=1, concurrency=1) as model:
        assert model.info["loaded_buckets"] == [] and model.info["threads"] == 1
        for bucket, inputs, want in golden(model, native_bundle):
            assert_agree(model.manifest, model.run_bucket(bucket, inputs), want)
            assert bucket in model.info["loaded_buckets"]


def test_loading_without_running(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        last = len(model.manifest.buckets) - 1
        model.load(last)
        model.load(last)
        assert model.info["loaded_buckets"] == [last]
        for bucket in (-1, last + 1):
            with pytest.raises(InputError, match="there is no bucket"):
                model.load(bucket)
    with pytest.raises(ModelClosedError):
        model.load(0)


def test_the_variant_can_be_chosen(native_bundle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        name = model.info["variant"]
    monkeypatch.setenv("EDGECOMPILE_VARIANT", "no-such-variant")
    with pytest.raises(UnsupportedHostError, match="no variant 'no-such-variant'"):
        open_bundle(native_bundle)
    with open_bundle(native_bundle, variant=name, warmup=False) as model:
        assert model.info["variant"] == name, "the argument comes before the environment"


def test_a_changed_weight_is_found(native_copy: Path) -> None:
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    place = native_copy / manifest.weights[manifest.precision]
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.unlink()
    place.write_bytes(data)
    for verify in ("auto", "full"):
        with pytest.raises(DamagedBundleError, match="file-hash"):
            open_bundle(native_copy, verify=verify)
    open_bundle(native_copy, verify="fast").close()


def test_only_full_verification_reads_what_is_not_used(native_copy: Path) -> None:
    place = native_copy / "manifest.json"
    manifest = parse_manifest(place.read_bytes())
    (native_copy / "notes.txt").write_bytes(b"changed")
    digest = hashlib.sha256(b"written").hexdigest()
    entry = {"notes.txt": type(next(iter(manifest.files.values())))(7, digest)}
    changed = manifest._replace(files={**manifest.files, **entry})
    place.unlink()
    place.write_bytes(changed.to_bytes())
    open_bundle(native_copy).close()
    with pytest.raises(DamagedBundleError, match=r"notes\.txt"):
        open_bundle(native_copy, verify="full")


def test_a_truncated_program_is_refused(native_copy: Path) -> None:
    manifest = parse_manifest((native_copy / "manifest.json").read_bytes())
    place = native_copy / manifest.variants[0].programs[0]
    data = place.read_bytes()
    place.unlink()
    place.write_bytes(data[:-100])
    with pytest.raises(DamagedBundleError, match="file-size-differs"):
        open_bundle(native_copy, verify="fast")


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"threads": True},
        {"threads": 10**6},
        {"concurrency": -1},
        {"verify": "maybe"},
    ],
)
def test_arguments_out_of_range(bundle: DummyBundle, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        open_bundle(bundle.write(), **options)


def test_a_failed_opening_leaves_nothing_open(bundle: DummyBundle) -> None:
    bundle.document["variants"][0]["requires"] = ["no-such-feature"]
    bundle.document["variants"][0]["arch"] = "none"
    bundle.document["probes"] = {"none": "code/x86-64/libecprobe.so"}
    path = bundle.write()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UnsupportedHostError, match="x86-64-v3: is for none"):
        open_bundle(path)
    assert len(os.listdir("/proc/self/fd")) == before
