"""When a build has nothing to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgecompile.pipeline.stamp as build_stamp
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.samples import SampleTexts
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.pipeline.stamp import STAMP_NAME, build_key, find_built, write_stamp
from edgecompile.planning.request import PlanRequest
from edgecompile.targets.profile import load_target

# A build whose key is known, in a process that shows what was imported.
COMMAND = """
import sys
from pathlib import Path
from edgecompile.cli import main
from edgecompile.pipeline import build
build.build_key = lambda request, profile: "key"
sys.argv = ["edgecompile", *sys.argv[1:]]
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


LENGTHS = LengthDistribution.from_samples([1, 2])
DOCUMENT = {
    "size_bytes": 5,
    "sha256": "0123",
    "plan": BucketPlan("length", (Bucket("exact", (("length", AxisRange(1, 9, 3)),)),)).to_json(),
    "seconds": {},
    "notes": [],
}


def result_of(bundle: Path) -> BuildResult:
    """The result of a build that made the bundle."""
    result = BuildResult.from_earlier(DOCUMENT, bundle)
    assert result.unchanged
    return result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "inner" / "weights").write_bytes(b"123")
    return folder


def key_of(model: Path, target: str = "cpu-x86-64", **changes: object) -> str:
    plan = PlanRequest(**{"lengths": LENGTHS, **changes})  # type: ignore[arg-type]
    key = build_key(BuildRequest(str(model), target, plan), load_target(target))
    assert key is not None
    return key


def test_the_key_holds_what_shapes_a_bundle(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key_of(model)
    assert key_of(model) == first
    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(model, moved)
    assert key_of(moved) == first, "the content counts, not the place"
    renamed = tmp_path / "renamed"
    shutil.copytree(model, renamed)
    texts = tmp_path / "texts"
    texts.write_text("one")
    samples = SampleTexts(texts, texts)
    with_texts = key_of(model, texts=samples)
    texts.write_text("two")
    others = [
        key_of(renamed),  # the bundle would be called otherwise
        with_texts,
        key_of(model, texts=samples),
        key_of(model, target="cpu-any"),
        key_of(model, seed=1),
        key_of(model, lengths=LengthDistribution.from_samples([3])),
    ]
    (model / "inner" / "weights").write_bytes(b"124")
    others.append(key_of(model))
    (model / "inner" / "weights").rename(model / "weights")
    others.append(key_of(model))
    monkeypatch.setattr(build_stamp, "installation_id", lambda: "another version")
    others.append(key_of(model))
    monkeypatch.setattr(build_stamp, "usable_cpus", lambda: 4096)
    others.append(key_of(model))
    monkeypatch.setattr(build_stamp, "cpu_identity", lambda: "another CPU")
    others.append(key_of(model))
    assert len({first, *others}) == 1 + len(others)


def test_what_a_factory_does_is_unknown(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text("def make(): ...")
    for spec in (f"{source}:make", "package.module:make", str(source), str(tmp_path / "absent")):
        assert (
            build_key(
                BuildRequest(spec, "cpu-x86-64", PlanRequest(LENGTHS)), load_target("cpu-x86-64")
            )
            is None
        )
    saved = tmp_path / "a.pt2"
    saved.write_bytes(b"1")
    assert key_of(saved)


def test_only_the_very_bundle_counts(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "it.ecb"
    shutil.copytree(tiny_bundle, bundle)
    write_stamp(tmp_path, "key", result_of(bundle))
    earlier = find_built(tmp_path, "key", bundle)
    assert earlier is not None and earlier.unchanged and earlier.size_bytes == 5
    assert earlier.to_json() == {**DOCUMENT, "unchanged": True}
    assert find_built(tmp_path, "other key", bundle) is None
    assert find_built(tmp_path, "key", tmp_path / "absent.ecb") is None
    assert find_built(tmp_path / "absent", "key", bundle) is None
    weights = next(bundle.glob("weights.*"))
    content = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert find_built(tmp_path, "key", bundle) is None, "one bit of a file is another"
    weights.write_bytes(content)
    assert find_built(tmp_path, "key", bundle) is not None
    for broken in ("", "[]", '{"key": "key"}'):
        (tmp_path / STAMP_NAME).write_text(broken)
        assert find_built(tmp_path, "key", bundle) is None


def test_a_build_with_nothing_to_do_imports_no_torch(
    tiny_bundle: Path, tiny_model: Path, tmp_path: Path
) -> None:
    write_stamp(tmp_path, "key", result_of(tiny_bundle))
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("3\n9\n")
    arguments = ["build", str(tiny_model), "--lengths", str(lengths), "--json"]
    arguments += ["--work-dir", str(tmp_path), "--output", str(tiny_bundle)]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {**DOCUMENT, "unchanged": True}
    assert "nothing has changed" in done.stderr
    assert done.stderr.strip().endswith("False"), "torch was imported"
