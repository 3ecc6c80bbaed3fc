"""engine_cache: the key, the stamp and the lock of finished engines."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import EngineCacheError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.recipe.parse import read_recipe
from edgecompile.runtime.gpu.cache import (
    EngineFolder,
    cache_root,
    describe_content,
    digest,
    find,
    is_whole,
)
from edgecompile.runtime.gpu.device import DeviceIdentity
from tests.runtime.bundles import DELETE, DummyBundle, put

REPOSITORY = Path(__file__).resolve().parents[3]
ORIN = DeviceIdentity(
    model="NVIDIA Jetson Orin Nano",
    l4t="36.4.3",
    name="Orin",
    compute_capability="8.7",
    sm_count=8,
    integrated=True,
    driver="12.6",
    runtime="12.6",
    tensorrt="10.3.0",
    memory_bytes=8 << 30,
)
PLAN = b"an engine" * 100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content_of(bundle: DummyBundle) -> dict[str, Any]:
    folder = BundleFolder(bundle.write())
    try:
        variant = folder.manifest.variants[1]
        return describe_content(folder.manifest, variant, read_recipe(folder, variant))
    finally:
        folder.close()


@pytest.fixture
def engines(bundle: DummyBundle) -> EngineFolder:
    """The folder of a bundle's engine, which is there, stamped as finished."""
    bundle.add_tensorrt()
    engines = EngineFolder(content_of(bundle), ORIN)
    with engines.locked(print):
        sha256 = hashlib.sha256(PLAN).hexdigest()
        Path(engines.join("x.tmp")).write_bytes(PLAN)
        engines.adopt(engines.join("x.tmp"), sha256)
        entries = {"engine": {"size": len(PLAN), "sha256": sha256}, "profile_of": [0, 0]}
        engines.write_stamp(entries, tested=True)
    return engines


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_root() == str(tmp_path / "cache")
    monkeypatch.delenv("EDGECOMPILE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == str(tmp_path / "xdg" / "edgecompile")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/orin")
    assert cache_root() == "/home/orin/.cache/edgecompile"


def test_a_finished_engine_is_found(bundle: DummyBundle, engines: EngineFolder) -> None:
    folder = BundleFolder(bundle.write())
    try:
        engine = find(folder, folder.manifest.variants[1], ORIN)
        assert engine is not None and engine.profile_of == (0, 0)
        assert Path(engine.path).read_bytes() == PLAN and is_whole(engine)
        assert engine.stamp["device"]["model"] == ORIN.model
        assert engine.stamp["device"]["runtime"] == ORIN.runtime  # known, but not compared
        less = dataclasses.replace(ORIN, memory_bytes=1, runtime="13.0")
        assert find(folder, folder.manifest.variants[1], less) == engine
    finally:
        folder.close()
    assert os.stat(engines.path).st_mode & 0o77 == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "NVIDIA Jetson Orin NX"},
        {"l4t": "36.4.4"},
        {"name": "Thor"},
        {"compute_capability": "8.6"},
        {"sm_count": 16},
        {"integrated": False},
        {"driver": "12.8"},
        {"tensorrt": "10.3.1"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_any_change_of_the_device_is_another_key(
    bundle: DummyBundle, engines: EngineFolder, changed: dict[str, Any]
) -> None:
    folder = BundleFolder(bundle.write())
    try:
        identity = dataclasses.replace(ORIN, **changed)
        assert find(folder, folder.manifest.variants[1], identity) is None
    finally:
        folder.close()
    (other,) = EngineFolder(engines.content, identity).others()
    assert other[0] == engines.key and other[1]["content"] == engines.content
    assert other[2] > len(PLAN)


def test_every_field_of_a_device_was_changed_above() -> None:
    names = {field.name for field in dataclasses.fields(DeviceIdentity)} - {"memory_bytes"}
    names.remove("runtime")  # the process', not the device's
    mark = test_any_change_of_the_device_is_another_key.pytestmark[0]  # type: ignore[attr-defined]
    assert {name for changed in mark.args[1] for name in changed} == names


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("profiles.0.input_ids.opt.1", 17),
        ("builder.optimization_level", 4),
        ("builder.workspace_bytes", 5),
    ],
)
def test_any_change_of_the_build_is_another_key(
    bundle: DummyBundle, engines: EngineFolder, path: str, value: int
) -> None:
    recipe = bundle.add_tensorrt()
    bundle.document["variants"].pop()
    put(recipe, path, value)
    bundle.put_recipe(recipe)
    assert EngineFolder(content_of(bundle), ORIN).key != engines.key


def test_other_settings_of_the_builder_are_another_key(
    bundle: DummyBundle, engines: EngineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecompile.runtime.gpu.cache.SETTINGS_VERSION", 1)
    assert EngineFolder(content_of(bundle), ORIN).key != engines.key


@pytest.mark.parametrize("name", ["model.onnx", "weights.fp16"])
def test_any_change_of_the_model_is_another_key(
    bundle: DummyBundle, engines: EngineFolder, name: str
) -> None:
    bundle.files["code/jetson-orin/" + name] += b"x"
    assert EngineFolder(content_of(bundle), ORIN).key != engines.key


def test_names_and_predictions_are_not_part_of_the_key(
    bundle: DummyBundle, engines: EngineFolder
) -> None:
    recipe = bundle.add_tensorrt()
    bundle.document["variants"].pop()
    recipe["predicted"]["how"] = "otherwise"
    bundle.put_recipe(recipe)
    bundle.document["name"] = "another"
    assert EngineFolder(content_of(bundle), ORIN).key == engines.key


STAMPS: list[tuple[str, Any, str]] = [
    ("stamp_version", 2, "belongs to something else"),
    ("key", "0" * 64, "belongs to something else"),
    ("key", DELETE, "key: is required"),
    ("engine", [], "engine: must be an object"),
    ("engine.size", len(PLAN) + 1, "must have"),
    ("engine.size", "900", "engine.size: must be an integer"),
    ("engine.sha256", "../../x", "belongs to something else"),
    ("engine.sha256", "0" * 64, "No such file"),
    ("profile_of", [0], "profile_of: has 1 entries"),
    ("profile_of", [0, 2], "a profile that doesn't exist"),
    ("profile_of", [0, -1], "a profile that doesn't exist"),
    ("profile_of", [0, True], "profile_of[1]: must be an integer"),
]


@pytest.mark.parametrize(("path", "value", "text"), STAMPS, ids=lambda item: str(item)[:20])
def test_a_stamp_that_lies_is_no_stamp(
    engines: EngineFolder, path: str, value: Any, text: str
) -> None:
    stamp = Path(engines.join("stamp.json"))
    document = json.loads(stamp.read_text())
    put(document, path, value)
    stamp.write_text(json.dumps(document))
    engine, reason = engines.read_stamp()
    assert engine is None and text in reason


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 10_000])
def test_a_stamp_that_is_no_stamp(engines: EngineFolder, data: bytes) -> None:
    Path(engines.join("stamp.json")).write_bytes(data)
    engine, reason = engines.read_stamp()
    assert engine is None and reason


def test_a_damaged_engine_is_noticed(engines: EngineFolder) -> None:
    engine, _ = engines.read_stamp()
    assert engine is not None and is_whole(engine)
    Path(engine.path).write_bytes(PLAN[:-1] + b"?")
    assert not is_whole(engine)
    Path(engine.path).unlink()
    assert not is_whole(engine)
    Path(engine.path).symlink_to(__file__)
    assert not is_whole(engine)


def test_tidying_keeps_what_is_served(engines: EngineFolder) -> None:
    engine, _ = engines.read_stamp()
    assert engine is not None
    for name in ("building-1.tmp", ".edgecompile-1.tmp", "engine-0123456789abcdef.plan"):
        Path(engines.join(name)).write_bytes(b"left")
    engines.tidy([os.path.basename(engine.path)])
    assert sorted(os.listdir(engines.path)) == sorted(["stamp.json", os.path.basename(engine.path)])


HOLDER = """
import sys
from edgecompile.runtime.gpu.device import DeviceIdentity
from edgecompile.runtime.gpu.cache import EngineFolder
import json
document = json.loads(sys.argv[1])
engines = EngineFolder(document["content"], DeviceIdentity(**document["device"]))
with engines.locked(lambda text: print(text, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_one_at_a_time(engines: EngineFolder) -> None:
    document = {"content": engines.content, "device": ORIN.to_json()}
    command = [sys.executable, "-c", HOLDER, json.dumps(document)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "held\n"
        said: list[str] = []

        def let_go(text: str) -> None:
            said.append(text)
            child.kill()  # a lock ends with its holder

        with engines.locked(let_go):
            assert said == [
                f"another process ({child.pid}) finishes or tunes a bundle: waiting until it is done"
            ]


def test_the_cache_is_emptied_while_somebody_waits(engines: EngineFolder, cache: Path) -> None:
    lock = cache / "lock"
    stale = os.open(lock, os.O_RDWR)
    lock.rename(cache / "elsewhere")
    try:
        with engines.locked(print):
            assert os.stat(lock).st_ino != os.fstat(stale).st_ino
    finally:
        os.close(stale)


@pytest.mark.parametrize("depth", ["file", "file/below"])
def test_a_cache_that_is_a_file(
    bundle: DummyBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / depth))
    bundle.add_tensorrt()
    engines = EngineFolder(content_of(bundle), ORIN)
    text = "can't be used as the cache"
    with pytest.raises(EngineCacheError, match=text) as caught, engines.locked(print):
        pass
    assert "EDGECOMPILE_CACHE" in (caught.value.hint or "")


def test_every_level_is_made_for_its_user_alone(
    bundle: DummyBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "a" / "b"))
    bundle.add_tensorrt()
    before = os.umask(0)
    try:
        engines = EngineFolder(content_of(bundle), ORIN)
        with engines.locked(print):
            pass
    finally:
        os.umask(before)
    made = [tmp_path / "a", *(path for path in (tmp_path / "a").rglob("*") if path.is_dir())]
    assert {path.name for path in made} == {"a", "b", "engines", "timing", engines.key}
    assert {oct(path.stat().st_mode & 0o777) for path in made} == {"0o700"}


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
@pytest.mark.parametrize("level", ["", ".."])
def test_engines_that_others_may_exchange_are_not_used(
    engines: EngineFolder, mode: int, level: str
) -> None:
    folder = Path(os.path.normpath(engines.join(level)))
    folder.chmod(mode)
    engine, reason = engines.read_stamp()
    assert engine is None and reason == f"others than its owner may write to {folder}"
    with pytest.raises(EngineCacheError, match="others than its owner") as caught:
        engines.make()
    assert caught.value.hint == f"chmod go-w {folder}"
    folder.chmod(0o755)  # to read it is another thing
    assert engines.read_stamp()[0] is not None
    engines.make()


def test_equal_values_have_equal_digests() -> None:
    assert digest({"a": 1, "b": [True, None]}) == digest({"b": [True, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
