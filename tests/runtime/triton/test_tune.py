"""``tune``: which programs of a bundle run on a GPU, measured there.

The programs are written by hand and CUDA's driver is a fake, so that the times are those of this CPU: a slow
program is one that runs a kernel many times.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.__main__ import main
from edgecompile.runtime.base.errors import (
    EdgecompileError,
    EngineCacheError,
    GpuUnavailableError,
    InputError,
    SelftestError,
    UnsupportedHostError,
)
from edgecompile.runtime.commands.info import describe_bundle
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.measure.prepared import choose_sizes
from edgecompile.runtime.measure.tune import choose_fastest, tune_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import (
    DEVICE,
    VARIANT,
    TritonBundle,
    TritonDecoder,
    generate,
    make_inputs,
)

SLOW = "TOY_REPEAT=400"
WRONG = "TOY_FAULT=7"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    path = tmp_path / "cache"
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(path))
    return path


def slow_first(folder: Path) -> TritonBundle:
    """Of each bucket a slow program, and two alternatives: a wrong one and a fast one."""
    bundle = TritonBundle(folder, SLOW)
    bundle.add_alternatives(WRONG)
    bundle.add_alternatives()
    return bundle


def tune(path: str, **how: Any) -> dict[str, Any]:
    return tune_bundle(path, seconds=0.0, **how)


def check(path: str, choice: list[int] | None) -> None:
    """What a loader takes, and that it computes what it should."""
    with open_bundle(path) as model:
        tuned = model.info["tuned"]
        assert (None if tuned is None else tuned["choice"]) == choice
        for length in (3, 40):
            got = model.run(make_inputs(length))
            for name, want in embed(make_inputs(length)).items():
                assert (got[name] == want).all()


def test_the_fastest_right_one_is_taken(fake_driver: FakeCudart, tmp_path: Path) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    check(path, None)
    said: list[str] = []
    report = tune(path, say=said.append)
    assert report["state"] == "tuned" and report["choice"] == [2, 2]
    for entry in report["buckets"]:
        assert set(entry["ms"]) == {"0", "2"} and entry["chosen"] == 2
        assert entry["ms"]["2"][0] < entry["ms"]["0"][0]
    assert len(report["notes"]) == 2 and "candidate 2 is dropped" in report["notes"][0]
    assert any("candidate 3 of 3" in text for text in said)
    check(path, [2, 2])


def test_it_is_done_once(fake_driver: FakeCudart, tmp_path: Path) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    first = tune(path)
    launches = fake_driver.calls("cuLaunchKernel")
    again = tune(path)
    assert again["state"] == "already tuned" and again["record"] == first["record"]
    assert fake_driver.calls("cuLaunchKernel") == launches
    assert tune(path, force=True)["state"] == "tuned"
    assert fake_driver.calls("cuLaunchKernel") > launches


def test_it_holds_for_this_gpu(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For this driver, too: tests/native/c_runtime/gpu/test_tune.py changes each part of the key."""
    path = slow_first(tmp_path / "x.ecb").write()
    tune(path)
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE.replace("Fake H100", "Fake H200"))
    check(path, None)
    assert tune(path)["state"] == "tuned"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE)
    check(path, [2, 2])


def test_it_holds_for_these_programs(fake_driver: FakeCudart, tmp_path: Path) -> None:
    tune(slow_first(tmp_path / "x.ecb").write())
    other = slow_first(tmp_path / "y.ecb")
    other.add_alternatives("TOY_REPEAT=2")
    check(other.write(), None)
    # An equal bundle elsewhere has the same programs.
    check(slow_first(tmp_path / "z.ecb").write(), [2, 2])


def test_a_wrong_first_program_is_replaced(fake_driver: FakeCudart, tmp_path: Path) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb", WRONG)
    bundle.add_alternatives(SLOW)
    path = bundle.write()
    report = tune(path)
    assert report["choice"] == [1, 1] and "candidate 1 is dropped" in report["notes"][0]
    check(path, [1, 1])


def test_where_all_are_wrong_nothing_is_recorded(
    fake_driver: FakeCudart, tmp_path: Path, cache: Path
) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb", WRONG)
    bundle.add_alternatives(WRONG, SLOW)
    with pytest.raises(SelftestError, match="no program of bucket 0, 1 reproduces"):
        tune(bundle.write())
    assert not list(cache.rglob("*.json"))


def test_a_bucket_without_alternatives_keeps_its_program(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb", SLOW)
    bundle.add_alternatives(bucket=1)
    path = bundle.write()
    report = tune(path)
    assert report["choice"] == [0, 1] and report["buckets"][0]["ms"] == {}
    check(path, [0, 1])


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "choice", "key", "version"])
def test_a_record_that_is_no_use_is_not_used(
    fake_driver: FakeCudart, tmp_path: Path, content: str
) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    record = Path(tune(path)["record"])
    document = json.loads(record.read_text())
    changes = {"choice": [2, 3], "key": "0" * 64, "version": 2}
    if content in changes:
        name = "record_version" if content == "version" else content
        content = json.dumps({**document, name: changes[content]})
    record.write_text(content)
    check(path, None)
    (verdict,) = (x["verdict"] for x in describe_bundle(path)["variants"] if x["name"] == VARIANT)
    assert "runs here" in verdict and str(record) in verdict
    assert tune(path)["state"] == "tuned"
    check(path, [2, 2])


def test_info_says_what_was_chosen(fake_driver: FakeCudart, tmp_path: Path) -> None:
    path = slow_first(tmp_path / "x.ecb").write()

    def verdict() -> str:
        entries = describe_bundle(path)["variants"]
        return next(str(x["verdict"]) for x in entries if x["name"] == VARIANT)

    assert verdict().endswith("; not tuned on this device")
    tune(path)
    assert verdict().endswith("; tuned, program by bucket: 3 of 3, 3 of 3")


def test_what_can_not_be_tuned(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TritonBundle(tmp_path / "plain.ecb").write()
    with pytest.raises(InputError, match="nothing to choose from") as refused:
        tune(plain)
    assert "--alternatives" in (refused.value.hint or "")
    cpu = TritonBundle(tmp_path / "cpu.ecb")
    cpu.bundle.document["variants"].remove(cpu.variant)
    with pytest.raises(UnsupportedHostError, match="no variant of Triton kernels for"):
        tune(cpu.write())
    path = slow_first(tmp_path / "x.ecb").write()
    with pytest.raises(UnsupportedHostError, match="called 'other'"):
        tune(path, variant="other")
    monkeypatch.setenv("EDGECOMPILE_CACHE", str(tmp_path / "plain.ecb" / "manifest.json"))
    with pytest.raises(EngineCacheError):
        tune(path)


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    monkeypatch.setenv("EDGECOMPILE_CUDA_DRIVER", str(tmp_path / "none.so"))
    with pytest.raises(GpuUnavailableError, match=r"none\.so"):
        tune(path)


def test_each_call_may_fail(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """Everything is given back, and there is no record or a right one."""
    path = slow_first(tmp_path / "x.ecb").write()
    for call in ("cuMemAlloc_v2", "cuModuleLoadDataEx", "cuStreamSynchronize", "cuGraphLaunch"):
        for number in (1, 4, 9):
            fake_driver.reset()
            monkeypatch.setenv("FAKE_CUDART_FAIL", f"{call}:{number}=2")
            with contextlib.suppress(EdgecompileError):
                assert tune(path, force=True)["choice"] in ([2, 2], [2, 0], [0, 2], [0, 0])
            monkeypatch.delenv("FAKE_CUDART_FAIL")
            assert fake_driver.live == 0, (call, number)
    assert tune(path, force=True)["choice"] == [2, 2]


def start(path: str, *options: str) -> subprocess.Popen[str]:
    """A tuner in a process of its own."""
    command = [sys.executable, "-m", "edgecompile.runtime", "tune", path, "--json", *options]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes)


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Reads what a tuner says until it says that."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}")


def test_killed_at_any_moment(fake_driver: FakeCudart, tmp_path: Path, cache: Path) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    for moment in ("measuring", "candidate 2 of 3", "bucket 0", "bucket 1"):
        process = start(path, "--seconds", "1000")
        wait_for(process, moment)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        check(path, None)
    (folder,) = (cache / "tuned").iterdir()
    (folder / ".edgecompile-1-0.tmp").write_text("half of a record")
    assert tune(path)["state"] == "tuned"
    assert [item.name for item in folder.iterdir()] == ["choice.json"]


def test_two_at_once_measure_once(fake_driver: FakeCudart, tmp_path: Path) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    first = start(path, "--seconds", "1000")
    wait_for(first, "measuring")
    second = start(path, "--seconds", "0")
    wait_for(second, f"another process ({first.pid}) finishes or tunes a bundle")
    third = start(path, "--seconds", "0")
    wait_for(third, "another process")
    first.kill()
    first.communicate()
    reports = [json.loads(process.communicate()[0]) for process in (second, third)]
    assert sorted(report["state"] for report in reports) == ["already tuned", "tuned"]
    assert reports[0]["choice"] == reports[1]["choice"] == [2, 2]


def test_the_command(
    fake_driver: FakeCudart,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = slow_first(tmp_path / "x.ecb").write()
    assert main(["tune", path, "--seconds", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"tuned: {VARIANT} on Fake H100\nbucket 0 (exact")
    assert "candidate 3; ms at " in out and "warning: bucket 0: candidate 2" in err
    assert main(["tune", path, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert json.loads(out)["state"] == "already tuned"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", DEVICE.replace("cc=9.0", "cc=8.0"))
    assert main(["tune", path]) == GpuUnavailableError.exit_code
    assert "its kernels are for compute capability 9.0" in capsys.readouterr().err


def test_a_decoder_is_measured_over_caches_that_stay(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    bundle = TritonDecoder(tmp_path / "d.ecb")
    bundle.add_alternatives("OTHER")
    path = bundle.write()
    report = tune(path)
    assert all(set(entry["ms"]) == {"0", "1"} for entry in report["buckets"])
    with open_bundle(path) as model:
        assert model.info["tuned"]["choice"] == report["choice"]
        assert model.generate([3, 4], max_new_tokens=9, eos=()) == generate([3, 4], 9)


def test_sizes_are_the_hint_and_the_ends(triton_bundle: TritonBundle) -> None:
    manifest = BundleFolder(triton_bundle.write()).manifest
    for index, bucket in enumerate(manifest.buckets):
        sizes = choose_sizes(manifest, index)
        length = bucket.axes["length"]
        wanted = [length.hi] if bucket.mode == "pad" else [length.hint, length.lo, length.hi]
        assert [item["length"] for item in sizes] == list(dict.fromkeys(wanted))


def test_the_choice_weighs_the_hint_twice_and_needs_a_gain() -> None:
    assert choose_fastest([0, 1, 3], [[1.0, 1.0, 1.0], [0.9, 1.0, 1.0], [0.8, 1.0, 1.1]]) == 3
    assert choose_fastest([0, 1], [[1.0, 1.0, 1.0], [0.99, 0.99, 0.99]]) == 0
    assert choose_fastest([0, 1], [[1.0, 1.0, 1.0], [0.9, 1.2, 1.2]]) == 0
    assert choose_fastest([2], [[1.0]]) == 2
