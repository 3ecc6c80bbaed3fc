"""finish on another device, on one that changed, and with what doesn't fit together."""

from __future__ import annotations

import pytest

from tests.fake_gpu.bundles import FOLDER
from tests.fake_gpu.rig import REPOSITORY, Rig
from tests.finish.outcome import check_served


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"FAKE_TRT_VERSION": "10.7.0"}, "tensorrt was 10.3.0, is 10.7.0"),
        pytest.param(
            {"FAKE_CUDART_DEVICE": "name=Orin;cc=8.7;sm=8;memory=8589934592;driver=12080"},
            "driver was 12.6, is 12.8",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"FAKE_CUDART_DEVICE": "name=Orin;cc=8.7;sm=16;memory=8589934592;integrated=1"},
            "sm_count was 8, is 16",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_change_is_noticed(rig: Rig, environment: dict[str, str], text: str) -> None:
    before = rig.finish_before().report
    changed = rig.finish(**environment)
    assert changed.report["state"] == "finished" and text in changed.stderr
    assert any(text in note for note in changed.report["notes"])
    assert changed.report["key"] != before["key"]
    assert changed.report["others"]["count"] == 1 and changed.report["others"]["bytes"] > 0
    # The other one is still there for the day when the change is undone.
    assert rig.finish().report["state"] == "already finished"


def test_another_libcudart_in_the_process_is_no_change(rig: Rig) -> None:
    """An application may have loaded one of its own, before it opens a bundle or finishes one."""
    before = rig.finish_before().report
    rig.environment["FAKE_CUDART_DEVICE"] += ";runtime=13000"
    check_served(rig, [3, 40], ("default",))
    again = rig.finish().report
    assert again["state"] == "already finished" and again["engine"] == before["engine"]
    assert (before["device"]["runtime"], again["device"]["runtime"]) == ("12.6", "13.0")


def test_another_module(rig: Rig) -> None:
    assert rig.finish_before().code == 0
    (rig.root / "proc/device-tree/model").write_text("NVIDIA Jetson Orin NX\0")
    changed = rig.finish()
    assert "model was NVIDIA Jetson Orin Nano" in changed.stderr
    assert "the recipe was made for jetson-orin-nano" in changed.stderr
    assert changed.report["state"] == "finished"


@pytest.mark.parametrize(
    ("version", "release", "texts"),
    [
        ("8.5.2", None, ["TensorRT 8.5.2 is installed", "10.3 and later"]),
        ("11.4.0", None, ["TensorRT 11.4.0 is installed", "below 11.0"]),
        ("10.16.0", "# R38 (release), REVISION: 2.0", ["JetPack 7 (L4T 38.2.0)", "JetPack 6.2"]),
    ],
)
def test_a_bundle_for_another_jetpack(
    rig: Rig, version: str, release: str | None, texts: list[str]
) -> None:
    if release is not None:
        (rig.root / "etc/nv_tegra_release").write_text(release)
    done = rig.finish("--force", FAKE_TRT_VERSION=version)
    assert done.code == 61
    for text in texts:
        assert text in done.stderr
    assert rig.engines == []


def test_another_gpu_is_refused_unless_forced(rig: Rig) -> None:
    device = "name=A100;cc=8.0;sm=8;memory=8589934592"
    done = rig.finish(FAKE_CUDART_DEVICE=device)
    assert done.code == 61 and "compute capability 8.0, the recipe is for 8.7" in done.stderr
    assert rig.finish("--force", FAKE_CUDART_DEVICE=device).report["state"] == "finished"


def test_no_tensorrt(rig: Rig) -> None:
    done = rig.finish(PYTHONPATH=str(REPOSITORY))
    assert done.code == 19 and "No module named 'tensorrt'" in done.stderr
    assert "hint: on a Jetson it comes with JetPack: sudo apt install" in done.stderr


def test_no_cuda(rig: Rig) -> None:
    done = rig.finish(EDGECOMPILE_CUDART="/nowhere/libcudart.so")
    assert done.code == 19 and "/nowhere/libcudart.so" in done.stderr


def test_a_bundle_without_such_a_variant(rig: Rig) -> None:
    rig.bundle.document["variants"][0]["arch"] = "riscv64"
    done = rig.finish()
    assert done.code == 23
    assert "no TensorRT variant for" in done.stderr
    assert "jetson-orin (backend tensorrt, for riscv64)" in done.stderr
    assert rig.finish("--variant", "x").code == 23


@pytest.mark.parametrize(
    "name",
    [
        "model.onnx",
        pytest.param("weights.fp16", marks=pytest.mark.slow),
        pytest.param("recipe.json", marks=pytest.mark.slow),
    ],
)
def test_damaged_files_of_the_bundle(rig: Rig, name: str) -> None:
    rig.bundle.write()
    path = rig.bundle.folder / FOLDER / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = rig.finish()
    assert done.code == 22 and name in done.stderr and "[file-hash]" in done.stderr
    assert rig.calls("build_serialized_network") == []
