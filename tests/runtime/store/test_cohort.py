"""Cohorts: numbers that everybody computes alike, and installations that wait for their turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecompile.runtime import __main__ as program
from edgecompile.runtime.store import cohort as module
from edgecompile.runtime.store import unpack
from edgecompile.runtime.store.cohort import COHORTS, Share, cohort
from tests.runtime.store.device import MODEL, Device, pack

#: By sha256sum of sensor-7minilm12, and so on.
KNOWN = {
    ("sensor-7", "minilm", 12): 2715,
    ("sensor-7", "minilm", 13): 6482,
    ("gerät", "tiny", 0): 9162,
}


@pytest.mark.parametrize("key", KNOWN)
def test_the_numbers_are_those_of_sha256sum(key: tuple[str, str, int]) -> None:
    assert cohort(*key) == KNOWN[key]


def test_devices_spread_evenly_and_anew_for_each_release() -> None:
    numbers = [cohort(f"device-{i}", MODEL, 1) for i in range(10_000)]
    assert min(numbers) >= 0 and max(numbers) < COHORTS
    tenth = Share(10, "")
    first = {i for i, number in enumerate(numbers) if tenth.takes(number)}
    assert 900 < len(first) < 1100  # a standard deviation is 30
    second = {i for i in range(10_000) if tenth.takes(cohort(f"device-{i}", MODEL, 2))}
    assert 50 < len(first & second) < 150
    assert not any(map(Share(0, "").takes, numbers)) and all(map(Share(100, "").takes, numbers))


def test_a_percentage_takes_its_hundredths() -> None:
    for count in range(COHORTS + 1):
        share = Share(count / 100, "")
        assert share.takes(count - 1) and not share.takes(count), count


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_device_that_is_not_in_the_cohort_declines(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(tmp_path)
    path = str(device.release(7))
    if form == "archive":
        path = str(pack(Path(path), tmp_path / "7.tar"))
    number = cohort("one", MODEL, 7)
    own = ("--store", str(device.root), "--trust", str(device.signed.trust), "--device", "one")

    def install(percent: float, *more: str) -> tuple[int, str]:
        code = program.main(["install", path, "--percent", str(percent), *own, *more])
        return code, capsys.readouterr().out

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "_write_listed", lambda *all: pytest.fail("files are written"))
        code, text = install(number / 100)
    assert code == 0 and not list(device.root.rglob("*.fp32")) and not device.store.read().current
    assert f"isn't installed: the cohort {number} of this device comes later" in text
    report = json.loads(install(number / 100, "--json")[1])
    assert (report["installed"], report["cohort"], report["model"]) == (False, number, MODEL)
    code, text = install((number + 1) / 100, "--json")
    assert (code, json.loads(text)["installed"]) == (0, True)
    code, text = install(0, "--json")  # it runs already
    assert (code, json.loads(text)["installed"], json.loads(text)["starts_left"]) == (0, True, 3)
    assert install(number / 100, "--device", "\udcff")[0] == 24
    for percent in (-1, 101, float("nan")):
        assert install(percent)[0] == 24


def test_a_bundle_without_a_release_has_no_cohort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Device(tmp_path)
    path = device.release(7)
    (path / "release.json").unlink()
    device.signed.sign()
    arguments = ["install", str(path), "--store", str(device.root), "--percent", "50"]
    trust = ["--trust", str(device.signed.trust)]
    assert program.main([*arguments, *trust, "--device", "one"]) == 24
    assert "has no release to choose devices by" in capsys.readouterr().err
    monkeypatch.setattr(module, "_MACHINE_ID", str(tmp_path / "none"))
    assert program.main([*arguments, *trust]) == 24
    assert "this device has no id" in capsys.readouterr().err


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "machine-id").write_text("sensor-7\n")
    monkeypatch.setattr(module, "_MACHINE_ID", str(tmp_path / "machine-id"))
    for more in ((), ("--device", "sensor-7")):
        assert program.main(["cohort", "minilm", "--release", "12", *more]) == 0
        assert capsys.readouterr().out == f"{KNOWN['sensor-7', 'minilm', 12]}\n"
    assert program.main(["cohort", "minilm", "--release", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        **{"device": "sensor-7", "model": "minilm", "release": 12},
        "cohort": KNOWN["sensor-7", "minilm", 12],
    }
    for words in (["\udcff"], ["minilm", "--device", "\udcff"]):
        assert program.main(["cohort", "--release", "12", *words]) == 24
    with pytest.raises(SystemExit):
        program.main(["cohort", "minilm"])
