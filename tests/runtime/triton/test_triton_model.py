"""open_bundle with a variant of Triton kernels: run in every mode, refused, replaced, broken.

The program is written by hand and CUDA's driver is a fake; the runtime library and the loader are real.
tests/native/c_runtime/gpu holds what the C runtime has to do likewise: its tests run both loaders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import (
    EdgecompileError,
    GpuError,
    InputError,
    OutsideBucketsError,
)
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.measure.bench import run_bench
from edgecompile.runtime.measure.calibrate import calibrate_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import (
    DEVICE,
    TritonBundle,
    check_by_threads,
    make_inputs,
)
from tests.forks import in_child


def check(model: Any, length: int, batch: int = 1, seed: int = 0) -> None:
    inputs = make_inputs(length, batch, seed)
    got = model.run(inputs)
    for name, want in embed(inputs).items():
        np.testing.assert_array_equal(got[name], want, err_msg=f"{name} at {length}")


def test_runs_allocate_nothing(fake_driver: FakeCudart, triton_bundle: TritonBundle) -> None:
    with open_bundle(triton_bundle.write(), mode="default") as model:
        model.warm_up()
        calls = ("cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadDataEx", "cuModuleGetFunction")
        before = [fake_driver.calls(name) for name in calls]
        launched = fake_driver.library.fake_cuda_launches
        launched()
        for length in (3, 64, 32, 1, 40):
            check(model, length)
        assert [fake_driver.calls(name) for name in calls] == before
        assert launched() == 5 * 4
        # Scratch is one block: the program's early request, and the two intermediates after it.
        assert model.info["scratch_bytes"] == max(4096 * 4, 2 * 2 * 64 * 4)


_COUNT = """
import sys
from edgecompile.runtime import open_bundle
from tests.fake_gpu.build import FakeCudart
from tests.runtime.triton.test_triton_model import check
with open_bundle(sys.argv[1], mode="default") as model:
    check(model, 3)
fake = FakeCudart(sys.argv[2])
print(fake.calls("cuLaunchKernel"), fake.calls("cuLaunchKernelEx"))
"""


@pytest.mark.parametrize(
    ("flags", "driver", "overlaps"), [(1, 12030, True), (1, 12020, False), (0, 12080, False)]
)
def test_kernels_that_wait_may_begin_early(
    fake_driver_path: Path, tmp_path: Path, flags: int, driver: int, overlaps: bool
) -> None:
    """In a process of its own: what the driver has is asked once."""
    path = TritonBundle(tmp_path / "t.ecb", f"TOY_FLAGS={flags}").write()
    device = f"name=G;cc=9.0;driver={driver}"
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, path, str(fake_driver_path)],
        env={
            **os.environ,
            "EDGECOMPILE_CUDA_DRIVER": str(fake_driver_path),
            "FAKE_CUDART_DEVICE": device,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    launched, overlapping = map(int, done.stdout.split())
    assert launched > 0 and overlapping == launched * overlaps


@pytest.mark.parametrize("fault", [0, 3, 4])
def test_no_tensor_is_lost(fake_driver: FakeCudart, tmp_path: Path, fault: int) -> None:
    """Neither by runs nor by programs that fail in the middle of one."""
    path = TritonBundle(tmp_path / "t.ecb", f"TOY_FAULT={fault}").write()
    with open_bundle(path, mode="default", warmup=False) as model:
        live = model.gpu.library.native.ec_live_tensors
        for length in (3, 50, 3):
            try:
                model.run(make_inputs(length))
            except GpuError:
                assert fault == 4
        assert live() <= 2 * 2  # the constant's, of two programs: the container's and ours
    assert live() == 0


def test_threads_share_a_model(fake_driver: FakeCudart, triton_bundle: TritonBundle) -> None:
    with open_bundle(triton_bundle.write()) as model:
        check_by_threads(lambda length, seed: check(model, length, seed=seed))


def test_selftest_bench_and_calibration(
    fake_driver: FakeCudart, triton_bundle: TritonBundle, tmp_path: Path
) -> None:
    path = triton_bundle.write()
    for mode in ("planned", "default", "reduce-overhead"):
        report = run_selftest(path, mode=mode)
        assert report["ok"] and report["variant"] == "cuda-sm90"
        assert report["tolerance"] == {"atol": 0.0, "rtol": 0.0}
    bench = run_bench(path, lengths={5: 2, 40: 1}, seconds=0.05, cold_runs=1)
    assert bench["variant"] == "cuda-sm90" and bench["mode"] == "planned"
    costs = calibrate_bundle(path, str(tmp_path / "c.json"), seconds=0.05, cold_runs=1)
    assert costs["variant"] == "cuda-sm90"


def test_a_wrong_result_fails_the_selftest(
    fake_driver: FakeCudart, triton_bundle: TritonBundle
) -> None:
    files = triton_bundle.bundle.files
    weights = files["weights.fp32"]
    one = np.float32(1).tobytes()
    files["weights.fp32"] = weights.replace(one, np.float32(2).tobytes(), 1)
    report = run_selftest(triton_bundle.write())
    assert not report["ok"] and report["failed"] == 2


# What the program may do that the loader has to see.


@pytest.mark.parametrize("fault", [3])
def test_an_output_within_other_memory_is_copied(
    fake_driver: FakeCudart, tmp_path: Path, fault: int
) -> None:
    path = TritonBundle(tmp_path / "t.ecb", f"TOY_FAULT={fault}").write()
    for mode in ("default", "reduce-overhead"):
        with open_bundle(path, mode=mode) as model:
            check(model, 7)
            check(model, 50, 2)


def test_inputs_are_checked_first(fake_driver: FakeCudart, triton_bundle: TritonBundle) -> None:
    with open_bundle(triton_bundle.write(), warmup=False) as model:
        inputs = make_inputs(7)
        inputs["input_ids"][0, 3] = 100
        with pytest.raises(InputError, match="input_ids"):
            model.run(inputs)
        with pytest.raises(OutsideBucketsError):
            model.run(make_inputs(65))
        with pytest.raises(EdgecompileError):
            model.session()
        assert fake_driver.calls("cuLaunchKernel") == 0


def test_a_fork_is_refused(fake_driver: FakeCudart, triton_bundle: TritonBundle) -> None:
    with open_bundle(triton_bundle.write()) as model:
        check(model, 7)
        text = in_child(lambda: model.run(make_inputs(7)))
        assert text.startswith("GpuError") and "was forked after CUDA had been loaded" in text
        check(model, 7)


# Which variant is taken.


def test_it_serves_while_an_engine_is_unfinished(
    fake_cudart: FakeCudart, fake_driver: FakeCudart, triton_bundle: TritonBundle
) -> None:
    """A TensorRT variant ranks higher, and isn't built or can't be here."""
    bundle = triton_bundle.bundle
    bundle.add_tensorrt()
    engine = bundle.document["variants"][-1]
    engine.update(arch=triton_bundle.variant["arch"], glibc=None, rank=90, requires=[])
    path = triton_bundle.write()
    with open_bundle(path) as model:
        check(model, 7)
        assert model.info["variant"] == "cuda-sm90"
        assert "isn't ready" in model.info["refused_variants"][engine["name"]][0]
    with pytest.raises(EdgecompileError):
        open_bundle(path, variant=engine["name"])


_RUN = """
import sys
sys.dont_write_bytecode = True  # of the runtime, which lies elsewhere
from edgecompile.runtime import open_bundle
from tests.fake_gpu.triton_bundle import make_inputs
with open_bundle(sys.argv[1]) as model:
    for length in (3, 40):
        for _ in range(12):
            model.run(make_inputs(length))
    assert model.info["variant"] == "cuda-sm90" and model.info["graphs"] == 2
"""


def test_opening_and_running_writes_no_file(fake_driver_path: Path, tmp_path: Path) -> None:
    TritonBundle(tmp_path / "t.ecb").write()

    def look() -> dict[str, tuple[int, int]]:
        paths = [tmp_path, *tmp_path.rglob("*")]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}

    names = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "EDGECOMPILE_CACHE")
    for name in names:
        (tmp_path / name).mkdir()
    before = look()
    subprocess.run(
        [sys.executable, "-c", _RUN, "t.ecb"],
        cwd=tmp_path,
        env={
            **os.environ,
            **{name: str(tmp_path / name) for name in names},
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
            "EDGECOMPILE_CUDA_DRIVER": str(fake_driver_path),
            "FAKE_CUDART_DEVICE": DEVICE,
        },
        check=True,
    )
    assert look() == before
