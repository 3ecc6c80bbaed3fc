"""edgecompile_runtime.h: the same answers and refusals as the Python runtime gives."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.cpu.host import VARIANT_VARIABLE
from edgecompile.runtime.errors import EdgecompileError
from edgecompile.runtime.model import Model
from edgecompile.runtime.start import open_bundle
from tests.native import c_host
from tests.native.c_host import HostError, HostLibrary, HostModel, make_tensors
from tests.runtime.bundles import change_libraries

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="session")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny bundle: three exact buckets over lengths, batch 1 or 2.

    With libraries of their own content: what other tests have loaded of that bundle, in Python, isn't
    what this library loads, but for the runtime, whose SONAME is the same.
    """
    given = os.environ.get("EDGECOMPILE_TEST_BUNDLE")
    folder = tmp_path_factory.mktemp("host") / "tiny.ecb"
    shutil.copytree(given or request.getfixturevalue("tiny_bundle"), folder)
    change_libraries(folder)
    return str(folder)


@pytest.fixture(scope="module")
def python_model(path: str) -> Iterator[Model]:
    with open_bundle(path) as model:
        yield model


@pytest.fixture(scope="module")
def model(library: HostLibrary, path: str) -> Iterator[HostModel]:
    with library.open(path) as opened:
        yield opened


def inputs_of(python_model: Model, length: int, batch: int = 1, seed: int = 0) -> Arrays:
    axis = python_model.manifest.length_axis
    assert axis is not None
    sizes = {name: batch for name in python_model.manifest.axes} | {axis: length}
    return make_inputs(python_model.manifest, sizes, seed)


def batches_of(python_model: Model) -> range:
    axes = python_model.manifest.axes
    others = [axes[name] for name in axes if name != python_model.manifest.length_axis]
    return range(others[0].lo, others[0].hi + 1) if others else range(1, 2)


def assert_same(got: Arrays, want: Arrays) -> None:
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_description_is_pythons_info(model: HostModel, python_model: Model) -> None:
    told, info = model.describe(), python_model.info
    host = told.pop("host"), info.pop("host")
    # C has no threads for single runs.
    assert info.pop("run_threads") is True
    assert told == info
    assert set(host[0]) == {"system", "arch", "cpus", "memory_bytes", "features", "glibc"}
    assert host[0].items() <= host[1].items()


def test_the_runtime_is_shared_with_python(
    library: HostLibrary, path: str, python_model: Model, tmp_path: Path
) -> None:
    """Also one that another linker made of the same objects: programs are bound to the first."""
    folder = tmp_path / "relinked.ecb"
    shutil.copytree(path, folder)
    change_libraries(folder)
    before = python_model._runtime.threads
    try:
        for count in (2, 1):
            with library.open(str(folder), threads=count) as relinked:
                assert relinked.describe()["threads"] == count
                assert python_model._runtime.threads == count
    finally:
        python_model._runtime.threads = before


def test_texts_and_labels_are_described(library: HostLibrary, path: str, tmp_path: Path) -> None:
    folder = tmp_path / "labelled"
    shutil.copytree(path, folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    output = next(o for o in manifest["outputs"] if isinstance(o["shape"][-1], int))
    manifest["labels"] = {output["name"]: [f"größe {i}" for i in range(output["shape"][-1])]}
    prompts = {"query": "query: ", "passage": "passage: "}
    manifest["text"].update(prompts=prompts, default_prompt="query", prepare=["strip", "lower"])
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with library.open(str(folder)) as model:
        told = model.describe()
    assert told["labels"] == manifest["labels"]
    assert told["text"] == manifest["text"]


def test_outputs_are_pythons_bit_for_bit(model: HostModel, python_model: Model) -> None:
    axis = python_model.manifest.axes[str(python_model.manifest.length_axis)]
    for batch in batches_of(python_model):
        for length in range(axis.lo, axis.hi + 1):
            inputs = inputs_of(python_model, length, batch, seed=length)
            assert_same(model.run(inputs), python_model.run(inputs))


def test_the_order_of_inputs_is_free(model: HostModel, python_model: Model) -> None:
    inputs = inputs_of(python_model, 5)
    assert_same(model.run(dict(reversed(inputs.items()))), python_model.run(inputs))


def test_a_bucket_of_ones_choice(model: HostModel, python_model: Model) -> None:
    for index, bucket in enumerate(python_model.manifest.buckets):
        inputs = inputs_of(python_model, bucket.axes[str(python_model.manifest.length_axis)].hi)
        assert_same(model.run(inputs, index), python_model.run_bucket(index, inputs))
    with pytest.raises(HostError, match="doesn't take the sizes") as caught:
        model.run(inputs, 0)
    assert caught.value.status == c_host.OUTSIDE
    for bucket_number in (-1, len(python_model.manifest.buckets), 2**31 - 1):
        with pytest.raises(HostError, match="there is no bucket") as caught:
            model.run(inputs, bucket_number)
        assert caught.value.status == c_host.INPUT


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "int8", "bool"])
def test_narrower_integers_are_widened(model: HostModel, python_model: Model, dtype: str) -> None:
    inputs = inputs_of(python_model, 6, seed=3)
    narrow = {name: (array % 2).astype(dtype) for name, array in inputs.items()}
    assert_same(model.run(narrow), python_model.run(narrow))


@pytest.mark.parametrize("offset", [1, 3, 8, 24])
def test_data_may_lie_at_any_address(model: HostModel, python_model: Model, offset: int) -> None:
    inputs = inputs_of(python_model, 6, seed=4)
    tensors = make_tensors(inputs)
    memory = [ctypes.create_string_buffer(array.nbytes + 128) for array in inputs.values()]
    for tensor, buffer, array in zip(tensors, memory, inputs.values(), strict=True):
        tensor.data = -(-ctypes.addressof(buffer) // 64) * 64 + offset
        ctypes.memmove(tensor.data, array.ctypes.data, array.nbytes)
    outputs = model.run_tensors(tensors)
    assert_same(c_host.read_outputs(outputs), python_model.run(inputs))
    model.library.c.ecr_outputs_free(outputs)


def swap(name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Any:
    return lambda inputs: {**inputs, name: np.asarray(change(inputs[name]), order="C")}


def with_value(value: int) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    def change(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = array.copy()
        array.reshape(-1)[-1] = value
        return array

    return change


def words(text: str) -> list[str]:
    """Those of a text, without their order."""
    return sorted(text.replace(",", " ").split())


IDS, MASK = "input_ids", "attention_mask"
BAD_INPUTS: list[tuple[str, Any]] = [
    ("is missing", lambda inputs: {MASK: inputs[MASK]}),
    ("is missing", lambda inputs: {}),
    ("no such input", lambda inputs: {**inputs, "x": inputs[IDS]}),
    ("no such input", lambda inputs: {"inputs_ids": inputs[IDS], MASK: inputs[MASK]}),
    ("has dtype float32, must be int64", swap(IDS, lambda a: a.astype(np.float32))),
    ("must be [batch, length] with 2", swap(IDS, lambda a: a[0])),
    ("with 0 dimensions", swap(MASK, lambda a: np.zeros((), np.int64))),
    ("but dimension 1 of input_ids has", swap(MASK, lambda a: a[:, 1:])),
    ("values lie outside 0..", swap(IDS, with_value(2**40))),
    ("values lie outside 0..", swap(IDS, with_value(-1))),
    ("the first is 2 at [0, 5]", swap(MASK, with_value(2))),
    ("the first is -7", lambda inputs: {n: with_value(-7)(a) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: np.repeat(a, 20, 1) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: np.repeat(a, 5, 0) for n, a in inputs.items()}),
    ("no bucket takes", lambda inputs: {n: a[:, :0].copy() for n, a in inputs.items()}),
]


@pytest.mark.parametrize(("text", "change"), BAD_INPUTS, ids=range(len(BAD_INPUTS)))
def test_bad_inputs_are_refused_as_in_python(
    model: HostModel, python_model: Model, text: str, change: Callable[[Arrays], Arrays]
) -> None:
    inputs = change(inputs_of(python_model, 6))
    with pytest.raises(EdgecompileError) as wanted:
        python_model.run(inputs)
    with pytest.raises(HostError) as caught:
        model.run(inputs)
    assert caught.value.status == wanted.value.exit_code
    assert text in caught.value.text
    if "values lie outside" in text or "bucket" in text:
        # Buckets list their axes in the manifest's order here, in their own there.
        assert words(caught.value.text) == words(str(wanted.value))


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("has no name", "name", None),
        ("has no data", "data", None),
        ("bytes, but int64[1, 6] has 48", "nbytes", 47),
        ("bytes, but int64[1, 6] has 48", "nbytes", 2**62),
        ("has dtype code 15", "dtype", 15),
        ("has dtype code -1", "dtype", -1),
        ("has 9 dimensions", "ndim", 9),
        ("has -1 dimensions", "ndim", -1),
        ("impossible sizes", "sizes", (1, -6)),
        ("impossible sizes", "sizes", (2**62, 2**62)),
        ("is given twice", "name", MASK.encode()),
    ],
)
def test_tensors_that_lie_are_refused(
    model: HostModel, python_model: Model, text: str, field: str, value: Any
) -> None:
    inputs = inputs_of(python_model, 6)
    tensors = make_tensors(inputs)
    if field == "sizes":
        tensors[0].sizes[:2] = value
    else:
        setattr(tensors[0], field, value)
    with pytest.raises(HostError) as caught:
        model.run_tensors(tensors)
    assert caught.value.status == c_host.INPUT
    assert text in caught.value.text


def test_a_bool_that_isnt_one_is_refused(model: HostModel, python_model: Model) -> None:
    inputs = inputs_of(python_model, 6)
    inputs[MASK] = np.array([[1, 1, 0, 2, 1, 1]], np.uint8).view(np.bool_)
    with pytest.raises(HostError, match="byte 3 is 2, a bool must be 0 or 1"):
        model.run(inputs)


def test_null_pointers_are_refused(library: HostLibrary, model: HostModel, path: str) -> None:
    c = library.c
    outputs = ctypes.POINTER(c_host.Outputs)()
    handle = ctypes.c_void_p()
    version = c_host.ABI_VERSION
    assert c.ecr_open_versioned(version, None, None, ctypes.byref(handle)) == c_host.INPUT
    assert c.ecr_open_versioned(version, path.encode(), None, None) == c_host.INPUT
    assert c.ecr_describe(model.handle, None) == c_host.INPUT
    assert c.ecr_get_signature(model.handle, None) == c_host.INPUT
    assert c.ecr_run(model.handle, None, 2, ctypes.byref(outputs)) == c_host.INPUT
    assert c.ecr_run(model.handle, None, -1, ctypes.byref(outputs)) == c_host.INPUT
    assert c.ecr_run(model.handle, None, 0, None) == c_host.INPUT
    assert b"null" in c.ecr_last_error()
    assert c.ecr_run(None, None, 0, ctypes.byref(outputs)) == c_host.CLOSED
    c.ecr_close(None)
    c.ecr_outputs_free(None)
    c.ecr_text_free(None)


def test_the_headers_version_is_checked(library: HostLibrary, path: str) -> None:
    header = c_host.HEADER.read_text()
    assert f"#define EC_HOST_ABI_VERSION {c_host.ABI_VERSION}\n" in header
    assert library.c.ecr_abi_version() == c_host.ABI_VERSION
    with pytest.raises(HostError, match="compiled for version 1") as caught:
        library.open(path, abi_version=1)
    assert caught.value.status == c_host.NATIVE


def test_signature(library: HostLibrary, model: HostModel, python_model: Model) -> None:
    signature = c_host.Signature()
    library.check(library.c.ecr_get_signature(model.handle, ctypes.byref(signature)))
    manifest = python_model.manifest
    assert signature.name.decode() == manifest.name
    assert signature.variant.decode() == python_model.info["variant"]
    assert signature.n_buckets == len(manifest.buckets)
    assert (signature.atol, signature.rtol) == (manifest.tolerance.atol, manifest.tolerance.rtol)
    for count, specs, wanted in (
        (signature.n_inputs, signature.inputs, manifest.inputs),
        (signature.n_outputs, signature.outputs, manifest.outputs),
    ):
        assert count == len(wanted)
        for spec, item in zip(specs[:count], wanted, strict=True):
            assert spec.name.decode() == item.name
            assert spec.ndim == len(item.shape)
            for dim, least, most in zip(item.shape, spec.least, spec.most, strict=False):
                if isinstance(dim, str):
                    assert (least, most) == (manifest.axes[dim].lo, manifest.axes[dim].hi)
                elif dim is not None:
                    assert least == most == dim


@pytest.mark.parametrize(
    "options",
    [{"threads": -1}, {"threads": 4097}, {"concurrency": -1}, {"verify": 3}, {"verify": -1}],
)
def test_options_out_of_range(library: HostLibrary, path: str, options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(HostError, match=f"{name} is ") as caught:
        library.open(path, **options)
    assert caught.value.status == c_host.INPUT


@pytest.mark.parametrize("verify", [0, 1, 2])
def test_options(library: HostLibrary, path: str, python_model: Model, verify: int) -> None:
    before = python_model.info["threads"]
    options = {"threads": 1, "concurrency": 3, "lazy": 1, "verify": verify}
    with library.open(path, **options) as opened:
        told = opened.describe()
        assert (told["threads"], told["concurrency"], told["loaded_buckets"]) == (1, 3, [])
        inputs = inputs_of(python_model, 5)
        assert_same(opened.run(inputs), python_model.run(inputs))
        assert len(opened.describe()["loaded_buckets"]) == 1
    library.open(path, threads=before).close()


def test_a_variant_of_ones_choice(
    library: HostLibrary, path: str, python_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = python_model.info["variant"].encode()
    library.open(path, variant=chosen, lazy=1).close()
    with pytest.raises(HostError, match="there is no variant 'x'") as caught:
        library.open(path, variant=b"x")
    assert caught.value.status == c_host.HOST_STATUS
    for name, reasons in python_model.info["refused_variants"].items():
        with pytest.raises(HostError) as caught:
            library.open(path, variant=name.encode())
        assert caught.value.status == c_host.HOST_STATUS
        assert reasons[0] in caught.value.text
    monkeypatch.setenv(VARIANT_VARIABLE, "y")
    with pytest.raises(HostError, match="there is no variant 'y'"):
        library.open(path)
    library.open(path, variant=chosen, lazy=1).close()


def test_an_input_with_a_default_may_be_left_out(
    library: HostLibrary, path: str, python_model: Model, tmp_path: Path
) -> None:
    folder = tmp_path / "default.ecb"
    shutil.copytree(path, folder)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    place = next(i for i, item in enumerate(manifest["inputs"]) if item["name"] == "attention_mask")
    manifest["inputs"][place]["default"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    inputs = inputs_of(python_model, 5, seed=4)
    inputs["attention_mask"][:] = 1
    want = python_model.run(inputs)
    mask = inputs.pop("attention_mask")
    with library.open(folder) as opened, open_bundle(folder) as python:
        assert opened.describe()["inputs"] == python.info["inputs"]
        assert_same(opened.run(inputs), want)
        assert_same(python.run(inputs), want)
        misspelt = {**inputs, "attention_mast": mask}
        with pytest.raises(HostError, match="attention_mast: the model has no such input"):
            opened.run(misspelt)
        with pytest.raises(HostError, match="input_ids: is missing"):
            opened.run({})
        wide = {"input_ids": np.ones((1, 10**6), np.int64)}
        with pytest.raises(HostError, match="no bucket") as caught:
            opened.run(wide)
        assert caught.value.status == c_host.OUTSIDE


def test_a_closed_model_is_refused(library: HostLibrary, path: str, python_model: Model) -> None:
    opened = library.open(path)
    opened.close()
    opened.close()
    with library.open(path) as other:
        for call in (opened.describe, lambda: opened.run(inputs_of(python_model, 5))):
            with pytest.raises(HostError, match="closed") as caught:
                call()
            assert caught.value.status == c_host.CLOSED
        other.describe()


def test_outputs_outlive_the_model(library: HostLibrary, path: str, python_model: Model) -> None:
    inputs = inputs_of(python_model, 9, seed=5)
    opened = library.open(path)
    outputs = opened.run_tensors(make_tensors(inputs))
    opened.close()
    assert_same(c_host.read_outputs(outputs), python_model.run(inputs))
    library.c.ecr_outputs_free(outputs)


def test_weights_are_mapped_once(library: HostLibrary, path: str) -> None:
    def count() -> int:
        # Only what this library mapped: Python's own mapping is there too.
        return Path("/proc/self/maps").read_text().count("weights.fp32")

    before = count()
    with library.open(path, lazy=1):
        first = count()
        with library.open(path, lazy=1):
            assert count() == first
    assert count() <= first
    assert before <= first <= before + 1


def test_nothing_leaks(library: HostLibrary, path: str, python_model: Model) -> None:
    inputs = inputs_of(python_model, 5)

    def use() -> tuple[int, int]:
        with library.open(path) as opened:
            opened.run(inputs)
            with pytest.raises(HostError):
                opened.run({})
        return len(os.listdir("/proc/self/fd")), python_model._runtime.live_tensors

    first = use()
    for _ in range(3):
        assert use() == first


def test_threads_share_a_model_and_closing_waits(
    library: HostLibrary, path: str, python_model: Model
) -> None:
    lengths = [4, 9, 20, 31]
    cases = [inputs_of(python_model, length, seed=length) for length in lengths]
    wanted = [python_model.run(inputs) for inputs in cases]
    opened = library.open(path, lazy=1, concurrency=2)
    problems: list[object] = []
    served = [0] * len(cases)
    warm = threading.Barrier(len(cases) + 1)

    def work(number: int) -> None:
        try:
            while True:
                assert_same(opened.run(cases[number]), wanted[number])
                served[number] += 1
                if served[number] == 3:
                    warm.wait()
        except Exception as error:
            if not (isinstance(error, HostError) and error.status == c_host.CLOSED):
                problems.append(error)
                warm.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    warm.wait()
    opened.close()
    for thread in threads:
        thread.join()
    assert problems == []
    assert min(served) >= 3


def test_errors_belong_to_their_thread(library: HostLibrary, tmp_path: Path) -> None:
    def fail(name: str) -> bytes:
        with pytest.raises(HostError):
            library.open(tmp_path / name)
        return bytes(library.c.ecr_last_error())

    other: list[bytes] = []
    assert b"here" in fail("here")
    thread = threading.Thread(target=lambda: other.append(fail("there")))
    thread.start()
    thread.join()
    assert b"there" in other[0]
    assert b"here: doesn't exist" in library.c.ecr_last_error()


def test_only_the_interface_is_exported(library: HostLibrary) -> None:
    from edgecompile.audit.elf import read_elf

    found = read_elf(Path(library.c._name))
    header = c_host.HEADER.read_text()
    exported = {name for name in found.exported}
    assert exported == {name for name in exported if name.startswith("ecr_")}
    assert all(f"{name}(" in header for name in exported)
    assert not any("stdc++" in name or "gcc_s" in name for name in found.needed)
