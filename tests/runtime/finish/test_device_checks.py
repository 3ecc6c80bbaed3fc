"""engine_checks: the right device, enough memory, enough disk, each refusal with its numbers."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import (
    DeviceDiskError,
    DeviceMemoryError,
    EngineCacheError,
    WrongDeviceError,
)
from edgecompile.runtime.finish.device_checks import (
    FreeMemory,
    check_device,
    check_disk,
    check_memory,
)
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Manifest
from edgecompile.runtime.format.recipe.parse import parse_recipe
from edgecompile.runtime.format.recipe.schema import Recipe
from edgecompile.targets.jetpack import load_jetpack
from tests.runtime.bundles import DummyBundle
from tests.runtime.gpu.test_cache import ORIN

GIB = 1 << 30
MIB = 1 << 20
NANO = dataclasses.replace(ORIN, model="NVIDIA Jetson Orin Nano Developer Kit")


@pytest.fixture
def parsed(bundle: DummyBundle) -> tuple[Manifest, Recipe]:
    data = bundle.add_tensorrt()
    manifest = parse_manifest(json.dumps(bundle.listed()).encode())
    return manifest, parse_recipe(json.dumps(data).encode(), manifest, manifest.variants[1])


def test_the_device_that_it_was_made_for(parsed: tuple[Manifest, Recipe]) -> None:
    assert check_device(parsed[1], NANO, force=False) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tensorrt": "10.2.9"}, "TensorRT 10.2.9 is installed, the recipe is for 10.3 and later"),
        ({"tensorrt": "11.0.0"}, "TensorRT 11.0.0 is installed, the recipe is for 10.3 and later"),
        ({"tensorrt": "8.5.2"}, "below 11.0"),
        ({"l4t": "38.2.1"}, "JetPack 7 (L4T 38.2.1) is installed, the recipe is for JetPack 6.2"),
        ({"l4t": "35.5.0"}, "JetPack 5 (L4T 35.5.0)"),
        ({"compute_capability": "8.6"}, "compute capability 8.6, the recipe is for 8.7"),
    ],
)
def test_another_device(
    parsed: tuple[Manifest, Recipe], changed: dict[str, Any], text: str
) -> None:
    with pytest.raises(WrongDeviceError) as caught:
        check_device(parsed[1], dataclasses.replace(NANO, **changed), force=False)
    assert text in caught.value.message and "jetson-orin-nano" in caught.value.message


@pytest.mark.parametrize(("made_for", "has"), [("6.0", "6.2"), ("6.2", "6.0")])
def test_two_releases_of_one_jetpack(
    parsed: tuple[Manifest, Recipe], made_for: str, has: str
) -> None:
    """Both are JetPack 6 to the system: their TensorRT tells them apart."""
    target, installed = load_jetpack(made_for), load_jetpack(has)
    bounds = {"least": target.tensorrt_least, "below": target.tensorrt_below}
    recipe = dataclasses.replace(parsed[1], jetpack=made_for, **bounds)
    check_device(recipe, dataclasses.replace(NANO, tensorrt=target.tensorrt), force=False)
    with pytest.raises(WrongDeviceError) as caught:
        check_device(recipe, dataclasses.replace(NANO, tensorrt=installed.tensorrt), force=True)
    assert f"TensorRT {installed.tensorrt} is installed" in caught.value.message
    assert f"the recipe is for {target.tensorrt_least} and later" in caught.value.message


def test_everything_that_is_wrong_is_named(parsed: tuple[Manifest, Recipe]) -> None:
    other = dataclasses.replace(NANO, tensorrt="8.5", l4t="35.1", compute_capability="7.2")
    with pytest.raises(WrongDeviceError) as caught:
        check_device(parsed[1], other, force=True)
    assert "TensorRT 8.5" in caught.value.message and "JetPack 5" in caught.value.message
    assert "8.7" not in caught.value.message  # forced


@pytest.mark.parametrize("version", ["10.3.0", "10.3.0.30", "10.7", "10.16.2"])
@pytest.mark.parametrize("l4t", ["36.3.0", "", "99.1"])
def test_versions_that_will_do(parsed: tuple[Manifest, Recipe], version: str, l4t: str) -> None:
    identity = dataclasses.replace(NANO, tensorrt=version, l4t=l4t)
    assert check_device(parsed[1], identity, force=False) == []


def test_differences_that_are_only_told(parsed: tuple[Manifest, Recipe]) -> None:
    other = dataclasses.replace(NANO, model="NVIDIA Jetson AGX Orin", sm_count=16)
    (note,) = check_device(parsed[1], other, force=False)
    assert "this is NVIDIA Jetson AGX Orin, the recipe was made for jetson-orin-nano" in note
    (note,) = check_device(parsed[1], dataclasses.replace(NANO, sm_count=4), force=False)
    assert "4 SMs, the recipe was made for 8" in note
    (note,) = check_device(parsed[1], dataclasses.replace(NANO, compute_capability="8.6"), True)
    assert "compute capability 8.6" in note


class TestMemory:
    """The recipe: 1 GiB to build with 1 GiB of workspace, an engine of 1 MiB."""

    def check(
        self,
        parsed: tuple[Manifest, Recipe],
        *,
        free: int,
        predicted: dict[str, Any] | None = None,
        asked: int | None = None,
        force: bool = False,
        host: int | None = None,
    ) -> tuple[int, list[str]]:
        manifest, recipe = parsed
        changed = dataclasses.replace(recipe.predicted, **(predicted or {}))
        recipe = dataclasses.replace(recipe, predicted=changed)
        allowed = check_memory(manifest, recipe, NANO, FreeMemory(free, host), asked, force)
        # A prediction that says no is only gone on from where that is asked for.
        assert force or not allowed.short
        return allowed[:2]

    def test_all_of_the_workspace_where_there_is_enough(
        self, parsed: tuple[Manifest, Recipe]
    ) -> None:
        assert self.check(parsed, free=6 * GIB) == (GIB, [])

    def test_workspace_is_capped_to_half_of_what_is_free(
        self, parsed: tuple[Manifest, Recipe]
    ) -> None:
        workspace, notes = self.check(parsed, free=GIB)
        assert workspace == GIB // 2
        assert notes == [
            "workspace capped to 512 MiB of the recipe's 1,024 MiB: 1,024 MiB of memory are free"
        ]

    def test_workspace_leaves_what_the_build_needs_besides(
        self, parsed: tuple[Manifest, Recipe]
    ) -> None:
        workspace, _ = self.check(parsed, free=GIB, predicted={"build_bytes": GIB + 800 * MIB})
        assert workspace == 224 * MIB

    def test_what_the_user_asks_for_is_taken(self, parsed: tuple[Manifest, Recipe]) -> None:
        assert self.check(parsed, free=3 * GIB, asked=2 * GIB) == (2 * GIB, [])
        with pytest.raises(DeviceMemoryError, match="3,072 MiB, 3,072 MiB of workspace included"):
            self.check(parsed, free=2 * GIB, asked=3 * GIB)

    def test_too_little_is_free(self, parsed: tuple[Manifest, Recipe]) -> None:
        predicted = {"build_bytes": 3 * GIB}
        with pytest.raises(DeviceMemoryError) as caught:
            self.check(parsed, free=GIB, predicted=predicted)
        assert caught.value.message == (
            "the build is predicted to need 2,112 MiB, 64 MiB of workspace included; "
            "1,024 MiB of 8,192 MiB are free"
        )
        assert "end other programs" in (caught.value.hint or "")
        workspace, notes = self.check(parsed, free=GIB, predicted=predicted, force=True)
        assert workspace == 64 * MIB and "2,112 MiB" in notes[0]

    def test_main_memory_where_the_gpu_has_its_own(self, parsed: tuple[Manifest, Recipe]) -> None:
        predicted = {"host_bytes": 6 * GIB}
        for host in (None, 6 * GIB):  # of a module, or a host, that has enough
            assert self.check(parsed, free=6 * GIB, predicted=predicted, host=host) == (GIB, [])
        with pytest.raises(DeviceMemoryError) as caught:
            self.check(parsed, free=6 * GIB, predicted=predicted, host=5 * GIB)
        text = "the build is predicted to take 6,144 MiB of main memory, and 5,120 MiB are free"
        assert caught.value.message == text and "--force" in (caught.value.hint or "")
        room, manifest = FreeMemory(6 * GIB, 5 * GIB), parsed[0]
        recipe = dataclasses.replace(
            parsed[1], predicted=dataclasses.replace(parsed[1].predicted, **predicted)
        )
        forced = check_memory(manifest, recipe, NANO, room, None, True)
        assert forced == (GIB, [text], True)

    def test_buckets_that_no_engine_could_run(self, parsed: tuple[Manifest, Recipe]) -> None:
        predicted = {"scratch_bytes": (9 * GIB, 8 * GIB), "build_bytes": 10 * GIB}
        with pytest.raises(DeviceMemoryError) as caught:
            self.check(parsed, free=6 * GIB, predicted=predicted)
        message = caught.value.message
        assert "more than the 8,192 MiB of memory that this device has" in message
        assert "bucket 0 (exact batch 1..2, length 1..32) needs 9,217 MiB to run" in message
        assert "bucket 1 " in message and "1 MiB of the engine" in message
        assert "the build needs 9,280 MiB" in message
        assert "a guess for tests" in (caught.value.hint or "")
        _, notes = self.check(parsed, free=6 * GIB, predicted=predicted, force=True)
        assert message in notes


class TestDisk:
    def test_enough(self, parsed: tuple[Manifest, Recipe], tmp_path: Path) -> None:
        check_disk(str(tmp_path), parsed[1])

    def test_too_little(
        self, parsed: tuple[Manifest, Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.statvfs(tmp_path)
        fields = list(real)
        fields[4] = 10 * MIB // real.f_frsize  # f_bavail
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
        with pytest.raises(DeviceDiskError) as caught:
            check_disk(str(tmp_path), parsed[1])
        assert "10 MiB are free, about 65 MiB are needed: 1 MiB of the engine" in str(caught.value)
        assert "EDGECOMPILE_CACHE" in (caught.value.hint or "")

    def test_no_folder(self, parsed: tuple[Manifest, Recipe], tmp_path: Path) -> None:
        with pytest.raises(EngineCacheError):
            check_disk(str(tmp_path / "none"), parsed[1])
