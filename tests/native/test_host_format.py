"""Hostile bundles through the C interface: refused for the reason for which Python refuses them.

The cases are those of tests/runtime/format and mutations of a good bundle. They are opened
by one program built with the address and undefined-behaviour sanitizers, and by one for aarch64.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.cpu import loaders
from edgecompile.runtime.errors import EdgecompileError
from edgecompile.runtime.start import open_bundle
from tests.agreement import LEFT, Verdict, agree, named_rules
from tests.native import c_host
from tests.native.c_host import MACHINES, NATIVE_ARCH, Machine
from tests.runtime.bundles import DummyBundle, pack_weights, put
from tests.runtime.format.test_format import (
    HOSTILE_BYTES,
    HOSTILE_FOLDERS,
    HOSTILE_NATIVE,
    HOSTILE_WEIGHTS,
    PROBE,
    functions,
)
from tests.runtime.format.test_hostile_manifest import HOSTILE_VALUES
from tests.runtime.generations import (
    HOSTILE_GENERATIONS,
    HOSTILE_SOURCES,
    make_generative,
    make_seq2seq,
)
from tests.runtime.texts import HOSTILE_TEXTS, add_texts

pytestmark = pytest.mark.slow

PROBE_PATH = "code/x86-64/libecprobe.so"
N_MUTATIONS = 1500
N_HEADERS = 300


Compile = Callable[[str], bytes]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == NATIVE_ARCH else (pytest.mark.slow,))
        for name in sorted(MACHINES)
    ],
)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[str(request.param)]


@pytest.fixture(scope="module")
def program(machine: Machine) -> Path:
    # Sanitizers' run-time libraries don't work under qemu-user.
    flags = () if machine.runner else c_host.SANITIZERS
    return c_host.build(machine, "host_cases", [c_host.HERE / "host_cases.c"], flags=flags)


@pytest.fixture(scope="module")
def folder(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(machine.arch)


@pytest.fixture(scope="module")
def compile_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Compile]:
    """compile_for(machine)(C text) -> bytes of a shared library, made once per text."""
    scratch = tmp_path_factory.mktemp("libraries") / "library.so"
    made: dict[tuple[str, str], bytes] = {}

    def compiler(machine: Machine) -> Compile:
        def build(source: str) -> bytes:
            key = (machine.arch, source)
            if key not in made:
                command = [machine.tool("gcc"), "-shared", "-fPIC", "-x", "c", "-"]
                subprocess.run([*command, "-o", str(scratch)], input=source.encode(), check=True)
                made[key] = scratch.read_bytes()
            return made[key]

        return build

    return compiler


def dummy(
    folder: Path, machine: Machine, compile_c: Compile, generative: bool = False
) -> DummyBundle:
    """A bundle for the machine with a probe and a runtime library that can be loaded."""
    bundle = DummyBundle(folder)
    if generative:
        make_generative(bundle)
    variant = bundle.document["variants"][0]
    variant["arch"] = machine.arch
    variant["glibc"] = None
    bundle.document["probes"] = {machine.arch: PROBE_PATH}
    bundle.files[PROBE_PATH] = compile_c(PROBE)
    bundle.files[variant["runtime"]] = compile_c(functions(1, 2))
    return bundle


def ask_c(machine: Machine, program: Path, paths: list[Path], verify: int = 2) -> list[Verdict]:
    """The C interface's answer to each bundle."""
    done = machine.run(
        [program, str(verify)], stdin="".join(f"{path}\n" for path in paths), **c_host.SANITIZED
    )
    assert done.returncode == 0, (
        f"after {done.stdout.count(chr(10))} bundles: {done.stderr[-4000:]}"
    )
    # Not splitlines(): line ends within a message are told apart as vertical tabs.
    lines = [line.split("\t", 1) for line in done.stdout.split("\n")[:-1]]
    assert len(lines) == len(paths)
    return [Verdict(int(status), named_rules(text)) for status, text in lines]


def ask_python(path: Path, verify: str = "full") -> Verdict:
    """The Python runtime's answer."""
    try:
        open_bundle(path, verify=verify).close()
    except EdgecompileError as error:
        return Verdict(error.exit_code, named_rules(error.message))
    return Verdict(0, frozenset())


def assert_agree(
    machine: Machine, program: Path, cases: dict[str, tuple[Path, Path]], verify: str = "full"
) -> tuple[list[Verdict], list[Verdict]]:
    """The answers of C and Python. Each case is a bundle for this machine, and the same for the one that Python runs on."""
    levels = {"auto": 0, "fast": 1, "full": 2}
    told = ask_c(machine, program, [path for path, _ in cases.values()], levels[verify])
    wanted = [ask_python(path, verify) for _, path in cases.values()]
    wrong = {
        name: f"C says {ours}, Python says {theirs}"
        for name, ours, theirs in zip(cases, told, wanted, strict=True)
        if not agree(theirs, ours)
    }
    assert wrong == {}
    return told, wanted


Write = Callable[[Path, Machine, Compile], None]


def hostile_cases() -> Iterator[tuple[str, Write]]:
    """(name, what writes the bundle into a folder for a machine)."""

    def value(path: str, new: Any, text: str) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            if "scale" in text:
                scale = {"name": "scale", "dtype": "float32", "shape": ["batch"]}
                bundle.document["inputs"].append(scale)
            bundle.document = bundle.listed()
            if path == "probes.x86-64":
                put(bundle.document, f"probes.{machine.arch}", new)
            elif path == "variants.0.arch":
                put(bundle.document, path, "riscv64")
            else:
                put(bundle.document, path, new)
            bundle.write()

        return write

    def generation(path: str, new: Any, source: bool = False) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c, generative=True)
            if source:
                make_seq2seq(bundle)
            put(bundle.document, path, new)
            bundle.write()

        return write

    def text_value(path: str, new: Any) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            add_texts(bundle)
            bundle.document = bundle.listed()
            put(bundle.document, path, new)
            bundle.write()

        return write

    def change_bytes(change: Callable[[bytes], bytes]) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            bundle.write(change(json.dumps(bundle.listed()).encode()))

        return write

    def change_folder(change: Callable[[Path], Any]) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            dummy(folder, machine, compile_c).write()
            change(folder)

        return write

    def weights(data: bytes) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            bundle.files["weights.fp32"] = data
            bundle.write()

        return write

    def native(probe: str | None, runtime: str | None) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            path = bundle.document["variants"][0]["runtime"]
            for name, source in ((PROBE_PATH, probe), (path, runtime)):
                bundle.files[name] = b"nothing" if source is None else compile_c(source)
            bundle.write()

        return write

    for i, (rule, path, new, text) in enumerate(HOSTILE_VALUES):
        yield f"value-{rule}-{i}", value(path, new, text)
    for i, (rule, path, new, _) in enumerate(HOSTILE_GENERATIONS):
        yield f"generation-{rule}-{i}", generation(path, new)
    for i, (rule, path, new, _) in enumerate(HOSTILE_SOURCES):
        yield f"source-{rule}-{i}", generation(path, new, source=True)
    for i, (rule, path, new, _) in enumerate(HOSTILE_TEXTS):
        yield f"text-{rule}-{i}", text_value(path, new)
    for i, (rule, change) in enumerate(HOSTILE_BYTES):
        yield f"bytes-{rule}-{i}", change_bytes(change)
    for i, (rule, _, change_it) in enumerate(HOSTILE_FOLDERS):
        yield f"folder-{rule}-{i}", change_folder(change_it)
    for i, (rule, data) in enumerate(HOSTILE_WEIGHTS):
        yield f"weights-{rule}-{i}", weights(data)
    for i, (rule, _, probe, runtime) in enumerate(HOSTILE_NATIVE):
        yield f"native-{rule}-{i}", native(probe, runtime)
    # The good bundle itself: its programs lie about their outputs.
    yield "good", change_folder(lambda folder: None)


def test_hostile_bundles_are_refused_as_in_python(
    machine: Machine,
    program: Path,
    folder: Path,
    compile_for: Callable[[Machine], Compile],
) -> None:
    cases = {}
    native = MACHINES[NATIVE_ARCH]
    for name, write in hostile_cases():
        ours = folder / "hostile" / name / "b.ecb"
        write(ours, machine, compile_for(machine))
        theirs = ours
        if machine is not native:
            theirs = folder / "hostile-native" / name / "b.ecb"
            write(theirs, native, compile_for(native))
        cases[name] = (ours, theirs)
    told, pythons = assert_agree(machine, program, cases)
    refused = set()
    for name, verdict, python in zip(cases, told, pythons, strict=True):
        assert verdict.status != 0, name
        kind, _, rule = name.rpartition("-")[0].partition("-")
        if kind in ("generation", "source", "text"):
            refused |= {item for item in verdict.rules if ":" in item}
        elif kind == "bytes" and rule.startswith("json-"):
            assert all(item.startswith("json-") for item in verdict.rules), name
        elif name != "good" and not python.sections() and rule not in LEFT:
            assert verdict.rules <= python.rules and verdict.rules, name
    # What a run of a language model depends on is refused here, too.
    assert refused == {
        f"generation:{rule}"
        for rule in (
            "key-type", "key-missing", "list-size", "generation-kind", "generation-axes",
            "generation-inputs", "generation-shape", "generation-buckets",
        )
    }  # fmt: skip


def test_variants_for_torch_are_judged_as_in_python(
    machine: Machine,
    program: Path,
    folder: Path,
    compile_for: Callable[[Machine], Compile],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Skipped beside another one, refused by a status of their own, and by their rules."""
    monkeypatch.setattr(loaders, "_loaders", {})  # Python as it is without torch's loader
    native = MACHINES[NATIVE_ARCH]
    changes: dict[str, Any] = {
        "alone": {},
        "beside": {},
        "programs": {"programs": []},
        "unlisted": {"programs": ["a", "b"]},
        "version": {"torch": "2.13 or so"},
        "no version": {"torch": 2.13},
        "unfit": {"requires": ["sse11"]},
    }

    def write(path: Path, host: Machine, name: str) -> Path:
        bundle = dummy(path, host, compile_for(host))
        (own,) = bundle.document["variants"]
        torch = {k: own[k] for k in ("arch", "requires", "glibc", "programs")}
        torch |= {"name": "torch", "backend": "torch", "torch": "2.13.0", "rank": 99}
        variants = [own] if name == "beside" else []
        bundle.document["variants"] = [{**torch, **changes[name]}, *variants]
        bundle.document = bundle.listed()
        bundle.write()
        return path

    cases = {
        name: (
            write(folder / "torch" / name / "b.ecb", machine, name),
            write(folder / "torch-native" / name / "b.ecb", native, name),
        )
        for name in changes
    }
    told = dict(zip(cases, assert_agree(machine, program, cases)[0], strict=True))
    assert told["alone"].status == 67 and told["unfit"].status == 23
    assert told["beside"].rules == {"program-signature"}  # the other was chosen: its programs lie
    broken = ("variant-programs", "path-listed", "name-form", "key-type")
    for name, rule in zip(("programs", "unlisted", "version", "no version"), broken, strict=True):
        assert told[name].rules == {rule}


# --- Mutations
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
        "a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
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


# --- Nothing is loaded that wasn't hashed
MARKER = """
#include <fcntl.h>
#include <string.h>
__attribute__((constructor)) static void mark(void) { open("%s", O_CREAT | O_WRONLY, 0600); }
int ec_probe(char* buffer, int size) { strcpy(buffer, "%s"); return 1; }
"""


@pytest.mark.parametrize("verify", ["auto", "fast", "full"])
def test_a_swapped_library_never_runs(
    tmp_path: Path, compile_for: Callable[[Machine], Compile], verify: str
) -> None:
    native = MACHINES[NATIVE_ARCH]
    compile_c = compile_for(native)
    marker = tmp_path / "ran"
    good = compile_c(MARKER % (tmp_path / "good-ran", "a"))
    evil = compile_c(MARKER % (marker, "b"))
    assert good != evil
    bundle = dummy(tmp_path / "b.ecb", native, compile_c)
    # Of one size: only the hash can tell them apart.
    size = max(len(good), len(evil))
    bundle.files[PROBE_PATH] = good.ljust(size, b"\0")
    path = Path(bundle.write())
    (path / PROBE_PATH).write_bytes(evil.ljust(size, b"\0"))
    program = c_host.build(native, "host_cases", [c_host.HERE / "host_cases.c"],
                           flags=c_host.SANITIZERS)  # fmt: skip
    level = {"auto": 0, "fast": 1, "full": 2}[verify]
    (told,) = ask_c(native, program, [path], level)
    assert told == Verdict(22, frozenset({"file-hash"}))
    assert not marker.exists()
    assert not (tmp_path / "good-ran").exists()


def test_a_library_exchanged_after_its_hash_isnt_loaded(
    tmp_path: Path, compile_for: Callable[[Machine], Compile]
) -> None:
    native = MACHINES[NATIVE_ARCH]
    compile_c = compile_for(native)
    bundle = dummy(tmp_path / "b.ecb", native, compile_c)
    bundle.document["variants"][0]["requires"] = ["good"]
    bundle.files[PROBE_PATH] = compile_c(MARKER % (tmp_path / "good-ran", "good"))
    path = Path(bundle.write())
    evil = tmp_path / "evil.so"
    evil.write_bytes(compile_c(MARKER % (tmp_path / "evil-ran", "evil")))
    # The program's dlopen first puts the other library in the place of the probe.
    program = c_host.build(
        native,
        "host_exchange",
        [c_host.HERE / "host_cases.c", c_host.HERE / "host_exchange.c"],
        link=["-Wl,--wrap=dlopen"],
    )
    done = native.run(
        [program, "0"], stdin=f"{path}\n",
        EXCHANGE_FROM=str(evil), EXCHANGE_TO=str(path / PROBE_PATH),
    )  # fmt: skip
    assert not evil.exists(), "nothing was exchanged"
    assert (tmp_path / "good-ran").exists()
    assert not (tmp_path / "evil-ran").exists()
    # It got past the probe, so its features were the good one's.
    assert "[program-signature]" in done.stdout, done.stdout + done.stderr
