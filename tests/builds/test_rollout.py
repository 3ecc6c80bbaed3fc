"""The whole loop of a fleet: counted lengths, a new plan, a signed build, a registry, and a trial on a device."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime import __main__ as device
from edgecompile.runtime import follow
from edgecompile.runtime.base.errors import OutsideBucketsError
from edgecompile.runtime.call.inputs import make_inputs
from tests.cli.command import COSTS, run
from tests.image.registry import serving_registry
from tests.needs import need

pytestmark = pytest.mark.slow

MODEL = "tiny"
#: Lengths that the first bundle was planned for, and one that it refuses.
SHORT, LONG = 9, 40


def told(*arguments: Any, code: int = 0) -> Any:
    """What a command of the build host prints."""
    result = run(*map(str, arguments), "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


class Fleet:
    """A key, a device that trusts it, and its store."""

    def __init__(self, place: Path) -> None:
        self.place = place
        told("keygen", place / "ci")
        self.trust, self.root = place / "trust", place / "store"
        self.trust.mkdir(mode=0o755)
        shutil.copy(place / "ci.pem", self.trust)
        policy = {"policy_version": 1, "models": {MODEL: {"keys": ["ci"], "threshold": 1}}}
        (self.trust / "policy.json").write_text(json.dumps(policy))
        for path in self.trust.iterdir():
            path.chmod(0o644)

    def sign(self, bundle: Path, release: int) -> None:
        told("sign", bundle, "--key", self.place / "ci.key", "--release", release)

    def on_device(self, capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
        """What a command of the device prints."""
        capsys.readouterr()
        code = device.main([*map(str, arguments), "--store", str(self.root), "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert code == 0, answer
        return answer


def carry(bundle: Path, place: Path) -> str:
    """Brings a bundle through a registry; returns what to install."""
    copy = [need("skopeo", "skopeo"), "copy", "--quiet", "--src-tls-verify=false"]
    (place / "registry").mkdir()
    with serving_registry(place / "registry") as registry:
        name = f"{registry.host}/{MODEL}:2"
        layout = place / "pushed.oci"
        told("image", bundle, "--only-bundle", "-o", layout, "--push", name, "--plain-http")
        pulled = f"oci:{place / 'pulled.oci'}:2"
        subprocess.run([*copy, f"docker://{name}", pulled], check=True)
    return pulled


def test_from_counted_lengths_to_a_confirmed_release(
    tiny_bundle: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path)
    first = tmp_path / "first" / "tiny.ecb"
    shutil.copytree(tiny_bundle, first)
    fleet.sign(first, 1)
    fleet.on_device(capsys, "install", first, "--trust", fleet.trust)
    fleet.on_device(capsys, "start", MODEL)
    fleet.on_device(capsys, "confirm", MODEL)

    options = {"trust": fleet.trust, "threads": 1, "stats_file": tmp_path / "stats-{swap}.json"}
    with follow(fleet.root / MODEL, **options) as model:
        # Devices count.
        with model.use() as version:
            short, long = (
                {name: array.repeat(n, axis=1) for name, array in one.items()}
                for one in [make_inputs(version.manifest, {"batch": 1, "length": 1})]
                for n in (SHORT, LONG)
            )
        for _ in range(700):
            model.run(short)
        for _ in range(400):
            with pytest.raises(OutsideBucketsError):
                model.run(long)
        with model.use() as version:
            version.write_stats(tmp_path / "counted.json")

        # The build host decides, plans, builds and signs.
        judged = told("drift", first, tmp_path / "counted.json", code=46)
        assert judged["act"] and judged["traffic"]["refused_share"] == pytest.approx(4 / 11)
        (tmp_path / "costs.csv").write_text(COSTS)
        counted = ("--from-stats", tmp_path / "counted.json")
        planned = told("plan", *counted, "--cost-points", tmp_path / "costs.csv")
        assert planned["buckets"][-1]["hi"] == LONG
        second = tmp_path / "second" / "tiny.ecb"
        second.parent.mkdir()
        told("build", tiny_model, *counted, "--batch", "1:2", "--quick", "-o", second)
        fleet.sign(second, 2)

        # The device takes it on trial, and follows it without a restart.
        install = ("install", carry(second, tmp_path), "--trust", fleet.trust, "--device", "one")
        assert fleet.on_device(capsys, *install, "--percent", 0)["installed"] is False
        assert not model.refresh()
        assert fleet.on_device(capsys, *install, "--percent", 100)["installed"] is True
        fleet.on_device(capsys, "start", MODEL)
        assert model.refresh()
        with model.use() as version:
            assert version.release == 2
        for _ in range(1000):
            model.run(long)
        confirmed = fleet.on_device(capsys, "confirm", MODEL)
        assert (confirmed["current"], confirmed["starts_left"]) == (Path(model.path).name, None)

    files = [tmp_path / f"stats-{number}.json" for number in range(2)]
    judged = told("drift", second, *files, "--any-bundle", "--max-refused", 1, "--tolerance", 100)
    assert [
        (item["release"], item["calls"], item["refused_share"]) for item in judged["releases"]
    ] == [(1, 1100, pytest.approx(4 / 11)), (2, 1000, 0.0)]
