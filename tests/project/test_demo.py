"""scripts/demo: the parts that need no environment of their own."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from examples.demo import device as demo_device
from examples.demo import inputs as demo_inputs
from examples.demo import summary as demo_summary

DEMO = Path(__file__).resolve().parents[2] / "scripts" / "demo"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(DEMO), *arguments], cwd=cwd, capture_output=True, text=True)


def test_help_from_any_folder(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: scripts/demo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--frsh",), ("--threads",), ("--threads", "0")])
def test_wrong_usage_is_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


def test_docstrings_of_everything_documented() -> None:
    source = '"""M."""\nclass C:\n    """C\n\n    c."""\n    async def f(self):\n        "f"\n'
    source += "def g():\n    '''  '''\ndef h():\n    return 'no docstring'\n"
    read = demo_inputs.read_docstrings
    assert sorted(read(source)) == ["C c.", "M.", "f"]


def docstrings(out: Path) -> list[str]:
    demo_inputs.write_docstrings(out)
    lines = out.read_text(encoding="utf-8").split("\n")
    assert inspect.cleandoc(shlex.split.__doc__ or "").replace("\n", " ") in lines
    assert all(line.strip() == line for line in lines)
    return lines


def test_docstrings_of_some_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("inner", "site-packages"):
        (tmp_path / folder).mkdir()
    (tmp_path / "inner" / "shlex.py").symlink_to(shlex.__file__)
    (tmp_path / "surrogate.py").write_text('"\\ud800"')
    for name, content in (("bytes", b"\xff"), ("null", b"\0"), ("syntax", b"f(")):
        (tmp_path / f"{name}.py").write_bytes(content)
    (tmp_path / "site-packages" / "left.py").write_text('"Left out."')
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
    lines = docstrings(tmp_path / "out.txt")
    assert "?" in lines and "Left out." not in lines


@pytest.mark.exhaustive
def test_docstrings_of_the_standard_library(tmp_path: Path) -> None:
    assert len(docstrings(tmp_path / "out.txt")) > 3000


def test_similarities_on_the_device(tmp_path: Path) -> None:
    embeddings = np.array([[1.0, 0.0], [0.6, 0.8]], np.float32)
    lines = demo_device.format_similarity(["one", "three"], embeddings)
    assert [line.split()[-2:] for line in lines[1:]] == [["1.00", "0.60"], ["0.60", "1.00"]]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.slow
def test_summary_of_a_real_benchmark(tiny_bundle: Path, tiny_model: Path) -> None:
    pytest.importorskip("torch")
    from edgecompile.bench.bench import bench_bundle
    from edgecompile.bench.report import BenchSettings
    from edgecompile.runtime.commands.info import describe_bundle

    report = bench_bundle(
        tiny_bundle,
        BenchSettings(threads=1, rounds=1, runs=4, warmup_rounds=0, cold_runs=1),
        against=["eager"],
        model_spec=str(tiny_model),
        cache=tiny_bundle.parent / "bench-cache",
    )
    info = describe_bundle(str(tiny_bundle))
    lines = demo_summary.format_summary(report.to_json(), info)
    found = {line[:36].strip(): line[36:].split() for line in lines}
    assert len(found["milliseconds, p50"]) == len(found["cold start to first output, ms"]) == 3
    assert found["bundle, MB"][0] == f"{info['bytes'] / 1e6:.2f}"
    parts = [found[name][0] for name in ("weights", "Python of the runtime")]
    assert float(found["the device needs beside numpy, MB"][0]) > sum(map(float, parts))
