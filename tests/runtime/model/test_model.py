"""model: a real bundle opened, run, refused, shared among threads and closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.base.errors import (
    InputError,
    ModelClosedError,
    OutsideBucketsError,
)
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.format.golden.cases import read_case
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.manifest.schema import Manifest

Arrays = Any


@pytest.fixture(scope="module")
def model(native_bundle: str) -> Any:
    """The real bundle, open for all tests of this file that leave it open."""
    with open_bundle(native_bundle) as opened:
        yield opened


def golden(model: Model, path: str) -> list[tuple[int, Arrays, Arrays]]:
    cases = []
    for item in model.manifest.golden:
        fd = os.open(os.path.join(path, item.file), os.O_RDONLY)
        case = read_case(fd, item.file, model.manifest)
        os.close(fd)
        cases.append((item.bucket, case.inputs, case.outputs))
    return cases


def assert_agree(manifest: Manifest, got: Arrays, want: Arrays) -> None:
    assert list(got) == [item.name for item in manifest.outputs]
    for name in want:
        agreement = compare_arrays(got[name], want[name], manifest.tolerance)
        assert agreement.ok, f"{name} {agreement.reason}"


def edges(manifest: Manifest) -> list[dict[str, int]]:
    """Sizes at both ends of every bucket."""
    return [
        {axis: getattr(extent, end) for axis, extent in bucket.axes.items()}
        for bucket in manifest.buckets
        for end in ("lo", "hi")
    ]


def test_golden_vectors(model: Model, native_bundle: str) -> None:
    cases = golden(model, native_bundle)
    assert cases
    for bucket, inputs, want in cases:
        assert_agree(model.manifest, model.run_bucket(bucket, inputs), want)
        assert_agree(model.manifest, model.run(inputs), want)


def test_shapes_at_the_edges_of_every_bucket(model: Model) -> None:
    for seed, sizes in enumerate(edges(model.manifest)):
        outputs = model.run(make_inputs(model.manifest, sizes, seed))
        for spec in model.manifest.outputs:
            wanted = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape)
            array = outputs[spec.name]
            assert array.shape == wanted and array.dtype.name == spec.dtype
            assert array.flags.owndata and array.flags.writeable and array.flags.c_contiguous


def test_info(model: Model, native_bundle: str) -> None:
    info = model.info
    assert json.loads(json.dumps(info)) == info
    assert info["variant"] in [item.name for item in model.manifest.variants]
    assert info["loaded_buckets"] == list(range(len(model.manifest.buckets)))
    assert info["path"] == native_bundle and info["threads"] >= 1
    assert info["host"]["features"]


def test_refusals_leave_the_model_as_it_was(model: Model, native_bundle: str) -> None:
    _, inputs, want = golden(model, native_bundle)[0]
    first = model.manifest.inputs[0].name
    before = model.stats
    bad: list[Any] = [
        None,
        {},
        {name: array for name, array in inputs.items() if name != first},
        dict(inputs, extra=1),
        dict(inputs, **{first: inputs[first].astype(np.complex128)}),
        dict(inputs, **{first: inputs[first][None]}),
    ]
    for spec in model.manifest.inputs:
        if spec.bounds is not None:
            low, high = spec.bounds
            for value in (low - 1, high + 1):
                if abs(value) < 2**62:
                    changed = inputs[spec.name].copy()
                    changed.flat[-1] = value
                    bad.append(dict(inputs, **{spec.name: changed}))
    for item in bad:
        with pytest.raises(InputError):
            model.run(item)
    assert model.stats["refused"] == before["refused"] + len(bad)
    assert model.stats["runs"] == before["runs"]
    assert_agree(model.manifest, model.run(inputs), want)


def test_sizes_outside_every_bucket(model: Model) -> None:
    for axis, extent in model.manifest.axes.items():
        sizes = {name: item.lo for name, item in model.manifest.axes.items()}
        for size in (extent.lo - 1, extent.hi + 1):
            inputs = make_inputs(model.manifest, {**sizes, axis: size})
            with pytest.raises(OutsideBucketsError, match=axis):
                model.run(inputs)


def test_a_bucket_by_number(model: Model, native_bundle: str) -> None:
    _, inputs, _ = golden(model, native_bundle)[0]
    for bucket in (-1, len(model.manifest.buckets)):
        with pytest.raises(InputError, match="there is no bucket"):
            model.run_bucket(bucket, inputs)


def test_inputs_are_not_kept_or_changed(model: Model, native_bundle: str) -> None:
    _, inputs, want = golden(model, native_bundle)[0]
    copies = {name: array.copy() for name, array in inputs.items()}
    frozen = {name: array.copy() for name, array in inputs.items()}
    for array in frozen.values():
        array.flags.writeable = False
    outputs = model.run(frozen)
    for name in inputs:
        np.testing.assert_array_equal(frozen[name], copies[name])
    second = model.run(inputs)
    for array in second.values():
        array.fill(0)
    assert_agree(model.manifest, outputs, want)
    assert_agree(model.manifest, model.run(inputs), want)


def test_stats(native_bundle: str) -> None:
    with open_bundle(native_bundle) as model:
        assert model.stats["runs"] == 0, "warm-up isn't counted"
        axis = model.manifest.length_axis
        for bucket in model.manifest.buckets:
            model.run(make_inputs(model.manifest, {a: e.lo for a, e in bucket.axes.items()}))
        seen = model.stats
        assert seen["runs"] == len(model.manifest.buckets)
        if axis is not None:
            for bucket in model.manifest.buckets:
                assert seen["lengths"][str(bucket.axes[axis].lo)] >= 1


def test_refusals_for_their_sizes(native_bundle: str) -> None:
    with open_bundle(native_bundle, warmup=False) as model:
        manifest, axis = model.manifest, model.manifest.length_axis
        if axis is None:
            pytest.skip("the bundle has no length axis")
        sizes = {name: extent.lo for name, extent in manifest.axes.items()}
        long = make_inputs(manifest, {**sizes, axis: manifest.axes[axis].hi + 1})
        for _ in range(2):
            with pytest.raises(OutsideBucketsError):
                model.run(long)
        with pytest.raises(OutsideBucketsError):
            model.run_bucket(0, long)  # the caller's choice: no sign of what the plan lacks
        with pytest.raises(InputError):
            model.run({})
        seen = model.stats
        assert seen["outside"] == {str(manifest.axes[axis].hi + 1): 2}
        assert seen["refused"] == 4


def test_threads_get_their_own_results(model: Model) -> None:
    sizes = edges(model.manifest)
    inputs = [make_inputs(model.manifest, item, seed) for seed, item in enumerate(sizes)]
    wanted = [model.run(item) for item in inputs]
    problems: list[str] = []

    def work(offset: int) -> None:
        try:
            for round_ in range(3 * len(inputs)):
                index = (offset + round_) % len(inputs)
                got = model.run(inputs[index])
                for name, want in wanted[index].items():
                    agreement = compare_arrays(got[name], want, model.manifest.tolerance)
                    if not agreement.ok:
                        problems.append(f"{index} {name} {agreement.reason}")
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_close_waits_for_runs_and_refuses_later_ones(native_bundle: str) -> None:
    model = open_bundle(native_bundle)
    inputs = make_inputs(model.manifest, edges(model.manifest)[-1])
    want = model.run(inputs)
    results: list[Any] = []
    started = threading.Barrier(4)

    def work() -> None:
        started.wait()
        while True:
            try:
                results.append(model.run(inputs))
            except ModelClosedError:
                return
            except Exception as error:
                results.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    model.close()
    model.close()
    for thread in threads:
        thread.join()
    for result in results:
        assert_agree(model.manifest, result, want)
    with pytest.raises(ModelClosedError):
        model.run(inputs)
    assert model.stats["runs"] == len(results) + 1
    assert model.info["loaded_buckets"] == []


def test_opening_again_and_again_leaks_nothing(native_bundle: str) -> None:
    def cycle() -> tuple[int, int]:
        with open_bundle(native_bundle) as model:
            model.run(make_inputs(model.manifest, edges(model.manifest)[0]))
            runtime = model._runtime
        return len(os.listdir("/proc/self/fd")), runtime.live_tensors

    cycle()
    baseline = cycle()
    for _ in range(3):
        assert cycle() == baseline


def test_weights_are_mapped_once(native_bundle: str) -> None:
    with open_bundle(native_bundle) as one, open_bundle(native_bundle) as two:
        manifest = one.manifest
        place = os.path.realpath(os.path.join(native_bundle, manifest.weights[manifest.precision]))
        lines = Path("/proc/self/maps").read_text().splitlines()
        assert sum(line.endswith(place) for line in lines) == 1
        inputs = make_inputs(manifest, edges(manifest)[0])
        assert_agree(manifest, two.run(inputs), one.run(inputs))


def test_what_a_fresh_process_loads(native_bundle: str) -> None:
    program = (
        "import sys, edgecompile.runtime as r\n"
        "assert 'numpy' not in sys.modules, 'importing the package must stay cheap'\n"
        "m = r.open_bundle(sys.argv[1]); m.close()\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules} - set(sys.argv)))\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3]))
    done = subprocess.run(
        [sys.executable, "-c", program, native_bundle],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name in ("torch", "click", "rich", "safetensors", "onnx"):
        assert f"'{name}'" not in done.stdout


def test_a_run_may_have_threads_of_its_own(model: Model) -> None:
    """Its results are those of so many threads for all, to the bit, whatever runs beside it."""
    assert model.info["run_threads"] is True
    sizes = edges(model.manifest)[-1]
    inputs = make_inputs(model.manifest, sizes, 3)
    before = model.info["threads"]
    wanted = {}
    for count in (1, 2, 3):
        model._runtime.threads = count
        wanted[count] = model.run(inputs)
    model._runtime.threads = before
    problems = []

    def work(count: int) -> None:
        for _ in range(30):
            got = model.run(inputs, threads=count)
            if any(not np.array_equal(got[name], wanted[count][name]) for name in got):
                problems.append(count)

    workers = [threading.Thread(target=work, args=(count,)) for count in (1, 2, 3, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems and model.info["threads"] == before
    with pytest.raises(InputError, match="threads is 5000"):
        model.run(inputs, threads=5000)


def test_a_library_without_threads_of_runs_ignores_them(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a bundle that was built before there were such."""
    monkeypatch.setattr(model._runtime, "_lacks", {"ec_set_run_threads"})
    assert model.info["run_threads"] is False
    inputs = make_inputs(model.manifest, edges(model.manifest)[0], 3)
    wanted, got = model.run(inputs), model.run(inputs, threads=1)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])
