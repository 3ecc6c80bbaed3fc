"""gpu_programs: buffers, graphs, locks and failures, on fakes of CUDA and of an engine (no GPU)."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import GpuError, ModeError
from edgecompile.runtime.call.dispatch import Dispatcher
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.call.results import ResultMaker
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Extent, Manifest
from edgecompile.runtime.gpu.cuda import Cuda
from edgecompile.runtime.gpu.engines import DEFAULT, PLANNED, REDUCE_OVERHEAD
from edgecompile.runtime.gpu.programs import GpuPrograms, pad_everything
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import NumpyEngine, embed
from tests.forks import in_child
from tests.runtime.bundles import DummyBundle


class Rig:
    """Programs on fakes, and what Model.run does with them."""

    def __init__(self, fake: FakeCudart, manifest: Manifest, mode: str, **options: Any) -> None:
        self.fake = fake
        self.manifest = pad_everything(manifest, True) if mode == REDUCE_OVERHEAD else manifest
        self.engine = NumpyEngine(fake, manifest, pause=options.pop("pause", 0.0))
        self.programs = GpuPrograms(
            Cuda.load(), self.engine, self.manifest, [0, 1], mode, **options
        )
        self.dispatcher = Dispatcher(self.manifest)
        self.results = ResultMaker(self.manifest)

    def run(self, length: int, batch: int = 1, seed: int = 0, out: Any = None) -> Any:
        sizes = {"batch": batch, "length": length}
        inputs = make_inputs(self.manifest, sizes, seed)
        bucket = self.dispatcher.choose(sizes)
        arrays = self.dispatcher.pad(bucket, list(inputs.values()), sizes)
        return self.results.run(self.programs.get(bucket), arrays, sizes, out)

    def check(self, length: int, batch: int = 1, seed: int = 0, out: Any = None) -> None:
        got = self.run(length, batch, seed, out)
        want = embed(make_inputs(self.manifest, {"batch": batch, "length": length}, seed))
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)
            assert got[name].dtype == array.dtype


Make = Callable[..., Rig]


@pytest.fixture
def make(fake_cudart: FakeCudart, manifest: Manifest) -> Iterator[Make]:
    """make(mode, …) -> Rig; whatever isn't closed by the test is closed, and nothing may be left."""
    rigs: list[Rig] = []

    def build(mode: str = DEFAULT, **options: Any) -> Rig:
        rigs.append(Rig(fake_cudart, options.pop("manifest", manifest), mode, **options))
        return rigs[-1]

    yield build
    for rig in rigs:
        rig.programs.close()
        assert rig.engine.closed
    assert fake_cudart.live == 0
    assert fake_cudart.misuses == 0


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("mode", [PLANNED, DEFAULT, REDUCE_OVERHEAD])
def test_every_size_gives_what_the_model_gives(make: Make, mode: str, zero_copy: bool) -> None:
    rig = make(mode, zero_copy=zero_copy)
    for length in (1, 7, 8, 32, 33, 40, 64, 5):
        for batch in (1, 2):
            rig.check(length, batch, seed=length)
    copies = rig.fake.calls("cudaMemcpyAsync")
    assert (copies == 0) is zero_copy
    described = rig.programs.describe()
    assert described["zero_copy"] is zero_copy and described["mode"] == mode
    assert described["scratch_bytes"] == 2000 and described["graphs"] == (
        2 if mode == REDUCE_OVERHEAD else 0
    )


def test_results_may_lie_in_the_callers_arrays(make: Make) -> None:
    for mode in (DEFAULT, REDUCE_OVERHEAD):
        rig = make(mode)
        out = {
            "embedding": np.zeros((1, 4), np.float32),
            "states": np.zeros((1, 9, 4), np.float32)[..., ::2],
        }
        rig.check(9, out=out)
        assert out["states"].any()


def test_exact_buckets_run_at_their_own_sizes(make: Make) -> None:
    rig = make(DEFAULT)
    rig.check(7)
    context = rig.engine.opened[0]
    assert context.shapes["input_ids"] == (1, 7)
    before = context.reshapes
    rig.check(7, seed=1)
    assert context.reshapes == before  # the shape is only set where it changes
    rig.check(40)
    assert rig.engine.opened[1].shapes["input_ids"] == (1, 64)


def test_what_was_planned_replays_where_there_is_one_shape(make: Make, manifest: Manifest) -> None:
    one = {"batch": Extent(1, 1, 1)}
    buckets = [b._replace(axes={**b.axes, **one}) for b in manifest.buckets]
    rig = make(PLANNED, manifest=manifest._replace(buckets=tuple(buckets)))
    assert [b.mode for b in buckets] == ["exact", "pad"]
    for length in (7, 40, 8, 41):
        rig.check(length, seed=length)
    assert [rig.programs.get(i).graphs for i in (0, 1)] == [0, 1]
    assert rig.engine.opened[0].shapes["input_ids"] == (1, 8)
    assert rig.fake.calls("cudaGraphLaunch") == 2


def test_a_graph_is_captured_once_and_replayed(make: Make) -> None:
    rig = make(REDUCE_OVERHEAD)
    calls = rig.fake.calls
    rig.programs.get(0)
    assert rig.engine.runs == 1 and rig.programs.get(0).graphs == 1  # one plain run before
    for seed in range(3):
        rig.check(11, seed=seed)
    assert calls("cudaStreamBeginCapture") == calls("cudaGraphInstantiateWithFlags") == 1
    assert calls("cudaGraphLaunch") == 3 and rig.engine.runs == 4
    # Copies are part of the graph: queued for the plain run and for the recorded one.
    assert calls("cudaMemcpyAsync") == 4
    assert rig.engine.opened[0].shapes["input_ids"] == (2, 32)
    with pytest.raises(GpuError, match=r"bucket 0 .*the graph takes the shapes"):
        rig.programs.get(0).run([np.ones((1, 32), np.int64)] * 2)


def test_neighbours_are_copied_at_once(make: Make, manifest: Manifest) -> None:
    rig = make(DEFAULT)
    rig.check(32, 2)
    assert rig.fake.calls("cudaMemcpyAsync") == 2  # all inputs, all outputs
    wide = [
        x._replace(shape=(*x.shape, 3000)) if x.name == "states" else x for x in manifest.outputs
    ]
    rig = make(DEFAULT, manifest=manifest._replace(outputs=(wide[1], wide[0])))
    rig.engine.compute = lambda inputs: {
        "embedding": np.zeros((1, 4)),
        "states": np.zeros((1, inputs["input_ids"].shape[1], 2, 3000)),
    }
    before = rig.fake.calls("cudaMemcpyAsync")
    rig.run(2)  # states fill 48 kB of 1.5 MB, and embedding lies behind them
    assert rig.fake.calls("cudaMemcpyAsync") - before == 3


def test_threads_never_share_the_scratch_memory(make: Make) -> None:
    for mode in (DEFAULT, REDUCE_OVERHEAD):
        rig = make(mode, pause=0.002)
        failures: list[BaseException] = []

        def work(number: int, rig: Rig = rig, failures: list[BaseException] = failures) -> None:
            try:
                for step in range(6):
                    rig.check((5, 40, 30, 64)[(number + step) % 4], seed=10 * number + step)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert rig.programs.loaded == [0, 1]


def test_nobody_runs_into_a_capture(make: Make) -> None:
    rig = make(REDUCE_OVERHEAD)
    rig.check(40)
    rig.engine.enqueue_pause = 0.05
    failures: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                rig.check(40)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        rig.check(5)  # captured while the other bucket is run
    finally:
        done.set()
        thread.join()
    assert failures == []


def test_a_shape_that_was_refused_is_not_taken_for_set(make: Make) -> None:
    rig = make(DEFAULT)
    rig.check(7)
    context = rig.engine.opened[0]
    plain = context.reshape

    def refuse(shapes: Any) -> Any:
        plain(shapes)
        raise GpuError("refused")

    context.reshape = refuse  # type: ignore[method-assign]
    with pytest.raises(GpuError, match=r"bucket 0 .*: refused"):
        rig.run(9)
    context.reshape = plain  # type: ignore[method-assign]
    rig.check(7)


FAILURES = {
    "cudaStreamCreateWithFlags:1": "cudaErrorInvalidValue",
    "cudaMalloc:1": "2000 bytes of scratch memory: cudaMalloc failed: cudaErrorMemoryAllocation",
    "cudaMalloc:2": "bucket 0 .*: cudaMalloc failed: cudaErrorMemoryAllocation",
    "cudaHostAlloc:1": "bucket 0 .*: cudaHostAlloc failed",
    "cudaMemcpyAsync:1": "bucket 0 .*: cudaMemcpyAsync failed",
    "cudaMemcpyAsync:2": "bucket 0 .*: cudaMemcpyAsync failed",
    "cudaStreamSynchronize:1=1": "bucket 0 .*: cudaStreamSynchronize failed",
    "cudaMemcpyAsync:3": "can't be captured as a graph: cudaMemcpyAsync failed",
    "cudaStreamBeginCapture:1": "can't be captured as a graph: cudaStreamBeginCapture failed",
    "cudaStreamEndCapture:1": "can't be captured as a graph: cudaStreamEndCapture failed",
    "cudaGraphInstantiateWithFlags:1": "can't be captured as a graph: cudaGraphInst",
    "cudaGraphLaunch:1": "bucket 0 .*: cudaGraphLaunch failed",
}


@pytest.mark.parametrize("failure", list(FAILURES))
def test_a_failure_leaves_nothing_and_the_next_run_works(
    fake_cudart: FakeCudart, make: Make, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDART_FAIL", failure)
    with pytest.raises(GpuError, match=FAILURES[failure]) as caught:
        rig = make(REDUCE_OVERHEAD)
        rig.check(5)
    assert caught.value.number in (1, 2) and not caught.value.sticky
    if "capture" in FAILURES[failure]:
        assert caught.value.hint == 'open the bundle with mode="default"'
    if failure in ("cudaStreamCreateWithFlags:1", "cudaMalloc:1"):
        assert fake_cudart.live == 0
    else:
        rig.check(5)  # it fails only once
        rig.check(50)


def test_after_a_sticky_error_every_run_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, fake_cudart: FakeCudart
) -> None:
    rig = make(DEFAULT)
    rig.check(5)
    monkeypatch.setenv("FAKE_CUDART_FAIL", f"cudaStreamSynchronize:{2}=700")
    with pytest.raises(GpuError, match=r"cudaErrorIllegalAddress \(700\)") as caught:
        rig.run(5)
    assert caught.value.sticky and caught.value.message.startswith("bucket 0")
    calls = fake_cudart.calls("cudaMemcpyAsync")
    for length in (5, 40):
        with pytest.raises(GpuError, match="nothing runs on this GPU in this process any more"):
            rig.run(length)
    assert fake_cudart.calls("cudaMemcpyAsync") == calls
    rig.programs.close()  # fails at each call, and says nothing
    fake_cudart.reset()


def test_a_kernel_that_goes_astray_is_noticed(make: Make, fake_cudart: FakeCudart) -> None:
    rig = make(REDUCE_OVERHEAD)
    rig.check(5)
    rig.engine.opened[0].addresses["states"] += 1 << 20
    with pytest.raises(GpuError, match="cudaErrorIllegalAddress"):
        rig.run(5)
    assert [type(item) for item in rig.engine.faults] == [MemoryError]
    rig.programs.close()
    fake_cudart.reset()


def test_outputs_that_the_manifest_does_not_have(make: Make) -> None:
    rig = make(DEFAULT)
    good = rig.engine.manifest
    rig.engine.manifest = good._replace(
        outputs=(good.outputs[0]._replace(shape=("batch", 5)), good.outputs[1])
    )
    with pytest.raises(GpuError, match=r"bucket 0 .*embedding has shape \[2, 5\], the manifest.*4"):
        rig.programs.get(0)
    rig.engine.manifest = good._replace(
        outputs=(good.outputs[0]._replace(shape=(None, 4)), good.outputs[1])
    )
    with pytest.raises(GpuError, match="can't tell the shape of embedding before it runs"):
        rig.programs.get(0)
    assert all(context.closed for context in rig.engine.opened)
    rig.engine.manifest = good
    rig.check(5)


def test_after_a_fork_runs_are_refused_and_nothing_is_given_back(make: Make) -> None:
    rig = make(REDUCE_OVERHEAD)
    rig.check(5)

    def work() -> tuple[int, bool]:
        rig.programs.after_fork()
        with pytest.raises(GpuError, match="was forked after CUDA had been loaded"):
            rig.run(5)
        frees = rig.fake.calls("cudaFree")
        rig.programs.close()
        return rig.fake.calls("cudaFree") - frees, rig.engine.abandoned

    assert in_child(work) == "gave (0, True)"
    rig.check(6)  # the parent goes on


def test_closed_programs_refuse(make: Make) -> None:
    rig = make(DEFAULT)
    program = rig.programs.get(0)
    rig.programs.close()
    rig.programs.close()
    assert rig.programs.loaded == []
    with pytest.raises(GpuError, match=r"bucket 0 .* is closed"):
        program.run([np.ones((1, 3), np.int64)] * 2)


def test_what_cannot_be_padded(bundle: DummyBundle) -> None:
    whole = bundle.listed()

    def parse(**changes: Any) -> Manifest:
        return parse_manifest(json.dumps({**copy.deepcopy(whole), **changes}).encode())

    with pytest.raises(ModeError, match="didn't verify that padding changes nothing") as caught:
        pad_everything(parse(), False)
    assert caught.value.hint is not None and 'mode="default"' in caught.value.hint
    assert caught.value.exit_code == 17
    inputs = copy.deepcopy(whole["inputs"])
    inputs[1]["pad"] = None
    outputs = copy.deepcopy(whole["outputs"])
    outputs[0]["shape"] = [None, 4]
    exact = [{**item, "mode": "exact"} for item in whole["buckets"]]
    with pytest.raises(ModeError) as caught:
        pad_everything(parse(inputs=inputs, outputs=outputs, buckets=exact), True)
    assert "attention_mask has no pad value" in caught.value.message
    assert "shape of embedding doesn't follow" in caught.value.message
    # Buckets of one size each are never padded: they need none of this.
    axes = {"batch": {"lo": 1, "hi": 1}, "length": {"lo": 16, "hi": 32}}
    single = [
        {
            "mode": "exact",
            "axes": {
                "batch": {"lo": 1, "hi": 1, "hint": 1},
                "length": {"lo": size, "hi": size, "hint": size},
            },
        }
        for size in (16, 32)
    ]
    fixed = parse(inputs=inputs, outputs=outputs, buckets=single, axes=axes)
    assert pad_everything(fixed, False) == fixed


def test_padding_goes_along_every_axis(manifest: Manifest) -> None:
    padded = pad_everything(manifest, True)
    assert [item.mode for item in padded.buckets] == ["pad", "pad"]
    assert Dispatcher(padded).fills(0) == [{"batch": 2, "length": 32}]
    # Without a length axis, too.
    batch = manifest._replace(length_axis=None)
    assert Dispatcher(pad_everything(batch, True)).fills(1) == [{"batch": 2, "length": 64}]
