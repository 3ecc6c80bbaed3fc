"""edgecompile_runtime.h: the same answers and refusals as the Python runtime gives."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from edgecompile.runtime.cpu.host import VARIANT_VARIABLE
from edgecompile.runtime.model.model import Model
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary, CLibraryError, CModel, make_tensors
from tests.native.c_runtime.models import (  # noqa: F401
    assert_same,
    batches_of,
    copy_bundle,
    inputs_of,
    open_host,
    open_python,
)
from tests.runtime.bundles import change_libraries


def test_description_is_pythons_info(model: CModel, python_model: Model) -> None:
    told, info = model.describe(), python_model.info
    host = told.pop("host"), info.pop("host")
    # C has no threads for single runs.
    assert info.pop("run_threads") is True
    assert told == info
    assert set(host[0]) == {"system", "arch", "cpus", "memory_bytes", "features", "glibc"}
    assert host[0].items() <= host[1].items()


def test_the_runtime_is_shared_with_python(
    library: CLibrary, path: str, python_model: Model, tmp_path: Path
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


def test_texts_and_labels_are_described(library: CLibrary, path: str, tmp_path: Path) -> None:
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


def test_outputs_are_pythons_bit_for_bit(model: CModel, python_model: Model) -> None:
    axis = python_model.manifest.axes[str(python_model.manifest.length_axis)]
    for batch in batches_of(python_model):
        for length in range(axis.lo, axis.hi + 1):
            inputs = inputs_of(python_model, length, batch, seed=length)
            assert_same(model.run(inputs), python_model.run(inputs))


def test_a_bucket_of_ones_choice(model: CModel, python_model: Model) -> None:
    for index, bucket in enumerate(python_model.manifest.buckets):
        inputs = inputs_of(python_model, bucket.axes[str(python_model.manifest.length_axis)].hi)
        assert_same(model.run(inputs, index), python_model.run_bucket(index, inputs))
    with pytest.raises(CLibraryError, match="doesn't take the sizes") as caught:
        model.run(inputs, 0)
    assert caught.value.status == c_library.OUTSIDE
    for bucket_number in (-1, len(python_model.manifest.buckets), 2**31 - 1):
        with pytest.raises(CLibraryError, match="there is no bucket") as caught:
            model.run(inputs, bucket_number)
        assert caught.value.status == c_library.INPUT


def test_null_pointers_are_refused(library: CLibrary, model: CModel, path: str) -> None:
    c = library.c
    outputs = ctypes.POINTER(c_library.Outputs)()
    handle = ctypes.c_void_p()
    version = c_library.ABI_VERSION
    assert c.ecr_open_versioned(version, None, None, ctypes.byref(handle)) == c_library.INPUT
    assert c.ecr_open_versioned(version, path.encode(), None, None) == c_library.INPUT
    assert c.ecr_describe(model.handle, None) == c_library.INPUT
    assert c.ecr_get_signature(model.handle, None) == c_library.INPUT
    assert c.ecr_run(model.handle, None, 2, ctypes.byref(outputs)) == c_library.INPUT
    assert c.ecr_run(model.handle, None, -1, ctypes.byref(outputs)) == c_library.INPUT
    assert c.ecr_run(model.handle, None, 0, None) == c_library.INPUT
    assert b"null" in c.ecr_last_error()
    assert c.ecr_run(None, None, 0, ctypes.byref(outputs)) == c_library.CLOSED
    c.ecr_close(None)
    c.ecr_outputs_free(None)
    c.ecr_text_free(None)


def test_the_headers_version_is_checked(library: CLibrary, path: str) -> None:
    header = c_library.HEADER.read_text()
    assert f"#define ECR_ABI_VERSION {c_library.ABI_VERSION}\n" in header
    assert library.c.ecr_abi_version() == c_library.ABI_VERSION
    with pytest.raises(CLibraryError, match="compiled for version 1") as caught:
        library.open(path, abi_version=1)
    assert caught.value.status == c_library.NATIVE


def test_signature(library: CLibrary, model: CModel, python_model: Model) -> None:
    signature = c_library.Signature()
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
def test_options_out_of_range(library: CLibrary, path: str, options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(CLibraryError, match=f"{name} is ") as caught:
        library.open(path, **options)
    assert caught.value.status == c_library.INPUT


@pytest.mark.parametrize("verify", [0, 1, 2])
def test_options(library: CLibrary, path: str, python_model: Model, verify: int) -> None:
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
    library: CLibrary, path: str, python_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = python_model.info["variant"].encode()
    library.open(path, variant=chosen, lazy=1).close()
    with pytest.raises(CLibraryError, match="there is no variant 'x'") as caught:
        library.open(path, variant=b"x")
    assert caught.value.status == c_library.HOST_STATUS
    for name, reasons in python_model.info["refused_variants"].items():
        with pytest.raises(CLibraryError) as caught:
            library.open(path, variant=name.encode())
        assert caught.value.status == c_library.HOST_STATUS
        assert reasons[0] in caught.value.text
    monkeypatch.setenv(VARIANT_VARIABLE, "y")
    with pytest.raises(CLibraryError, match="there is no variant 'y'"):
        library.open(path)
    library.open(path, variant=chosen, lazy=1).close()


def test_a_closed_model_is_refused(library: CLibrary, path: str, python_model: Model) -> None:
    opened = library.open(path)
    opened.close()
    opened.close()
    with library.open(path) as other:
        for call in (opened.describe, lambda: opened.run(inputs_of(python_model, 5))):
            with pytest.raises(CLibraryError, match="closed") as caught:
                call()
            assert caught.value.status == c_library.CLOSED
        other.describe()


def test_outputs_outlive_the_model(library: CLibrary, path: str, python_model: Model) -> None:
    inputs = inputs_of(python_model, 9, seed=5)
    opened = library.open(path)
    outputs = opened.run_tensors(make_tensors(inputs))
    opened.close()
    assert_same(c_library.read_outputs(outputs), python_model.run(inputs))
    library.c.ecr_outputs_free(outputs)


def test_weights_are_mapped_once(library: CLibrary, path: str) -> None:
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


def test_nothing_leaks(library: CLibrary, path: str, python_model: Model) -> None:
    inputs = inputs_of(python_model, 5)

    def use() -> tuple[int, int]:
        with library.open(path) as opened:
            opened.run(inputs)
            with pytest.raises(CLibraryError):
                opened.run({})
        return len(os.listdir("/proc/self/fd")), python_model._runtime.live_tensors

    first = use()
    for _ in range(3):
        assert use() == first


def test_threads_share_a_model_and_closing_waits(
    library: CLibrary, path: str, python_model: Model
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
            if not (isinstance(error, CLibraryError) and error.status == c_library.CLOSED):
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


def test_errors_belong_to_their_thread(library: CLibrary, tmp_path: Path) -> None:
    def fail(name: str) -> bytes:
        with pytest.raises(CLibraryError):
            library.open(tmp_path / name)
        return bytes(library.c.ecr_last_error())

    other: list[bytes] = []
    assert b"here" in fail("here")
    thread = threading.Thread(target=lambda: other.append(fail("there")))
    thread.start()
    thread.join()
    assert b"there" in other[0]
    assert b"here: doesn't exist" in library.c.ecr_last_error()


def test_only_the_interface_is_exported(library: CLibrary) -> None:
    from edgecompile.audit.elf import read_elf

    found = read_elf(Path(library.c._name))
    header = c_library.HEADER.read_text()
    exported = {name for name in found.exported}
    assert exported == {name for name in exported if name.startswith("ecr_")}
    assert all(f"{name}(" in header for name in exported)
    assert not any("stdc++" in name or "gcc_s" in name for name in found.needed)
