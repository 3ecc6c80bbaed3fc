"""Programs through the host-facing C ABI: a real compiled model, its errors, memory and threads."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from edgecompile.toolchain.compilers import dynamic_symbols
from tests.native.programs.aoti import NativeTensor, describe, load_shim, own_runtime
from tests.native.programs.host import LENGTHS, LONGEST, VOCABULARY, Built, Failure, Host, build


class Lookup(torch.nn.Module):
    """Rows of a table through a layer; returns an input and a weight as they are, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 48)
        self.layer = torch.nn.Linear(48, 40)
        self.register_buffer("ladder", torch.arange(600.0)[:LONGEST], persistent=False)

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        rows = self.table(ids) + self.ladder[: ids.shape[1]].unsqueeze(-1) / LONGEST
        return {"y": torch.tanh(self.layer(rows)), "ids": ids, "bias": self.layer.bias}


class Repeats(torch.nn.Module):
    """Outputs that are one tensor, are computed alike, or are the input twice."""

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        first = ids * 2.0 + 1.0
        return {"a": first, "b": first, "c": ids * 2.0 + 1.0, "ids": ids, "same": ids}


class Overwrite(torch.nn.Module):
    """Fills its own input, as code does that replaces a label for padding."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ids.masked_fill_(ids == 3, 0)
        ids[:, 0] = 1
        return ids * 2.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(Lookup, tmp_path_factory.mktemp("program"))


@pytest.fixture
def host():
    """The host ABI; the test must close and free what it opens."""
    shim = load_shim()
    before = shim.live()
    yield Host()
    after = shim.live()
    assert (after[0] - before[0], after[1] - before[1]) == (0, 0), "the test leaked"


@pytest.fixture
def program(host: Host, built: Built):
    handle = host.open(built.library, built.weights, 2)
    yield handle
    host.close(handle)


def draw(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (1, length))


def check(built: Built, ids: np.ndarray, got: list[np.ndarray]) -> None:
    with torch.no_grad():
        wanted = built.model(torch.from_numpy(np.ascontiguousarray(ids)))
    np.testing.assert_allclose(got[0], wanted["y"].numpy(), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(got[1], ids)
    np.testing.assert_array_equal(got[2], wanted["bias"].detach().numpy())


def test_outputs_that_are_one_tensor(host: Host, tmp_path: Path):
    """Generated code gives the same handle twice; every output has memory of its own all the same."""
    built = build(Repeats, tmp_path)
    program = host.open(built.library, built.weights)
    for seed in range(4):
        ids = draw(9, seed)
        outputs = host.start(program, ids)
        a, b, c, first, second = host.read(outputs)
        for array in (a, b, c):
            np.testing.assert_array_equal(array, ids * 2 + 1)
        np.testing.assert_array_equal(first, ids)
        np.testing.assert_array_equal(second, ids)
        host.native.ec_outputs_free(outputs)
    host.close(program)


def test_an_input_that_the_code_changes_stays_as_it_is(host: Host, tmp_path: Path):
    built = build(Overwrite, tmp_path)
    program = host.open(built.library, built.weights)
    ids = np.array([[7, 3, 5, 3]])
    kept = ids.copy()
    for _ in range(2):
        (got,) = host.run(program, ids)
        np.testing.assert_array_equal(got, [[2, 0, 10, 0]])
        np.testing.assert_array_equal(ids, kept)
    host.close(program)


@pytest.mark.parametrize("length", LENGTHS)
def test_results_are_eagers(host: Host, built: Built, program, length: int):
    assert host.native.ec_program_input_count(program) == 1
    assert host.native.ec_program_output_count(program) == 3
    check(built, draw(length), host.run(program, draw(length)))


def test_inputs_need_not_be_row_major(host: Host, built: Built, program):
    ids = draw(64)[:, ::2]
    check(built, ids, host.run(program, ids))


def test_outputs_outlive_inputs_and_program(host: Host, built: Built):
    """Outputs that alias an input or a weight are copies of their own."""
    program = host.open(built.library, built.weights)
    ids = draw(17)
    outputs = host.start(program, ids)
    kept = ids.copy()
    ids[:] = -1
    host.close(program)
    check(built, kept, host.read(outputs))
    host.native.ec_outputs_free(outputs)


def test_weights_are_used_where_they_lie(host: Host, built: Built):
    weights = {name: array.copy() for name, array in built.weights.items()}
    program = host.open(built.library, weights)
    ids = draw(5)
    before = host.run(program, ids)[0]
    next(w for name, w in weights.items() if name.endswith("bias"))[...] = 0
    assert np.abs(host.run(program, ids)[0] - before).max() > 1e-3
    host.close(program)


@pytest.mark.parametrize("length", [3, 512])
@pytest.mark.parametrize("wrong", [VOCABULARY, -VOCABULARY - 1, 2**40])
def test_an_index_outside_the_table_is_an_error(host: Host, built: Built, program, length, wrong):
    """The generated check fails inside a parallel region; the process and the program live on."""
    ids = draw(length)
    ids[0, -1] = wrong
    for _ in range(3):
        with pytest.raises(Failure, match=r"^ec_program_run: running the model.*check failed"):
            host.run(program, ids)
        check(built, draw(length), host.run(program, draw(length)))


def test_a_wrong_number_of_inputs_is_an_error(host: Host, program):
    with pytest.raises(Failure, match="the model has 1 inputs, 2 were given"):
        host.run(program, draw(3), draw(3))
    with pytest.raises(Failure, match="the model has 1 inputs, 0 were given"):
        host.run(program)


def test_an_input_that_is_smaller_than_it_says_is_an_error(host: Host, program):
    tensor = describe("ids", draw(8))
    tensor.nbytes = 56
    outputs = ctypes.c_void_p()
    with pytest.raises(Failure, match="input 'ids': it describes 64 bytes but has 56"):
        host.check(
            host.native.ec_program_run(
                program, ctypes.byref(tensor), ctypes.c_int64(1), ctypes.byref(outputs)
            )
        )
    assert not outputs


def test_all_missing_and_misfitting_constants_are_named(host: Host, built: Built):
    names = sorted(built.weights)
    assert len(names) >= 3
    wrong = built.weights[names[0]].astype(np.float64)
    with pytest.raises(Failure) as caught:
        host.open(built.library, {names[0]: wrong, "other": wrong})
    text = str(caught.value)
    assert all(name in text for name in names)
    assert "missing constants: " in text
    assert f"misfitting constants: {names[0]} (float64, {wrong.nbytes} bytes, the model" in text
    assert "other" not in text


def test_libraries_that_are_none(host: Host, built: Built, tmp_path: Path):
    (tmp_path / "text.so").write_text("no library" * 100)
    with pytest.raises(Failure, match=r"cannot load the model library: .*invalid ELF header"):
        host.open(tmp_path / "text.so", built.weights)
    with pytest.raises(Failure, match=r"cannot load the model library: .*No such file"):
        host.open(tmp_path / "absent.so", built.weights)
    with pytest.raises(Failure, match=r"'libm\.so\.6' is no path"):
        host.open("libm.so.6", built.weights)
    with pytest.raises(Failure, match="not a model library, it lacks AOTInductorModelContainerC"):
        host.open(load_shim().library._name, built.weights)
    with pytest.raises(Failure, match="concurrency is 0"):
        host.open(built.library, built.weights, 0)


def test_outputs_beyond_the_last(host: Host, program):
    outputs = host.start(program, draw(2))
    with pytest.raises(Failure, match="output 3 of 3"):
        host.check(
            host.native.ec_outputs_get(outputs, ctypes.c_int64(3), ctypes.byref(NativeTensor()))
        )
    host.native.ec_outputs_free(outputs)


def test_null_is_refused_or_ignored(host: Host):
    host.native.ec_outputs_free(None)
    host.native.ec_program_close(None)
    assert host.native.ec_outputs_count(None) == 0
    assert host.native.ec_program_run(None, None, ctypes.c_int64(0), None) != 0
    assert b"null pointer" in host.native.ec_last_error()


@pytest.mark.parametrize("concurrency", [1, 3])
def test_threads_share_a_program(host: Host, built: Built, concurrency: int):
    program = host.open(built.library, built.weights, concurrency)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in range(24):
                ids = draw(1 + (seed * 131 + n * 37) % LONGEST, seed * 100 + n)
                check(built, ids, host.run(program, ids))
                # Who waits for a run to end has to be woken by those that fail, too.
                if n % 2 == seed % 2:
                    with pytest.raises(Failure, match="check failed"):
                        host.run(program, np.full((1, 300), VOCABULARY))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    host.close(program)


def test_runs_and_openings_leave_memory_flat(host: Host, built: Built):
    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    rng = np.random.default_rng(0)
    program = host.open(built.library, built.weights)
    for n in rng.integers(1, LONGEST + 1, 200):
        host.run(program, draw(int(n)))
    live, resident = load_shim().live(), rss()
    for n in rng.integers(1, LONGEST + 1, 1000):
        host.run(program, draw(int(n)))
    host.close(program)
    for _ in range(50):
        host.close(host.open(built.library, built.weights))
    assert load_shim().live()[0] <= live[0]
    assert rss() - resident < 4 << 20


def test_failures_print_nothing(host: Host, program, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(Failure):
        host.run(program, np.full((1, 300), VOCABULARY))
    assert capfd.readouterr() == ("", "")


def test_a_library_carries_no_streams_and_locales(built: Built):
    """They would be two thirds of it (model/slim_streams.h)."""
    listing = subprocess.run(
        ["nm", "-D", "-u", str(built.library)], check=True, capture_output=True, text=True
    ).stdout
    assert "malloc" in listing
    assert "locale" not in listing
    assert built.library.stat().st_size < 400_000


def test_thread_count(host: Host):
    before = host.native.ec_get_num_threads()
    assert host.native.ec_set_num_threads(1) == 0
    assert host.native.ec_get_num_threads() == 1
    assert host.native.ec_set_num_threads(-1) != 0
    assert host.native.ec_set_num_threads(0) == 0
    assert host.native.ec_get_num_threads() == before
    assert host.native.ec_abi_version() == 1


def test_libraries_leave_out_what_no_run_calls(built: Built):
    exports = dynamic_symbols(built.library, defined=True)
    assert "AOTInductorModelContainerRunSingleThreaded" in exports
    assert not exports & {"AOTInductorModelCreateV2", "AOTInductorModelContainerRunConstantFolding"}
    for library in (built.library, own_runtime().path):
        assert b"{parm#" not in library.read_bytes()  # the demangler's word for a parameter


def test_without_torch_or_openmp_in_the_process(built: Built):
    """A fresh process that has libgomp and other symbols loaded globally still uses ours."""
    script = f"""
import ctypes, sys
ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL({str(load_shim().library._name)!r})
model = ctypes.CDLL({str(built.library)!r})
maps = open("/proc/self/maps").read()
assert "libtorch" not in maps and "libstdc++" not in maps, maps
count = ctypes.c_size_t()
container = ctypes.c_void_p()
assert model.AOTInductorModelContainerCreateWithDevice(ctypes.byref(container), 1, b"cpu", None) == 0
assert model.AOTInductorModelContainerGetNumInputs(container, ctypes.byref(count)) == 0
assert count.value == 1
"""
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
