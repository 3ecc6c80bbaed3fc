"""The C runtime with caches left out: the model's own text, on a GPU over a fake of CUDA's driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.triton_bundle import TURN_TOKEN, TritonDecoder, generate, make_turn
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, CLibrary, CLibraryError, CModel

ROWS = 64
#: Bytes of a text's caches: two of float32.
CACHES = ROWS * 4 * (6 + 8)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return TritonDecoder(tmp_path_factory.mktemp("decoder") / "decoder.ecb").write()


def run(model: CModel, tokens: Sequence[int], row: int) -> int:
    """Runs tokens behind ``row`` rows of the model's own text; the one that follows."""
    inputs = {
        "input_ids": np.array([list(tokens)]),
        "position": np.array([row]),
        "last": np.array([len(tokens) - 1]),
    }
    return int(model.run(inputs)["logits"].argmax())


def go_on(model: CModel, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow a text; the prompt in chunks of 16 at most."""
    row, token = 0, 0
    for start in range(0, len(prompt), 16):
        chunk = prompt[start : start + 16]
        token = run(model, chunk, row)
        row += len(chunk)
    made = [token]
    while len(made) < count:
        made.append(run(model, made[-1:], row))
        row += 1
    return made


@pytest.mark.parametrize("mode", ["planned", "default", "reduce-overhead"])
@pytest.mark.parametrize("integrated", [0, 1])
def test_tokens_are_the_models_own(
    fake_driver: FakeCudart,
    library: CLibrary,
    decoder: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    integrated: int,
) -> None:
    device = f"name=Orin;cc=9.0;sm=16;memory=8000000;integrated={integrated}"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", device)
    with library.open(decoder, mode=mode.encode()) as model, open_bundle(decoder, mode=mode) as py:
        for length in (1, 2, 15, 16, 17, 33, 50):
            prompt, count = [(5 * i + length) % 100 for i in range(length)], 64 - length
            want = generate(prompt, count)
            assert go_on(model, prompt, count) == want
            assert py.generate(prompt, max_new_tokens=count, eos=()) == want
        told, info = model.describe(), py.info
    keys = ("graphs", "buffer_bytes", "scratch_bytes", "loaded_buckets", "weight_bytes")
    assert {k: told[k] for k in keys} == {k: info[k] for k in keys}
    assert told["graphs"] == (0 if mode == "default" else 2)


def test_a_step_is_one_graph_and_copies_no_cache(
    fake_driver: FakeCudart, library: CLibrary, decoder: str
) -> None:
    fake_driver.library.fake_cuda_peak_bytes()  # forgets what tests before took
    with library.open(decoder) as model:
        made = go_on(model, [3, 4, 5], 2)
        counted = ("cuMemAlloc_v2", "cuMemHostAlloc", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel",
                   "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async")  # fmt: skip
        before = [fake_driver.calls(name) for name in counted]
        graphs = fake_driver.calls("cuGraphLaunch")
        for row in range(4, 24):
            made.append(run(model, made[-1:], row))
        assert made == generate([3, 4, 5], 22)
        # The graph has the copies, of three small inputs and of the logits.
        assert [fake_driver.calls(name) for name in counted] == before
        assert fake_driver.calls("cuGraphLaunch") == graphs + 20
        assert model.describe()["buffer_bytes"] < CACHES + 16384
        assert fake_driver.library.fake_cuda_peak_bytes() < CACHES + 65536


def test_runs_with_caches_of_the_callers_disturb_no_text(
    fake_driver: FakeCudart, library: CLibrary, decoder: str
) -> None:
    for mode in (b"planned", b"default"):
        with library.open(decoder, mode=mode) as model:
            made = go_on(model, [3, 4], 1)
            for row, rows in enumerate((20, 64, 33), 2):
                inputs = make_turn(rows)
                logits = model.run(inputs)["logits"]
                assert int(logits.argmax()) == TURN_TOKEN
                assert inputs["key"][:, 0, 0].nonzero()[0].tolist() == [4, 5, 6]
                made.append(run(model, made[-1:], row))
            assert made == generate([3, 4], 4)


def test_a_text_has_no_gaps(fake_driver: FakeCudart, library: CLibrary, decoder: str) -> None:
    with library.open(decoder) as model:
        for row in (1, 40):  # the warm-up's rows aren't a text's
            with pytest.raises(CLibraryError, match=f"{row} doesn't follow the 0 rows") as caught:
                run(model, [5], row)
            assert caught.value.status == c_library.INPUT
        made = go_on(model, [5, 6], 3)
        with pytest.raises(CLibraryError, match="5 doesn't follow the 4 rows of the model's own"):
            run(model, [5], 5)
        assert run(model, made[-1:], 4) == generate([5, 6], 4)[-1]
        # Back to an earlier row, whose place other tokens take, and to another text.
        assert run(model, [7], 1) == generate([5, 7], 1)[0]
        with pytest.raises(CLibraryError, match="4 doesn't follow the 2 rows"):
            run(model, [7], 4)
        assert go_on(model, [8, 9, 8], 5) == generate([8, 9, 8], 5)
        with pytest.raises(CLibraryError, match="64 with 1 tokens"):
            run(model, [7], 64)


def test_all_caches_or_none(fake_driver: FakeCudart, library: CLibrary, decoder: str) -> None:
    with library.open(decoder) as model:
        inputs = {
            "input_ids": np.array([[7]]),
            "position": np.array([0]),
            "last": np.array([0]),
            "value": np.zeros((64, 2, 4), np.float32),
        }
        with pytest.raises(CLibraryError, match="input key: is missing") as caught:
            model.run(inputs)
        assert caught.value.status == c_library.INPUT
        with pytest.raises(CLibraryError, match="input last: is missing"):
            model.run({"input_ids": np.array([[7]]), "position": np.array([0])})


def test_a_model_for_each_text(fake_driver: FakeCudart, library: CLibrary, decoder: str) -> None:
    """Two models have two texts, and the weights once; of one model, runs take turns."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with library.open(decoder) as model:
                for turn in range(3):
                    prompt = [seed, turn, 7]
                    assert go_on(model, prompt, 20) == generate(prompt, 20)
        except BaseException as error:
            failures.append(error)

    with library.open(decoder) as shared:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert fake_driver.calls("cuMemcpyHtoD_v2") == 1
        threads = [threading.Thread(target=run, args=(shared, [5], 0)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run(shared, [6], 1) == generate([5, 6], 1)[0]


CALLS = (
    "cuMemAlloc_v2", "cuMemHostAlloc", "cuMemsetD8Async", "cuStreamSynchronize",
    "cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuGraphLaunch", "cuStreamEndCapture",
)  # fmt: skip


@pytest.mark.slow
def test_with_sanitizers(fake_driver: FakeCudart, decoder: str) -> None:
    """A program in C: right tokens in each mode, and the end of it where a call fails."""
    machine = MACHINES[NATIVE_ARCH]
    source = Path(__file__).parent / "programs" / "host_text.c"
    program = c_library.build(machine, "text", [source], flags=c_library.SANITIZERS)
    wanted = generate([5], 7)
    for mode in ("planned", "default", "reduce-overhead"):
        done = machine.run(
            [program, decoder, "7", "5"], EDGECOMPILE_MODE=mode, **c_library.SANITIZED
        )
        assert done.returncode == 0, done.stderr
        assert [int(word) for word in done.stdout.split()] == wanted * 2
    for call in CALLS:
        for failure in ("1=2", "2=700", "4=719"):
            done = machine.run(
                [program, decoder, "7", "5"],
                FAKE_CUDART_FAIL=f"{call}:{failure}",
                EDGECOMPILE_VARIANT="cuda-sm90",
                **c_library.SANITIZED,
            )
            assert done.returncode in (0, 29), f"{call}:{failure}: {done.stderr}"
            assert (done.returncode == 0) is ("CUDA_ERROR_" not in done.stderr)
