"""Rehearsals of a GPU's programs on the build host, on programs written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.bundle.gpu_programs import rehearse_programs
from edgecompile.bundle.rehearsal import REHEARSAL, spread_sizes
from edgecompile.errors import VerificationError
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import BucketSpec, Extent, Manifest
from tests.fake_gpu.triton_bundle import TritonBundle, TritonDecoder, TritonSelector


def rehearse(bundle: TritonBundle) -> Manifest:
    path = Path(bundle.write())
    return rehearse_programs(path, parse_manifest((path / "manifest.json").read_bytes()))


@pytest.mark.parametrize("kind", [TritonBundle, TritonSelector, TritonDecoder])
def test_programs_that_do_what_the_loader_expects(
    kind: type[TritonBundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(tmp_path / "there is none"))
    cpu, gpu = rehearse(kind(tmp_path / "t.ecb")).variants[-2:]
    assert cpu.gpu is None and gpu.gpu is not None and gpu.gpu.checks == (REHEARSAL,)


def test_alternatives_are_rehearsed_too(triton_bundle: TritonBundle) -> None:
    """Each has a fault at a size of its own."""
    triton_bundle.add_alternatives("TOY_LARGER=(count==5)", bucket=0)
    triton_bundle.add_alternatives("TOY_LARGER=(count==18)", bucket=0)
    with pytest.raises(VerificationError) as caught:
        rehearse(triton_bundle)
    text = caught.value.message
    assert "bucket 0, batch 1, length 5: " in text and "bucket 0, batch 1, length 18: " in text
    assert "bytes of scratch memory at" in text and "length 10:" not in text


@pytest.mark.parametrize(
    ("define", "text"),
    [
        ("TOY_FAULT=1", "the output states is no row-major tensor"),
        ("TOY_FAULT=2", r"states has shape \[1, 4\], the manifest says \[1, 1, 2\]"),
        ("TOY_FAULT=5", "has 2 inputs and 1 outputs, the manifest has 2 and 2"),
        ("TOY_LARGER=(*(volatile int*)0)", "the process failed with exit code -11"),
    ],
)
def test_programs_that_misbehave(tmp_path: Path, define: str, text: str) -> None:
    with pytest.raises(VerificationError, match=text):
        rehearse(TritonBundle(tmp_path / "t.ecb", define))


def test_sizes_are_all_or_many_with_the_ends() -> None:
    axes = {"batch": Extent(1, 3, 1), "length": Extent(2, 512, 50)}
    every = list(spread_sizes(BucketSpec("exact", axes), "length", 2000))
    assert len(every) == 3 * 511
    some = list(spread_sizes(BucketSpec("exact", axes), "length", 60))
    lengths = sorted({sizes["length"] for sizes in some})
    assert len(some) == 60 and len(lengths) == 20 and lengths[0] == 2 and lengths[-1] == 512
    assert {sizes["batch"] for sizes in some} == {1, 2, 3}
    odd = BucketSpec("exact", {"length": Extent(1, 9, 5, step=2)})
    assert [sizes["length"] for sizes in spread_sizes(odd, "length")] == [1, 3, 5, 7, 9]
    assert [sizes["length"] for sizes in spread_sizes(odd, "length", 3)] == [1, 5, 9]
    padded = list(spread_sizes(BucketSpec("pad", axes), "length"))
    assert [tuple(sizes.values()) for sizes in padded] == [(1, 512), (2, 512), (3, 512)]
