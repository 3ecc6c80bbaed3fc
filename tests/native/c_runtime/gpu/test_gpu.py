"""The C runtime with variants of Triton kernels: the answers and refusals of the Python runtime.

The programs are written by hand and CUDA's driver is a fake; the runtime library and both loaders are
real, and use that fake in one process.
"""

from __future__ import annotations

import copy
import ctypes
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import EdgecompileError, NativeError
from edgecompile.runtime.commands.info import describe_bundle
from edgecompile.runtime.measure.tune import tune_bundle
from edgecompile.runtime.triton.programs import GRAPH_AFTER
from tests.agreement import named_rules
from tests.fake_gpu.build import FakeCudart
from tests.fake_gpu.numpy_engine import embed
from tests.fake_gpu.triton_bundle import (
    TritonBundle,
    TritonDecoder,
    build_older_gpu_runtime,
    make_inputs,
)
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary, CLibraryError, CModel
from tests.runtime.bundles import put
from tests.runtime.format.test_hostile_manifest import GPU, HOSTILE_GPUS

MODE, NO_GPU, GPU_FAILED = 17, 19, 29
MODES = ("planned", "default", "reduce-overhead")
MOST_GRAPHS = 64


def check(model: CModel, length: int, batch: int = 1, seed: int = 0) -> None:
    inputs = make_inputs(length, batch, seed)
    got = model.run(inputs)
    for name, want in embed(inputs).items():
        np.testing.assert_array_equal(got[name], want, err_msg=f"{name} at {length}")


def without_bundle(text: str) -> str:
    """Without the bundle of each path and the number of a program.

    A library is loaded once, whichever test's bundle, and whichever of its equal programs, it came from.
    """
    return re.sub(r"bucket-\d+(-\d+)?\.so", "bucket.so", re.sub(r"\S+\.ecb/", "", text))


def refused(library: CLibrary, path: str, **options: int | bytes) -> CLibraryError:
    """The error of opening, which has to be Python's; C may say in which bucket, and has other hints."""
    with pytest.raises(CLibraryError) as caught:
        library.open(path, **options)
    named: Any = {k: v.decode() for k, v in options.items() if isinstance(v, bytes)}
    with pytest.raises(EdgecompileError) as wanted:
        open_bundle(path, **named)
    assert caught.value.status == wanted.value.exit_code
    text = caught.value.text.partition("\nhint: ")[0]
    assert without_bundle(text).endswith(without_bundle(wanted.value.message))
    return caught.value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("integrated", [0, 1])
def test_every_length_in_every_mode(
    fake_driver: FakeCudart,
    library: CLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    integrated: int,
) -> None:
    device = f"name=Orin;cc=9.0;sm=16;memory=8000000;integrated={integrated};driver=12080"
    monkeypatch.setenv("FAKE_CUDART_DEVICE", device)
    monkeypatch.setenv("EDGECOMPILE_MODE", mode)  # for both
    path = triton_bundle.write()
    with library.open(path) as model, open_bundle(path) as python:
        launched = fake_driver.library.fake_cuda_launches
        for length in (1, 7, 32, 33, 64, 5, 32):
            for batch in (1, 2):
                inputs = make_inputs(length, batch, seed=length)
                launched()
                got = model.run(inputs)
                ours = launched()
                want = python.run(inputs)
                assert ours == launched()
                for name, array in embed(inputs).items():
                    for one in (got[name], want[name]):
                        assert one.dtype == array.dtype and one.shape == array.shape
                        np.testing.assert_array_equal(one, array)
        told, info = model.describe(), python.info
    host = told.pop("host"), info.pop("host")
    assert host[0].items() <= host[1].items() and info.pop("run_threads") is False
    assert told == info
    assert told["graphs"] == (2 if mode == "reduce-overhead" else 0)
    assert (told["backend"], told["gpu_precision"], told["mode"]) == ("triton", "fp32", mode)
    assert told["launches"] == {"0": 4, "1": 4} and told["weight_bytes"] == 136
    assert told["zero_copy"] is bool(integrated)
    copied = fake_driver.calls("cuMemcpyHtoDAsync_v2") + fake_driver.calls("cuMemcpyDtoHAsync_v2")
    assert (copied == 0) is bool(integrated)


def test_a_bucket_that_the_plan_pads_is_a_graph(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    for bucket in triton_bundle.bundle.document["buckets"]:
        bucket["axes"]["batch"] = {"lo": 1, "hi": 1, "hint": 1}
    triton_bundle.bundle.document["axes"]["batch"]["hi"] = 1
    path = triton_bundle.write()
    for mode, graphs in (("planned", 1), ("default", 0), ("reduce-overhead", 2)):
        with library.open(path, mode=mode.encode()) as model:
            assert model.describe()["graphs"] == graphs
            before = fake_driver.calls("cuLaunchKernel")
            for length in (33, 64, 40):
                check(model, length)
            one_by_one = fake_driver.calls("cuLaunchKernel") - before
            assert one_by_one == (0 if graphs else 3 * 4)


def test_shapes_that_come_often_become_graphs(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    document = triton_bundle.bundle.document
    for item in (document, *document["buckets"]):
        item["axes"]["batch"]["hi"] = 3
    path = triton_bundle.write()
    with library.open(path, lazy=1) as model, open_bundle(path, warmup=False) as python:
        for turn in range(GRAPH_AFTER):
            assert model.describe()["graphs"] == 0
            for length in (3, 5):
                check(model, length, seed=turn)
                python.run(make_inputs(length))
        assert model.describe()["graphs"] == python.info["graphs"] == 2
        launches = fake_driver.calls("cuLaunchKernel")
        for turn in range(5):  # in any order, and without a kernel launched one by one
            for length in (5, 3, 5):
                check(model, length, seed=100 + turn)
        assert fake_driver.calls("cuLaunchKernel") == launches
        check(model, 7, batch=2)  # others go on as before
        check(model, 3)
        for batch in (1, 2, 3):
            for length in range(1, 33):
                for turn in range(GRAPH_AFTER):
                    check(model, length, batch, seed=turn)
        assert model.describe()["graphs"] == MOST_GRAPHS
        assert fake_driver.calls("cuGraphExecDestroy") == 3 * 32 - MOST_GRAPHS
        check(model, 32, batch=3)
        check(model, 40)


def test_runs_go_on_where_no_graph_can_be_made(
    fake_driver: FakeCudart,
    library: CLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_CUDART_FAIL", "cuGraphInstantiateWithFlags:1=2")
    with library.open(triton_bundle.write(), lazy=1) as model:
        for turn in range(2 * GRAPH_AFTER):
            check(model, 3, seed=turn)
        assert model.describe()["graphs"] == 0
        assert fake_driver.calls("cuGraphInstantiateWithFlags") == 1


@pytest.mark.parametrize("mode", MODES)
def test_smaller_sizes_may_take_more_memory(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path, mode: str
) -> None:
    path = TritonBundle(tmp_path / "t.ecb", "TOY_LARGER=(count%64)").write()
    with library.open(path, mode=mode.encode()) as model, open_bundle(path, mode=mode) as python:
        for length in (32, 31, 5):
            check(model, length, 2)
            check(python, length, 2)
        taken = model.describe()["scratch_bytes"]
        assert taken == python.info["scratch_bytes"]
        # No more than at the ends just below the largest, where it is 256 KiB; one mode runs the largest alone.
        least = 1 << 18 if mode != "reduce-overhead" else 0
        assert least <= taken < least + 32768


def test_weights_are_copied_once_for_all_models(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    path = triton_bundle.write()
    with library.open(path) as first, library.open(path) as second:
        check(first, 3)
        check(second, 40)
        assert fake_driver.calls("cuMemcpyHtoD_v2") == 1
        first.close()
        check(second, 3)
    with library.open(path) as third:
        check(third, 3)
    assert fake_driver.calls("cuMemcpyHtoD_v2") == 2


def test_a_thread_keeps_its_own_context(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    """A call makes the GPU's context current, and then what was before: of a new thread, none."""
    no_context, codes = 201, []

    def work() -> None:
        with library.open(triton_bundle.write()) as model:
            check(model, 7)
            codes.append(fake_driver.library.cuMemGetInfo_v2(None, None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    fake_driver.reset()  # the call without a context was asked for
    assert codes == [no_context]


def test_the_tolerance_is_the_variants(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    triton_bundle.gpu.update(tolerance={"atol": 0.25, "rtol": 0.5}, min_cosine=0.75)
    path = triton_bundle.write()
    signature = c_library.Signature()
    for variant, wanted in ((b"cuda-sm90", (0.25, 0.5, 0.75)), (b"toy", (1e-5, 1e-4, -1.0))):
        with library.open(path, variant=variant) as model:
            library.check(library.c.ecr_get_signature(model.handle, ctypes.byref(signature)))
            assert (signature.atol, signature.rtol, signature.min_cosine) == wanted


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (1, "the output states is no row-major tensor"),
        (2, "states has shape"),
        (3, ""),
        (4, "the program asks for other memory than its rehearsal did"),
        (5, "has 2 inputs and 1 outputs, the manifest has 2 and 2"),
        (6, "finding the kernel of missing failed: CUDA_ERROR_OF_THE_FAKE (500)"),
    ],
)
def test_programs_that_misbehave(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path, fault: int, told: str
) -> None:
    """3 is within its rights. What only a run tells isn't told before, as in Python."""
    path = TritonBundle(tmp_path / "t.ecb", f"TOY_FAULT={fault}").write()
    answers = []
    try:
        for opened in (library.open, open_bundle):
            try:
                with opened(path) as model:
                    for length in (7, 50):
                        check(model, length, 2)
                answers.append((0, ""))
            except CLibraryError as error:
                answers.append((error.status, error.text.partition("\nhint: ")[0]))
            except EdgecompileError as error:
                answers.append((error.exit_code, error.message))
    finally:
        if fault == 6:
            fake_driver.reset()  # its misuse of the fake was asked for
    (status, text), (wanted, message) = answers
    assert status == wanted and (status == 0) is (fault == 3) and told in message
    assert without_bundle(text).endswith(without_bundle(message))  # C may say in which bucket


def test_caches_are_changed_in_place(
    fake_driver: FakeCudart, library: CLibrary, tmp_path: Path
) -> None:
    bundle = TritonDecoder(tmp_path / "decoder.ecb")
    bundle.bundle.document["buckets"][1]["mode"] = "exact"
    path = bundle.write()

    def inputs(length: int, position: int = 3) -> dict[str, npt.NDArray[Any]]:
        random = np.random.default_rng(length)
        return {
            "input_ids": random.integers(0, 100, (1, length)),
            "position": np.array([position]),
            "last": np.array([length - 1]),
            "key": random.standard_normal((64, 2, 3)).astype(np.float32),
            "value": random.standard_normal((64, 2, 4)).astype(np.float32),
        }

    for mode in MODES:
        with library.open(path, mode=mode.encode()) as model, open_bundle(path, mode=mode) as other:
            # At 55 there are rows for five tokens, and none for those that a mode would fill in.
            for length, position in ((1, 3), (5, 3), (16, 3), (5, 3), (5, 55)):
                ours, theirs, before = (inputs(length, position) for _ in range(3))
                got, want = model.run(ours), other.run(theirs)
                assert got["logits"].tobytes() == want["logits"].tobytes()
                for name in ("key", "value"):
                    assert ours[name].tobytes() == theirs[name].tobytes()
                    assert ours[name].tobytes() != before[name].tobytes()
            with pytest.raises(CLibraryError, match="doesn't lie within the 64 rows"):
                model.run(inputs(5, 62))


# What is asked for.


def test_inputs_are_checked_first(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle
) -> None:
    with library.open(triton_bundle.write(), lazy=1) as model:
        inputs = make_inputs(7)
        inputs["input_ids"][0, 3] = 100
        for given, status in (
            (inputs, c_library.INPUT),
            (make_inputs(65), c_library.OUTSIDE),
            ({"input_ids": inputs["attention_mask"]}, c_library.INPUT),
        ):
            with pytest.raises(CLibraryError) as caught:
                model.run(given)
            assert caught.value.status == status
        assert fake_driver.calls("cuLaunchKernel") == 0


def test_modes_that_do_not_go(
    fake_driver: FakeCudart,
    library: CLibrary,
    triton_bundle: TritonBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    triton_bundle.gpu["padding"] = False
    del triton_bundle.bundle.document["inputs"][0]["pad"]
    triton_bundle.bundle.document["buckets"][1]["mode"] = "exact"
    path = triton_bundle.write()
    with pytest.raises(CLibraryError) as caught:
        library.open(path, mode=b"reduce-overhead")
    assert caught.value.status == MODE and "input_ids has no pad value" in caught.value.text
    assert "verify that padding changes nothing; " in caught.value.text
    with pytest.raises(EdgecompileError) as wanted:
        open_bundle(path, mode="reduce-overhead")
    assert wanted.value.message == caught.value.text.partition("\nhint: ")[0]
    for options in ({"mode": b"fast"}, {"fallback": b"gpu"}):
        with pytest.raises(CLibraryError) as caught:
            library.open(path, **options)
        assert caught.value.status == c_library.INPUT
    monkeypatch.setenv("EDGECOMPILE_MODE", "fast")
    with pytest.raises(
        CLibraryError, match="mode is 'fast', must be one of planned, default, reduce"
    ):
        library.open(path)


@pytest.mark.parametrize("which", ["program", "runtime", "weights"])
def test_what_was_exchanged_is_not_used(
    fake_driver: FakeCudart, library: CLibrary, triton_bundle: TritonBundle, which: str
) -> None:
    names = {"program": triton_bundle.programs[1], "runtime": triton_bundle.runtime}
    name = names.get(which, "weights.fp32")
    # No process has seen this content before: what was hashed once is kept open.
    if which != "weights":
        triton_bundle.bundle.files[name] += f"only here: {which}".encode()
    path = triton_bundle.write()
    victim = Path(path) / name
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.unlink()
    victim.write_bytes(data)
    assert "file-hash" in refused(library, path).text


#: What other tests have no list of: nothing to run, and programs with other tiles.
MORE_HOSTILE: list[tuple[str, str, Any, str]] = [
    ("variant-gpu", "gpu.compute_capabilities", [], ""),
    ("variant-programs", "alternatives", [[]], ""),
    ("path-listed", "alternatives", [[], ["p.so"]], ""),
    ("list-size", "alternatives", [["weights.fp32"] * 9, []], ""),
    ("key-type", "alternatives", [[], {}], ""),
]


@pytest.mark.parametrize("case", range(len(HOSTILE_GPUS) + len(MORE_HOSTILE)))
def test_hostile_manifests(library: CLibrary, triton_bundle: TritonBundle, case: int) -> None:
    bundle = triton_bundle.bundle
    rule, path, value, _ = [*HOSTILE_GPUS, *MORE_HOSTILE][case]
    if case < len(HOSTILE_GPUS):
        triton_bundle.variant["gpu"] = copy.deepcopy(GPU)
    number = len(bundle.document["variants"]) - 1
    bundle.document = json.loads(json.dumps(bundle.listed()))
    put(bundle.document, f"variants.{number}.{path}", "riscv64" if path == "arch" else value)
    with pytest.raises(CLibraryError) as caught:
        library.open(bundle.write())
    with pytest.raises(EdgecompileError) as wanted:
        open_bundle(str(bundle.folder))
    assert wanted.value.exit_code == caught.value.status
    assert rule in named_rules(wanted.value.message)
    assert caught.value.status == c_library.BUNDLE and named_rules(caught.value.text) == {rule}


def test_a_bundle_from_before_0_2_0_is_refused_with_the_cure(
    library: CLibrary, fake_driver: FakeCudart, tmp_path: Path
) -> None:
    bundle = TritonBundle(tmp_path / "x.ecb", library=build_older_gpu_runtime())
    bundle.add_alternatives()
    path = bundle.write()
    error = refused(library, path)
    assert error.status == NativeError.exit_code and "has no " in error.text
    assert "ec_gpu_open" in error.text and "[native-functions]" in error.text
    for refuse in (open_bundle, tune_bundle, describe_bundle):
        with pytest.raises(NativeError, match=r"has no .*ec_gpu_open") as caught:
            refuse(path)
        assert caught.value.hint is not None
        assert "before edgecompile 0.2.0" in caught.value.hint and "python3" in caught.value.hint
    assert fake_driver.live == 0
