"""Mutations of good bundles through the C runtime: judged as in Python."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.c_runtime.agreement import (  # noqa: F401
    Compile,
    assert_agree,
    build_program,
    dummy,
    make_compiler,
    make_folder,
    take_machine,
)
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, Machine
from tests.runtime.bundles import pack_weights
from tests.runtime.texts import add_texts

pytestmark = pytest.mark.slow

N_MUTATIONS = 1500
N_HEADERS = 300

WEIRD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 64, 65, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 0.5, 1.0, -0.0,
    1e308, "", "x", "length", "batch", "exact", "pad", "int64", "float16", "..", "a/b", "\ud800",
    "\u00e9", "\U0001f600", "n" * 200, "n" * 201, [], {}, [0, 1], [1, 0], [None], ["length"],
    ["length", "batch"], {"lo": 1, "hi": 2}, {"lo": 1, "hi": 64, "hint": 3}, {"size": 0, "sha256": "0" * 64},
]  # fmt: skip
FRAGMENTS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u12", b"\\ud800", b"\\ud800\\udc00", b"\\x",
    b"\x00", b"\x1f", b"\x7f", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82\xac", b" ", b"\t",
    b"0", b"-", b"1.", b".5", b"1e", b"1e5", b"-0", b"00", b"NaN", b"-Infinity", b"nul", b"true",
    b"18446744073709551616", b"-9223372036854775809", b"1" * 65 + b".0", b"1e400", b'"name":1,', b"/**/",
]  # fmt: skip


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def mutate_value(document: Any, rng: random.Random) -> None:
    """One change of the meaning: replace, delete, add or copy."""
    container = rng.choice(list(containers(document)))
    keys = list(container) if isinstance(container, dict) else range(len(container))
    key = rng.choice(list(keys))
    action = rng.randrange(6)
    if action < 3:
        container[key] = copy.deepcopy(rng.choice(WEIRD))
    elif action == 3:
        del container[key]
    elif action == 4 and isinstance(container, list):
        container.append(copy.deepcopy(container[key]))
    elif isinstance(container, dict):
        container[rng.choice(["x", "length", "batch", "pad_axes", "pad", "", "é"])] = copy.deepcopy(
            rng.choice([container[key], rng.choice(WEIRD)])
        )


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One change of the text: insert, overwrite, cut or double."""
    at = rng.randrange(len(data))
    action = rng.randrange(5)
    if action == 0:
        return data[:at] + rng.choice(FRAGMENTS) + data[at:]
    if action == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if action == 2:
        return data[:at] + data[at + rng.randrange(1, 9) :]
    if action == 3:
        end = at + rng.randrange(1, 40)
        return data[:end] + data[at:end] + data[end:]
    fragment = rng.choice(FRAGMENTS)
    return data[:at] + fragment + data[at + len(fragment) :]


def mutations(document: dict[str, Any], count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(count):
        changed = copy.deepcopy(document)
        for _ in range(rng.choice([0, 1, 1, 2])):
            mutate_value(changed, rng)
        data = json.dumps(changed, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        for _ in range(rng.choice([0, 0, 1, 2])):
            data = mutate_bytes(data, rng)
        yield data


def test_mutated_manifests_are_judged_as_in_python(
    machine: Machine, program: Path, folder: Path, compile_for: Callable[[Machine], Compile]
) -> None:
    bundle = dummy(folder, machine, compile_for(machine))
    document = bundle.listed()
    add_texts(bundle)
    texts = {**bundle.listed(), "golden": []}
    generative = dummy(folder, machine, compile_for(machine), generative=True).listed()
    changed = [
        *mutations(document, N_MUTATIONS // 2, seed=1),
        *mutations(texts, N_MUTATIONS // 3, seed=3),
        *mutations(generative, N_MUTATIONS // 2, seed=11),
    ]
    cases = {}
    for i, data in enumerate(changed):
        # No other file: what is a good manifest still is refused before anything is loaded.
        path = folder / "mutated" / str(i)
        path.mkdir(parents=True)
        (path / "manifest.json").write_bytes(data)
        cases[str(i)] = (path, path)
    told, pythons = assert_agree(machine, program, cases)
    assert len({verdict.rules for verdict in pythons}) > 40
    assert len({verdict.rules for verdict in told}) > 30  # one each
    assert {verdict.status for verdict in told} >= {20, 22}


def test_mutated_weights_are_judged_as_in_python(
    machine: Machine, program: Path, folder: Path, compile_for: Callable[[Machine], Compile]
) -> None:
    header = {
        "__metadata__": {"format": "edgecompile"},
        "a": {"dtype": "F8_E4M3", "shape": [4, 16], "data_offsets": [0, 64]},
        "b": {"dtype": "I16", "shape": [3], "data_offsets": [64, 70]},
        "__pad.0": {"dtype": "U8", "shape": [58], "data_offsets": [70, 128]},
        "c.é": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [128, 136]},
    }
    native = MACHINES[NATIVE_ARCH]
    cases = {}
    for i, text in enumerate(mutations(header, N_HEADERS, seed=2)):
        paths = []
        for here in (machine, native):
            path = folder / f"header-{here.arch}" / str(i)
            paths.append(path)
            if path.exists():
                continue
            bundle = dummy(path, here, compile_for(here))
            bundle.files["weights.fp32"] = pack_weights(text, bytes(136))
            bundle.write()
        cases[str(i)] = (paths[0], paths[1])
    told, _ = assert_agree(machine, program, cases)
    assert len({verdict.rules for verdict in told}) > 10
    shutil.rmtree(folder)
