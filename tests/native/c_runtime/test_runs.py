"""Calls of native code and its answers: the same as by the Python runtime.

Random manifests (axes, buckets of both modes, dtypes, bounds) around a runtime library that gives
back what it was given (host_echo.c), and random inputs, good and bad.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.format.dtypes import INPUT_NAMES, value_range
from edgecompile.runtime.model.open_bundle import open_bundle
from edgecompile.toolchain.native import native_sources
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, CLibrary, CLibraryError
from tests.runtime.bundles import DummyBundle

N_BUNDLES = 60
N_RUNS = 40
N_PROGRAMS = 6
RUNTIME = "code/echo/libeckernels-0.so"
Arrays = dict[str, npt.NDArray[Any]]
Answer = tuple[int, dict[str, tuple[str, tuple[int, ...], bytes]]]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The runtime library and the programs, by their place in a bundle."""
    folder = tmp_path_factory.mktemp("echo")
    compiler = MACHINES[NATIVE_ARCH].tool("gcc")
    source = c_library.PROGRAMS / "host_echo.c"
    result = {}
    for name, options in {
        RUNTIME: ["-ldl"],
        **{f"code/echo/bucket-{i}.so": [f"-DECHO_TAG={i}"] for i in range(N_PROGRAMS)},
    }.items():
        target = folder / Path(name).name
        command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", *c_library.WARNINGS]
        command += [f"-I{native_sources()}", str(source), *options, "-o", str(target)]
        subprocess.run(command, check=True)
        result[name] = target.read_bytes()
    return result


def number(rng: random.Random, dtype: str) -> int | float:
    """A value of the dtype; floats are halves, which every float type holds exactly."""
    if dtype == "bool":
        return rng.randrange(2)
    if dtype.startswith("float"):
        return rng.randrange(-40, 41) / 2
    low, high = value_range(dtype)
    return rng.choice([int(low), int(high), rng.randrange(100), 0, 1])


def random_input(rng: random.Random, name: str, shape: list[int | str]) -> dict[str, Any]:
    dtype = rng.choice(INPUT_NAMES)
    bounds = sorted(number(rng, dtype) for _ in range(2)) if rng.random() < 0.4 else None
    pad = number(rng, dtype) if bounds is None else rng.choice(bounds)
    return {"name": name, "dtype": dtype, "shape": shape, "pad": pad, "bounds": bounds}


def random_document(rng: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """A valid manifest, for what ``echo`` made."""
    axes = rng.sample(["batch", "length", "width"], rng.randrange(1, 4))
    length = rng.choice([*axes, None])
    buckets = []
    for _ in range(rng.randrange(1, N_PROGRAMS + 1)):
        extents = {}
        for axis in rng.sample(axes, len(axes)):
            lo, hint, hi = sorted(rng.choices(range(1, 9), k=3))
            extents[axis] = {"lo": lo, "hi": hi, "hint": hint}
        bucket: dict[str, Any] = {"mode": rng.choice(["exact", "pad"]), "axes": extents}
        if length is None:
            bucket["mode"] = "exact"
        elif bucket["mode"] == "pad" and rng.random() < 0.6:
            others = [axis for axis in axes if axis != length]
            padded = [length, *rng.sample(others, rng.randrange(len(others) + 1))]
            bucket["pad_axes"] = rng.sample(padded, len(padded))
        buckets.append(bucket)
    reach = {
        axis: {
            "lo": min(bucket["axes"][axis]["lo"] for bucket in buckets),
            "hi": max(bucket["axes"][axis]["hi"] for bucket in buckets),
        }
        for axis in axes
    }
    first: list[int | str] = [*axes, *rng.choice([[], [2]])]
    second: list[int | str] = rng.choices([*axes, 3], k=rng.randrange(4))
    inputs = [
        random_input(rng, "first", rng.sample(first, len(first))),
        random_input(rng, "second", second),
    ]
    outputs = [
        {"name": f"of_{item['name']}", "dtype": item["dtype"], "shape": item["shape"]}
        for item in inputs
    ]
    programs = [f"code/echo/bucket-{i}.so" for i in range(len(buckets))]
    variant = {
        "name": "echo", "arch": NATIVE_ARCH, "backend": "aoti-cpu", "requires": ["echo"],
        "glibc": None, "rank": 1, "runtime": RUNTIME, "programs": programs,
    }  # fmt: skip
    return {
        **document,
        "inputs": inputs,
        "outputs": [*outputs, {"name": "seen", "dtype": "int64", "shape": [24]}],
        "axes": reach,
        "length_axis": length,
        "buckets": buckets,
        "variants": [variant],
        "probes": {NATIVE_ARCH: RUNTIME},
        "golden": [],
    }


def random_array(rng: random.Random, spec: dict[str, Any], shape: list[int]) -> npt.NDArray[Any]:
    """Values within the bounds."""
    array = np.empty(shape, spec["dtype"])
    for index in np.ndindex(*shape):
        value = number(rng, spec["dtype"])
        if spec["bounds"] is not None:
            value = min(max(value, spec["bounds"][0]), spec["bounds"][1])
        array[index] = value
    return array


def random_inputs(rng: random.Random, document: dict[str, Any]) -> Arrays:
    """Mostly such as a bucket takes; else of some other size, dtype, rank, name or value."""
    bucket = rng.choice(document["buckets"])
    sizes = {axis: rng.randint(item["lo"], item["hi"]) for axis, item in bucket["axes"].items()}
    if rng.random() < 0.15:
        sizes[rng.choice(list(sizes))] = rng.randrange(11)
    arrays = {
        spec["name"]: random_array(rng, spec, [sizes.get(dim, dim) for dim in spec["shape"]])
        for spec in document["inputs"]
    }
    name = rng.choice(list(arrays))
    spec = document["inputs"][0 if name == "first" else 1]
    array = arrays[name]
    change = rng.randrange(14)
    if change == 0:
        arrays[name] = np.zeros(array.shape, rng.choice(INPUT_NAMES))
    elif change == 1:
        arrays[name] = array[None]
    elif change == 2:
        del arrays[name]
    elif change == 3:
        arrays[rng.choice(["frist", "x", name + "_"])] = array
    elif change == 4 and array.ndim:
        arrays[name] = np.repeat(array, 2, rng.randrange(array.ndim))
    elif change == 5 and array.size:
        array.reshape(-1)[rng.randrange(array.size)] = number(rng, spec["dtype"])
    elif change == 6 and array.size and spec["dtype"].startswith("float"):
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return arrays


def answer_of(call: Callable[[], Arrays]) -> Answer:
    """The status and the outputs."""
    try:
        outputs = call()
    except CLibraryError as error:
        return error.status, {}
    except EdgecompileError as error:
        return error.exit_code, {}
    return 0, {k: (v.dtype.name, v.shape, v.tobytes()) for k, v in outputs.items()}


def test_runs_are_pythons_bit_for_bit(
    library: CLibrary, echo: dict[str, bytes], tmp_path: Path
) -> None:
    rng = random.Random(1)
    statuses: dict[int, int] = {}
    buckets = set()
    padded = 0
    for i in range(N_BUNDLES):
        bundle = DummyBundle(tmp_path / str(i))
        document = random_document(rng, bundle.document)
        bundle.document = document
        bundle.files = {**bundle.files, **echo}
        path = bundle.write()
        with open_bundle(path) as python, library.open(path) as ours:
            told, info = ours.describe(), python.info
            assert (told["buckets"], told["axes"]) == (document["buckets"], info["axes"])
            for _ in range(N_RUNS):
                inputs = random_inputs(rng, document)
                chosen = rng.randrange(len(document["buckets"])) if rng.random() < 0.3 else None
                if chosen is None:
                    want = answer_of(lambda: python.run(inputs))  # noqa: B023
                else:
                    want = answer_of(lambda: python.run_bucket(chosen, inputs))  # noqa: B023
                got = answer_of(lambda: ours.run(inputs, chosen))  # noqa: B023
                shapes = {name: (array.dtype, array.shape) for name, array in inputs.items()}
                assert got == want, f"bundle {i}, bucket {chosen}, {shapes}"
                statuses[got[0]] = statuses.get(got[0], 0) + 1
                if got[0] == 0:
                    seen = np.frombuffer(got[1]["seen"][2], np.int64)
                    buckets.add(int(seen[0]))
                    first = inputs["first"]
                    padded += tuple(seen[4 : 4 + first.ndim]) != first.shape
    # The comparison saw every outcome, and often.
    assert set(statuses) == {0, c_library.INPUT, c_library.OUTSIDE}
    assert min(statuses.values()) > 100
    assert buckets == set(range(N_PROGRAMS))
    assert padded > 100
