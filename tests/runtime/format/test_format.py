"""A hostile fixture for every rule of FORMAT.md, and a check that there is one for every rule."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgecompile.runtime
from edgecompile.runtime.base.errors import (
    BundleError,
    DamagedBundleError,
    EdgecompileError,
    NativeError,
)
from edgecompile.runtime.cpu.functions import FUNCTIONS
from edgecompile.runtime.cpu.host import architecture
from edgecompile.runtime.format.manifest.parse import MAX_MANIFEST_BYTES
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.runtime.bundles import DummyBundle, each_rule, make_weights, pack_weights
from tests.runtime.format.refusals import read_everything
from tests.runtime.format.test_hostile_manifest import HOSTILE_GPUS, HOSTILE_VALUES
from tests.runtime.generations import (
    HOSTILE_GENERATIONS,
    HOSTILE_GOLDEN_GENERATIONS,
    HOSTILE_GOLDEN_SOURCES,
    HOSTILE_LOOKUPS,
    HOSTILE_SOURCES,
    HOSTILE_STATES,
    HOSTILE_STATES_ALONE,
)
from tests.runtime.policies import HOSTILE_POLICIES
from tests.runtime.recipes import HOSTILE_RECIPES
from tests.runtime.signed import APART, ATTACKS
from tests.runtime.speeches import HOSTILE_CTCS, HOSTILE_SPEECHES
from tests.runtime.states import HOSTILE_STREAMS
from tests.runtime.texts import HOSTILE_TEXTS

FORMAT = Path(edgecompile.runtime.__file__).with_name("FORMAT.md").read_text()
RUNTIME_SOURCES = sorted(Path(edgecompile.runtime.__file__).parent.rglob("*.py"))


def test_the_fixture_itself_is_valid(bundle: DummyBundle) -> None:
    read_everything(bundle.write())


# --- The bytes of the manifest
def replace(old: str, new: str) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)

    return change


HOSTILE_BYTES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("json-size", lambda data: data + b" " * MAX_MANIFEST_BYTES),
    ("json-utf8", lambda data: b"\xff" + data),
    ("json-utf8", lambda data: data.decode().encode("utf-16")),
    ("json-syntax", lambda data: b""),
    ("json-syntax", lambda data: data[:-1]),
    ("json-syntax", lambda data: data + b"x"),
    ("json-syntax", lambda data: b"\xef\xbb\xbf" + data),
    ("json-syntax", lambda data: b'{"a": "' + b'\\"' * 500_000),
    ("json-depth", replace('"plan": {}', '"plan": ' + '{"a":' * 32 + "1" + "}" * 32)),
    ("json-depth", lambda data: b"[" * 1_000_000),
    ("json-duplicate", replace('"name": "tiny"', '"name": "tiny", "name": "tiny"')),
    ("json-number", replace('"atol": 1e-05', '"atol": NaN')),
    ("json-number", replace('"atol": 1e-05', '"atol": -Infinity')),
    ("json-number", replace('"atol": 1e-05', '"atol": 1e999')),
    ("json-number", replace('"hi": 64', '"hi": 9223372036854775808')),
    ("json-number", replace('"hi": 64', '"hi": ' + "9" * 1_000_000)),
    ("json-object", lambda data: b"[]"),
    ("json-object", lambda data: b"null"),
]


@each_rule("rule, change", HOSTILE_BYTES)
def test_hostile_bytes(bundle: DummyBundle, rule: str, change: Callable[[bytes], bytes]) -> None:
    data = change(json.dumps(bundle.listed()).encode())
    with pytest.raises(BundleError, match=re.escape(f"[{rule}]")):
        read_everything(bundle.write(data))


# --- The folder and its files
def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def link(name: str, target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(target)

    return change


def fifo(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def as_folder(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


HOSTILE_FOLDERS: list[tuple[str, type[EdgecompileError], Callable[[Path], Any]]] = [
    ("bundle-folder", BundleError, lambda folder: folder.rename(folder.parent / "x")),
    ("bundle-manifest", BundleError, remove("manifest.json")),
    ("bundle-manifest", BundleError, link("manifest.json", "../elsewhere")),
    ("bundle-manifest", BundleError, fifo("manifest.json")),
    ("bundle-manifest", BundleError, as_folder("manifest.json")),
    ("file-missing", DamagedBundleError, remove("reports/plan.json")),
    ("file-kind", DamagedBundleError, link("weights.fp32", "../elsewhere")),
    ("file-kind", DamagedBundleError, link("code/x86-64", "../../elsewhere")),
    ("file-kind", DamagedBundleError, fifo("golden/0-hint.npz")),
    ("file-kind", DamagedBundleError, as_folder("golden/0-hint.npz")),
    ("file-size-differs", DamagedBundleError, rewrite("weights.fp32", lambda data: data[:-1])),
    ("file-size-differs", DamagedBundleError, rewrite("weights.fp32", lambda data: data + b"0")),
    ("file-size-differs", DamagedBundleError, rewrite("weights.fp32", lambda data: b"")),
    ("file-hash", DamagedBundleError, rewrite("weights.fp32", lambda data: data[:-1] + b"\1")),
    ("file-hash", DamagedBundleError, rewrite("reports/plan.json", lambda data: b"[]")),
    ("file-unlisted", DamagedBundleError, lambda folder: (folder / "runpy.py").write_text("")),
    ("file-unlisted", DamagedBundleError, lambda folder: (folder / "code" / "empty").mkdir()),
    ("file-unlisted", DamagedBundleError, lambda folder: os.mkfifo(folder / "golden" / "pipe")),
    ("file-unlisted", DamagedBundleError, lambda folder: (folder / "a").symlink_to("weights.fp32")),
]


@each_rule("rule, error, change", HOSTILE_FOLDERS)
def test_hostile_folder(
    bundle: DummyBundle, rule: str, error: type[EdgecompileError], change: Callable[[Path], Any]
) -> None:
    path = bundle.write()
    change(bundle.folder)
    with pytest.raises(BundleError, match=re.escape(f"[{rule}]")) as caught:
        read_everything(path)
    assert caught.type is error


# --- Weights: bytes of the file, with sizes and hashes that fit them
def tensor(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def weights(**entries: Any) -> bytes:
    return make_weights(entries, bytes(128))


HOSTILE_WEIGHTS: list[tuple[str, bytes]] = [
    ("weights-header", b"\0" * 7),
    ("weights-header", b"\0" * 72),
    ("weights-header", (2**64 - 1).to_bytes(8, "little") + b"{}"),
    ("weights-header", (57).to_bytes(8, "little") + b" " * 56),
    ("weights-header", (17 << 20).to_bytes(8, "little") + b" " * (18 << 20)),
    ("json-syntax", pack_weights(b"{", b"")),
    ("json-duplicate", pack_weights(b'{"a": 1, "a": 1}', b"")),
    ("json-depth", pack_weights(b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", b"")),
    ("key-missing", weights(a={"dtype": "F32", "shape": [32]})),
    ("key-type", weights(a=[1])),
    ("key-type", weights(a=tensor("F32", ["32"], 0, 128))),
    ("key-type", weights(__metadata__={"a": 1}, b=tensor("F32", [32], 0, 128))),
    ("list-size", weights(a=tensor("F32", [1] * 9, 0, 4))),
    ("list-size", weights(a={"dtype": "F32", "shape": [32], "data_offsets": [0]})),
    ("weights-name", weights(**{"": tensor("F32", [32], 0, 128)})),
    ("weights-name", weights(**{"a\nb": tensor("F32", [32], 0, 128)})),
    ("weights-dtype", weights(a=tensor("F8_E5M2", [128], 0, 128))),
    ("weights-offsets", weights(a=tensor("F32", [32], 0, 127))),
    ("weights-offsets", weights(a=tensor("F32", [-32], 0, 128))),
    ("weights-offsets", weights(a=tensor("F32", [2**62, 2**62], 0, 128))),
    ("weights-offsets", weights(a=tensor("F32", [32], -64, 64))),
    ("weights-offsets", weights(a=tensor("F32", [32], 128, 0))),
    ("weights-layout", weights(a=tensor("F32", [16], 0, 64))),
    ("weights-layout", weights(a=tensor("F32", [16], 64, 128))),
    ("weights-layout", weights(a=tensor("F32", [48], 0, 192))),
    ("weights-layout", weights(a=tensor("F32", [32], 0, 128), b=tensor("F32", [16], 64, 128))),
    ("weights-layout", weights(a=tensor("F32", [32], 0, 128), b=tensor("F32", [32], 0, 128))),
    ("weights-alignment", weights(a=tensor("F32", [2], 0, 8), b=tensor("F32", [30], 8, 128))),
    ("weights-alignment", (2).to_bytes(8, "little") + b"{}"),
]


@each_rule("rule, data", HOSTILE_WEIGHTS)
def test_hostile_weights(bundle: DummyBundle, rule: str, data: bytes) -> None:
    bundle.files["weights.fp32"] = data
    with pytest.raises(BundleError, match=re.escape(f"[{rule}]")) as caught:
        read_everything(bundle.write())
    assert "weights.fp32" in caught.value.message


# --- Golden vectors
def npz(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


GOOD: dict[str, Any] = {
    "in.input_ids": np.ones((1, 7), np.int64),
    "in.attention_mask": np.ones((1, 7), np.int64),
    "out.embedding": np.zeros((1, 4), np.float32),
    "out.states": np.zeros((1, 7, 2), np.float32),
}


def npy_bomb() -> bytes:
    """A .npy member whose header claims a terabyte."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in GOOD.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array, version=(1, 0))
            raw = data.getvalue()
            if key == "out.embedding":
                small, large = b"(1, 4), }" + b" " * 11, b"(1, 274877906944), }"
                assert len(small) == len(large) and small in raw
                raw = raw.replace(small, large)
            archive.writestr(key + ".npy", raw)
    return stream.getvalue()


HOSTILE_GOLDEN: list[tuple[str, bytes]] = [
    ("golden-archive", b""),
    ("golden-archive", b"PK\3\4 nothing"),
    ("golden-archive", npz(GOOD)[:200]),
    ("golden-archive", npz(GOOD).replace(GOOD["in.input_ids"].tobytes(), bytes(56), 1)),
    ("golden-keys", npz({key: GOOD[key] for key in list(GOOD)[1:]})),
    ("golden-keys", npz({**GOOD, "extra": np.zeros(1)})),
    ("golden-keys", npz({**GOOD, "../../x": np.zeros(1)})),
    ("golden-array", npz({**GOOD, "out.embedding": np.zeros((1, 4), np.float64)})),
    ("golden-array", npz({**GOOD, "out.embedding": np.zeros((1, 4, 1), np.float32)})),
    ("golden-array", npz({**GOOD, "out.embedding": np.array([[{}]], dtype=object)})),
    ("golden-array", npz({**GOOD, "out.embedding": np.array(["text"])})),
    ("golden-array", npy_bomb()),
]


@each_rule("rule, data", HOSTILE_GOLDEN)
def test_hostile_golden(bundle: DummyBundle, rule: str, data: bytes) -> None:
    bundle.files["golden/0-hint.npz"] = data
    with pytest.raises(BundleError, match=re.escape(f"[{rule}]")) as caught:
        read_everything(bundle.write())
    assert "golden/0-hint.npz" in caught.value.message


# --- Native code: libraries that lie
def functions(abi: int, inputs: int) -> str:
    """C text of a runtime library with every function of the interface and no sense."""
    names = [name for name, _, _ in FUNCTIONS if name not in ("ec_abi_version", "ec_program_open")]
    text = "#include <stdint.h>\n"
    text += f"int32_t ec_abi_version(void) {{ return {abi}; }}\n"
    text += "int32_t ec_program_open(void* a, void* b, int64_t c, int32_t d, void** out)\n"
    text += "{ *out = out; return 0; }\n"
    for name in names:
        result = inputs if name == "ec_program_input_count" else 0
        text += f"int64_t {name}(void) {{ return {result}; }}\n"
    return text


PROBE = """
#include <string.h>
int ec_probe(char* buffer, int size) { strcpy(buffer, "avx2 fma"); return 8; }
"""
HOSTILE_NATIVE: list[tuple[str, type[EdgecompileError], str | None, str | None]] = [
    ("native-load", NativeError, None, None),
    ("native-functions", NativeError, "int x;", None),
    ("native-load", NativeError, PROBE, None),
    ("native-functions", NativeError, PROBE, "int ec_abi_version(void) { return 1; }"),
    ("native-abi", NativeError, PROBE, functions(2, 2)),
    ("program-signature", BundleError, PROBE, functions(1, 3)),
]


@each_rule("rule, error, probe, runtime", HOSTILE_NATIVE)
def test_hostile_native(
    bundle: DummyBundle,
    compile_c: Callable[[str], bytes],
    rule: str,
    error: type[EdgecompileError],
    probe: str | None,
    runtime: str | None,
) -> None:
    variant = bundle.document["variants"][0]
    variant["arch"] = architecture(platform.machine())
    bundle.document["probes"] = {variant["arch"]: "code/x86-64/libecprobe.so"}
    if probe is not None:
        bundle.files["code/x86-64/libecprobe.so"] = compile_c(probe)
    if runtime is not None:
        bundle.files[variant["runtime"]] = compile_c(runtime)
    with pytest.raises(error, match=re.escape(f"[{rule}]")) as caught:
        open_bundle(bundle.write())
    assert caught.type is error


# --- The rules themselves
def test_every_rule_has_a_fixture_and_a_check() -> None:
    written = set(re.findall(r"^- `\[([a-z0-9-]+)\]`", FORMAT, re.MULTILINE))
    tables: list[Any] = [
        HOSTILE_VALUES,
        HOSTILE_GPUS,
        HOSTILE_RECIPES,
        HOSTILE_TEXTS,
        HOSTILE_BYTES,
        HOSTILE_FOLDERS,
        HOSTILE_WEIGHTS,
        HOSTILE_GOLDEN,
        HOSTILE_NATIVE,
        HOSTILE_GENERATIONS,
        HOSTILE_GOLDEN_GENERATIONS,
        HOSTILE_LOOKUPS,
        HOSTILE_SOURCES,
        HOSTILE_STATES,
        HOSTILE_STATES_ALONE,
        HOSTILE_STREAMS,
        HOSTILE_POLICIES,
        HOSTILE_SPEECHES,
        HOSTILE_CTCS,
        HOSTILE_GOLDEN_SOURCES,
    ]
    broken = {item[0] for table in [*tables, ATTACKS] for item in table} | {*APART}
    assert written == broken
    source = "\n".join(path.read_text() for path in RUNTIME_SOURCES)
    checked = set(re.findall(r"(?<!ignore)\[([a-z]+-[a-z0-9-]+)\]", source))
    checked |= set(re.findall(r'(?:add|_Refused|_extent)\(\s*"([a-z0-9]+-[a-z0-9-]+)"', source))
    # Those of a device's store: tests/runtime/store/test_store.py.
    checked = {rule for rule in checked if not rule.startswith(("store-", "archive-", "image-"))}
    assert checked <= written, "rules that FORMAT.md doesn't name"
