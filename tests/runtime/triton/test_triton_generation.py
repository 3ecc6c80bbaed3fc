"""Generation on a GPU: caches that stay there, steps that are graphs.

The decoder is written by hand and CUDA's driver is a fake; the runtime library and the loader are real.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import GpuError, InputError, ModelClosedError
from edgecompile.runtime.commands.selftest import run_selftest
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import (
    TURN_TOKEN,
    TritonDecoder,
    generate,
    make_turn,
    put_case,
)

ROWS, KEY, VALUE = 64, 6, 8
#: Bytes of a text's caches: two of float32.
CACHES = ROWS * 4 * (KEY + VALUE)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return TritonDecoder(tmp_path_factory.mktemp("decoder") / "decoder.ecb").write()


def test_a_step_is_one_graph_and_copies_no_cache(fake_driver: FakeCudart, decoder: str) -> None:
    fake_driver.library.fake_cuda_peak_bytes()  # forgets what tests before took
    with open_bundle(decoder) as model:
        stream = model.stream([3, 4, 5], max_new_tokens=40, eos=())
        next(stream)
        next(stream)
        counted = ("cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel")
        before = [fake_driver.calls(name) for name in counted]
        graphs = fake_driver.calls("cuGraphLaunch")
        for _ in range(20):
            next(stream)
        # The graph has the copies, of three small inputs and of the logits.
        assert [fake_driver.calls(name) for name in counted] == before
        assert fake_driver.calls("cuGraphLaunch") == graphs + 20
        # Neither for opening nor for the text was memory taken for runs with caches of the caller's.
        assert model.info["buffer_bytes"] < CACHES + 16384
        assert fake_driver.library.fake_cuda_peak_bytes() < CACHES + 65536


def test_the_memory_of_a_text_serves_the_next_one(fake_driver: FakeCudart, decoder: str) -> None:
    with open_bundle(decoder) as model:
        for turn in range(4):
            prompt = [turn, 1 + turn]
            assert model.generate(prompt, max_new_tokens=9, eos=()) == generate(prompt, 9)
            gc.collect()
        # One for the warm-up and all of these: nothing was allocated or captured again.
        allocated = fake_driver.calls("cuMemAlloc_v2")
        captured = fake_driver.calls("cuStreamBeginCapture_v2")
        assert model.generate([9], max_new_tokens=5, eos=()) == generate([9], 5)
        assert fake_driver.calls("cuMemAlloc_v2") == allocated
        assert fake_driver.calls("cuStreamBeginCapture_v2") == captured == 2


def test_texts_at_the_same_time(fake_driver: FakeCudart, decoder: str) -> None:
    failures: list[BaseException] = []
    with open_bundle(decoder) as model:

        def work(seed: int) -> None:
            try:
                for turn in range(3):
                    prompt = [seed, turn, 7]
                    got = model.generate(prompt, max_new_tokens=20, eos=())
                    assert got == generate(prompt, 20)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        gc.collect()
        # Two texts by turns, each with caches of its own.
        first, second = model.session(), model.session()
        streams = [
            s.stream([i + 1], max_new_tokens=9, eos=()) for i, s in enumerate((first, second))
        ]
        made = list(zip(*streams, strict=True))
        assert [list(x) for x in zip(*made, strict=True)] == [generate([1], 9), generate([2], 9)]


def test_a_conversation_runs_what_is_new_of_it(fake_driver: FakeCudart, decoder: str) -> None:
    with open_bundle(decoder) as model:
        chat = model.session()
        text = [5, 6, 7]
        for _ in range(3):
            stream = chat.stream(text, max_new_tokens=4, eos=())
            new = list(stream)
            assert new == generate(text, 4)
            text += [*new, 8, 9]
        assert stream.reused == len(text) - 4 - 2 - 3


def test_runs_with_caches_of_the_callers(fake_driver: FakeCudart, decoder: str) -> None:
    """Model.run: they are copied there and back. Texts aren't disturbed by runs of other sizes."""
    with open_bundle(decoder) as model:
        stream = model.stream([3, 4], max_new_tokens=30, eos=())
        for rows in (20, 64, 33):
            inputs = make_turn(rows)
            logits = model.run(inputs)["logits"]
            assert int(logits.argmax()) == TURN_TOKEN
            written = inputs["key"][:, 0, 0].nonzero()[0].tolist()
            assert written == [4, 5, 6] and inputs["value"][6, 1, 3] == 18
            next(stream)
        rest = [*stream.tokens, *stream]
        assert rest == generate([3, 4], 30)


def test_what_filled_up_does_not_fit_the_caches_runs_as_it_is(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    bundle = TritonDecoder(tmp_path / "exact.ecb")
    bundle.bundle.document["buckets"][1]["mode"] = "exact"
    put_case(bundle, 1, length=5, rows=12)
    path = bundle.write()
    report = run_selftest(path, mode="reduce-overhead")
    assert report["ok"], report
    with open_bundle(path, mode="reduce-overhead") as model:
        chat = model.session()
        text = [7] * 52
        text += chat.generate(text, max_new_tokens=1, eos=())
        before = [entry["runs"] for entry in model.stats["buckets"]]
        text += [4, 5, 6, 7]
        assert chat.generate(text, max_new_tokens=1, eos=()) == generate(text, 1)
        runs = [entry["runs"] for entry in model.stats["buckets"]]
        assert [a - b for a, b in zip(runs, before, strict=True)] == [0, 1]
        # Those of the whole bucket and of one token alone are graphs.
        assert model.info["graphs"] == 2


def test_a_bundle_that_pads_says_that_it_does_not_fit(
    fake_driver: FakeCudart, tmp_path: Path
) -> None:
    bundle = TritonDecoder(tmp_path / "pad.ecb")
    put_case(bundle, 1, length=5, rows=12)
    report = run_selftest(bundle.write(), mode="reduce-overhead")
    errors = [case["error"] for case in report["cases"] if not case["ok"]]
    assert (
        len(errors) == 1 and "5 tokens (padded to 16) doesn't lie within the 12 rows" in errors[0]
    )


def test_the_selftest_replays_texts(fake_driver: FakeCudart, decoder: str) -> None:
    for mode in ("planned", "default", "reduce-overhead"):
        report = run_selftest(decoder, mode=mode)
        assert report["ok"], report
        assert len(report["generation"]) == 3 and len(report["cases"]) == 2


def test_a_closed_model_and_its_texts(fake_driver: FakeCudart, decoder: str) -> None:
    model = open_bundle(decoder)
    session = model.session()
    stream = session.stream([1], max_new_tokens=9, eos=())
    next(stream)
    model.close()
    assert fake_driver.live == 0
    with pytest.raises(ModelClosedError):
        next(stream)
    with pytest.raises(ModelClosedError):
        model.session()
    del session, stream
    gc.collect()


def test_a_text_lost_its_turn(fake_driver: FakeCudart, decoder: str) -> None:
    with open_bundle(decoder) as model:
        session = model.session()
        old = session.stream([1], max_new_tokens=9, eos=())
        next(old)
        assert session.generate([2], max_new_tokens=3, eos=()) == generate([2], 3)
        with pytest.raises(InputError, match="another generation"):
            next(old)


@pytest.mark.parametrize(
    "call",
    [
        "cuMemAlloc_v2",
        "cuLaunchKernel",
        *(
            pytest.param(call, marks=pytest.mark.slow)
            for call in (
                *("cuMemHostAlloc", "cuMemsetD8Async", "cuStreamSynchronize"),
                *("cuMemcpyHtoDAsync_v2", "cuGraphLaunch"),
            )
        ),
    ],
)
def test_each_call_may_fail(
    fake_driver: FakeCudart, decoder: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """An error with its name, nothing lost, and the next text is right."""

    def attempt() -> None:
        with open_bundle(decoder) as model:
            assert model.generate([4, 2], max_new_tokens=6, eos=()) == generate([4, 2], 6)

    attempt()
    made = fake_driver.calls(call)
    assert made
    for number in range(1, made + 1):
        fake_driver.reset()
        monkeypatch.setenv("FAKE_CUDART_FAIL", f"{call}:{number}=2")
        # What fails while a graph is captured costs the graph alone.
        try:
            attempt()
        except GpuError as error:
            assert error.number == 2
        monkeypatch.delenv("FAKE_CUDART_FAIL")
        gc.collect()
        assert fake_driver.live == 0, (call, number)
    attempt()


def test_after_a_failure_the_same_model_goes_on(
    fake_driver: FakeCudart, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_bundle(decoder) as model:
        session = model.session()
        assert session.generate([4, 2], max_new_tokens=6, eos=()) == generate([4, 2], 6)
        monkeypatch.setenv(
            "FAKE_CUDART_FAIL", f"cuGraphLaunch:{fake_driver.calls('cuGraphLaunch') + 3}=2"
        )
        with pytest.raises(GpuError, match="OUT_OF_MEMORY"):
            session.generate([4, 3], max_new_tokens=6, eos=())
        monkeypatch.delenv("FAKE_CUDART_FAIL")
        assert session.generate([4, 3], max_new_tokens=6, eos=()) == generate([4, 3], 6)


def test_too_little_memory_for_the_caches(
    fake_driver: FakeCudart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TritonDecoder(tmp_path / "d.ecb").write()
    monkeypatch.setenv("FAKE_CUDART_DEVICE", "name=H;cc=9.0;driver=12080;memory=2000")
    with pytest.raises(GpuError, match=r"3584 bytes for the caches of a text") as caught:
        open_bundle(path)
    assert "max_context" in (caught.value.hint or "")
