"""``--backend torch``: built, verified and run by torch; refused by name where that can't be."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from edgecompile.backends.torch.calls import list_calls
from edgecompile.cli import cli
from edgecompile.errors import (
    CompileError,
    LoaderNeededError,
    NativeError,
    UsageError,
)
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime.cpu import loaders
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import TORCH, Manifest
from edgecompile.runtime.model.model import Model
from edgecompile.runtime.model.open_bundle import open_bundle
from edgecompile.targets.profile import load_target
from tests.conftest import FACTORIES, one_at_a_time
from tests.factories.tiny_models import masked_mlp
from tests.factories.torch_models import WIDTH, Spectral

VERSION = torch.__version__.partition("+")[0]


@pytest.fixture(scope="session")
def spectral(shared_folder: Path) -> Path:
    """A model that the native runtime lacks kernels for, in one dynamic program."""
    output = shared_folder / "spectral.ecb"
    lengths = LengthDistribution.from_samples([2, 5, 7, 9, 9, 20])
    with one_at_a_time(shared_folder / "spectral.lock"):
        if not output.exists():
            result = build(
                BuildRequest(
                    model=f"{FACTORIES}/torch_models.py:spectral",
                    target="cpu-x86-64-v3",
                    plan=PlanRequest(
                        lengths, buckets=1, mode="exact", max_length=24, backend=TORCH
                    ),
                    output=output,
                )
            )
            assert result.verify.ok and result.verify.torch_wanted and result.verify.torch_loaded
    return output


@pytest.fixture(scope="session")
def plain(shared_folder: Path) -> Path:
    """A model that lacks nothing, by the command line."""
    output = shared_folder / "plain-torch.ecb"
    with one_at_a_time(shared_folder / "plain-torch.lock"):
        if not output.exists():
            lengths = shared_folder / "plain-torch.txt"
            lengths.write_text("3\n4\n9\n")
            model = f"{FACTORIES}/tiny_models.py:masked_mlp"
            options = ["--buckets", "1", "--mode", "exact", "--target", "cpu-x86-64-v3"]
            command = ["build", model, "--lengths", str(lengths), "--backend", "torch", *options]
            done = CliRunner().invoke(cli, [*command, "--output", str(output)])
            assert done.exit_code == 0, done.output
    return output


@pytest.fixture
def torch_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's loader registered in this process, for one test."""
    from edgecompile.torch_runtime.loader import TorchLoader

    monkeypatch.setattr(loaders, "_loaders", {TORCH: TorchLoader()})


@pytest.fixture
def model(spectral: Path, torch_loader: None) -> Iterator[Model]:
    with open_bundle(spectral, threads=1) as opened:
        yield opened


def manifest_of(bundle: Path) -> Manifest:
    return parse_manifest((bundle / "manifest.json").read_bytes())


def run_module(
    bundle: Path,
    *arguments: str,
    module: str = "edgecompile.torch_runtime",
    first: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The bundle's own runtime in a fresh process; ``first`` comes before all else on its path."""
    path = [str(bundle / "runtime")] if first is None else [str(first), str(bundle / "runtime")]
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=bundle.parent
    )


def draw(length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(length).standard_normal((1, length, WIDTH)).astype(np.float32)


def eager(x: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    with torch.no_grad():
        return {k: v.numpy() for k, v in Spectral()(torch.from_numpy(x)).items()}


def test_the_bundle_has_the_same_form(spectral: Path) -> None:
    manifest = manifest_of(spectral)
    (variant,) = manifest.variants
    assert (variant.backend, variant.torch, variant.runtime) == (TORCH, VERSION, "")
    assert list(manifest.weights) == ["fp32"] and len(manifest.golden) == 3
    code = [name for name in manifest.files if name.startswith("code/")]
    assert sorted(code) == ["code/x86-64-v3/bucket-0.so", "code/x86-64/libecprobe.so"]
    assert "runtime/edgecompile/torch_runtime/loader.py" in manifest.files
    audit = json.loads((spectral / "reports/audit.json").read_text())
    (program,) = [item for item in audit if item["library"] == "bucket-0.so"]
    assert "libtorch_cpu.so" in program["needed"] and not program["findings"]


def test_the_model_needs_what_the_native_runtime_lacks(spectral: Path) -> None:
    """If this fails, kernels were added: the model needs others that stay missing."""
    program = (spectral / "code/x86-64-v3/bucket-0.so").read_bytes()
    for name in (b"aten::_linalg_eigh", b"aten::linalg_qr"):
        assert name in program
    native = Path(loaders.__file__).parent / "native"
    sources = "".join(path.read_text() for path in native.glob("*.cpp"))
    assert "proxy_executor_call_function" not in sources


def test_selftest_in_a_fresh_process(spectral: Path) -> None:
    done = run_module(spectral, "selftest", str(spectral), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and len(report["cases"]) == 3 and "torch" in report["imported"]


def test_the_bundle_starts_by_itself_and_on_the_host(spectral: Path) -> None:
    bench = ("bench", "--seconds", "0", "--cold-runs", "1", "--json")
    for command in (
        [spectral, "selftest", "--json"],
        [spectral, *bench],
        ["-m", "edgecompile", "selftest", spectral, "--json"],
    ):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["variant"] == "x86-64-v3"


@pytest.mark.slow
def test_bench_starts_processes_that_have_torch(plain: Path) -> None:
    done = run_module(plain, "bench", str(plain), "--seconds", "0", "--cold-runs", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == TORCH and report["cold_start"]["runs"] == 1


def test_without_the_loader_the_hint_says_what_to_import(spectral: Path) -> None:
    done = run_module(spectral, "selftest", str(spectral), module="edgecompile.runtime")
    assert done.returncode == LoaderNeededError.exit_code == 67
    assert "needs the backend torch, whose loader isn't imported" in done.stderr
    assert "hint: import edgecompile.torch_runtime before open_bundle" in done.stderr
    info = run_module(spectral, "info", str(spectral), "--json", module="edgecompile.runtime")
    assert info.returncode == 0 and json.loads(info.stdout)["chosen"] is None


@pytest.mark.parametrize(
    "source, code, words",
    [
        ("raise ImportError('no such luck')", 66, "can't be imported: no such luck"),
        ("__version__ = '2.12.1+cpu'", 65, f"needs torch {VERSION}, this is 2.12.1+cpu"),
    ],
    ids=["absent", "other version"],
)
def test_a_host_without_this_torch(
    spectral: Path, tmp_path: Path, source: str, code: int, words: str
) -> None:
    (tmp_path / "torch.py").write_text(f"# A fake of torch.\n{source}\n")
    done = run_module(spectral, "selftest", str(spectral), first=tmp_path)
    assert done.returncode == code
    assert words in done.stderr and f"hint: install torch=={VERSION}" in done.stderr
    done = run_module(spectral, "info", str(spectral), first=tmp_path)
    assert done.returncode == 0 and words in done.stdout


def test_it_agrees_with_eager_on_every_length(model: Model) -> None:
    info = model.info
    assert (info["backend"], info["torch"], info["threads"]) == (TORCH, torch.__version__, 1)
    for length in (1, 2, 3, 7, 16, 23, 24):
        x = draw(length)
        got, want = model.run({"x": x}), eager(x)
        assert got.keys() == want.keys()
        for name, array in want.items():
            assert got[name].dtype == array.dtype, name
            np.testing.assert_allclose(got[name], array, atol=2e-4, err_msg=f"{name}, {length}")


def test_runs_from_several_threads_and_into_arrays(model: Model) -> None:
    inputs = [draw(length) for length in range(2, 10)]
    wanted = [model.run({"x": x}) for x in inputs]

    def again(number: int) -> bool:
        index = number % len(inputs)
        out = {name: np.empty_like(array) for name, array in wanted[index].items()}
        model.run({"x": inputs[index]}, out=out)
        return all(np.array_equal(out[name], wanted[index][name]) for name in out)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(again, range(120)))


def test_an_operator_that_fails_is_named(model: Model) -> None:
    with pytest.raises(NativeError, match=r"aten::_linalg_check_errors: .*not positive-definite"):
        model.run({"x": np.full((1, 4, WIDTH), np.nan, np.float32)})
    assert np.isfinite(model.run({"x": draw(4)})["spectrum"]).all()


def test_a_model_that_lacks_nothing(plain: Path, torch_loader: None) -> None:
    assert b"aten::" not in (plain / "code/x86-64-v3/bucket-0.so").read_bytes()
    net = masked_mlp()["module"]
    x = np.random.default_rng(0).standard_normal((1, 9, 8)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1, 0, 0, 0, 0]], np.int64)
    with open_bundle(plain) as opened:
        (got,) = opened.run({"x": x, "attention_mask": mask}).values()
    with torch.no_grad():
        want = net(torch.from_numpy(x), torch.from_numpy(mask)).numpy()
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_changed_program_is_never_loaded(spectral: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ecb"
    shutil.copytree(spectral, copy)
    program = copy / "code/x86-64-v3/bucket-0.so"
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(data)
    done = run_module(copy, "selftest", str(copy), "--verify", "fast")
    assert done.returncode == 22 and "[file-hash]" in done.stderr


def test_what_can_t_be_handed_over_is_listed() -> None:
    node = {
        "target": "mine::op",
        "inputs": [
            {"name": "a", "arg": {"as_tensor": {"name": "buf0"}}, "kind": 1},
            {"name": "dtype", "arg": {"as_scalar_type": 7}, "kind": 2},
        ],
        "outputs": [{"as_tensors": [{"name": "buf1"}, {"name": "buf2"}]}],
    }
    (call,) = json.loads(list_calls(json.dumps({"nodes": [{"name": "buf1", "node": node}]})))
    assert call["arguments"] == [
        {"name": "a", "keyword": False, "kind": "tensor"},
        {"name": "dtype", "keyword": True, "kind": "torch", "value": "float32"},
    ]
    assert call["returns"] == [{"kind": "tensors", "count": 2}]
    node["inputs"] = [{"name": "g", "arg": {"as_graph": {}}, "kind": 1}]
    node["outputs"] = [{"as_complex": {}}]
    with pytest.raises(CompileError, match=r"mine::op: g is graph; mine::op: a result is complex"):
        list_calls(json.dumps({"nodes": [{"name": "buf1", "node": node}]}))
    assert list_calls("") == "[]"


def test_an_operator_that_isn_t_registered_is_named(torch_loader: None) -> None:
    from edgecompile.torch_runtime.calls import read_operators

    calls = [{"operator": f"{name}::op", "arguments": [], "returns": []} for name in ("b", "a")]
    with pytest.raises(NativeError, match="no operator a::op, b::op"):
        read_operators(json.dumps(calls).encode(), "program")
    with pytest.raises(NativeError, match="can't be read"):
        read_operators(b'[{"operator": "aten::relu"}]', "program")


def test_a_program_that_can_t_be_opened_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgecompile.torch_runtime import programs

    closed = []

    class Container:
        """Stands for a loaded program's container."""

        n_inputs = n_outputs = 0

        def __init__(self, *arguments: object) -> None:
            pass

        def close(self) -> None:
            closed.append(self)

        def free(self, handles: object) -> None:
            pass

    monkeypatch.setattr(programs, "Container", Container)
    weights: Any = None
    with pytest.raises(NativeError, match="has no ec_torch_calls"):
        programs.TorchProgram(ctypes.CDLL(None), "program", weights, 1)
    assert len(closed) == 1


@pytest.mark.parametrize(
    "backend, target, precision, words",
    [
        ("jax", "cpu-x86-64", "fp32", "`backend` is 'jax'"),
        (
            "torch",
            "jetson-orin-nano",
            "fp16",
            "jetson-orin-nano does not support (--|`)backend`? torch",
        ),
        ("torch", "cpu-x86-64", "int8", "does not support (--|`)precision`? int8"),
    ],
)
def test_what_torch_doesn_t_go_with(
    backend: str, target: str, precision: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        PlanRequest(None, precision=precision, backend=backend).check_target(load_target(target))
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("3\n")
    command = ["build", "x.py:y", "--lengths", str(lengths), "--backend", backend]
    done = CliRunner().invoke(cli, [*command, "--target", target, "--precision", precision])
    assert done.exit_code == 2, done.output
