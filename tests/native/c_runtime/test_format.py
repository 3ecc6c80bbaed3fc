"""Hostile bundles through the C runtime: refused for the reason for which Python refuses them.

The cases are those of tests/runtime/format. They are opened by one program built with the address and
undefined-behaviour sanitizers, and by one for aarch64.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.cpu import loaders
from tests.agreement import CHECKED, CHECKED_RULES, LEFT
from tests.native.c_runtime.agreement import (  # noqa: F401
    PROBE_PATH,
    Compile,
    assert_agree,
    build_program,
    dummy,
    make_compiler,
    make_folder,
    take_machine,
)
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, Machine
from tests.runtime.bundles import DummyBundle, put
from tests.runtime.format.test_format import (
    HOSTILE_BYTES,
    HOSTILE_FOLDERS,
    HOSTILE_NATIVE,
    HOSTILE_WEIGHTS,
)
from tests.runtime.format.test_hostile_manifest import HOSTILE_VALUES
from tests.runtime.generations import (
    HOSTILE_GENERATIONS,
    HOSTILE_LOOKUPS,
    HOSTILE_SOURCES,
    HOSTILE_STATES,
    HOSTILE_STATES_ALONE,
    make_generative,
    make_lookup,
    make_recurrent,
    make_seq2seq,
    make_states_alone,
)
from tests.runtime.policies import HOSTILE_POLICIES, add_policy
from tests.runtime.speeches import HOSTILE_CTCS, HOSTILE_SPEECHES, add_ctc, add_speech
from tests.runtime.states import HOSTILE_STREAMS, add_state
from tests.runtime.texts import HOSTILE_TEXTS, add_texts

pytestmark = pytest.mark.slow

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

    def generation(path: str, new: Any, make: Callable[..., None] = make_generative) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c, generative=True)
            make(bundle)
            put(bundle.document, path, new)
            bundle.write()

        return write

    def with_more(path: str, new: Any, add: Callable[[DummyBundle], None]) -> Write:
        def write(folder: Path, machine: Machine, compile_c: Compile) -> None:
            bundle = dummy(folder, machine, compile_c)
            add(bundle)
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
    for i, (rule, path, new, _) in enumerate(HOSTILE_LOOKUPS):
        yield f"generation-{rule}-lookup-{i}", generation(path, new, make_lookup)
    for i, (rule, path, new, _) in enumerate(HOSTILE_STATES):
        yield f"state-{rule}-{i}", generation(path, new, make_recurrent)
    for i, (rule, path, new, _) in enumerate(HOSTILE_STATES_ALONE):
        yield f"states-{rule}-{i}", generation(path, new, make_states_alone)
    for i, (rule, path, new, _) in enumerate(HOSTILE_SOURCES):
        yield f"source-{rule}-{i}", generation(path, new, make_seq2seq)
    for i, (rule, path, new, _) in enumerate(HOSTILE_TEXTS):
        yield f"text-{rule}-{i}", with_more(path, new, add_texts)
    for i, (rule, path, new, _) in enumerate(HOSTILE_STREAMS):
        yield f"stream-{rule}-{i}", with_more(path, new, add_state)
    for i, (rule, path, new, _) in enumerate(HOSTILE_POLICIES):
        yield f"policy-{rule}-{i}", with_more(path, new, add_policy)
    for i, (rule, path, new, _) in enumerate(HOSTILE_SPEECHES):
        yield f"speech-{rule}-{i}", with_more(path, new, add_speech)
    for i, (rule, path, new, _) in enumerate(HOSTILE_CTCS):
        yield f"ctc-{rule}-{i}", with_more(path, new, add_ctc)
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
        if kind in ("generation", "source", "state", "states", "text"):
            refused |= {item for item in verdict.rules if ":" in item}
        elif kind == "bytes" and rule.startswith("json-"):
            assert all(item.startswith("json-") for item in verdict.rules), name
        elif name != "good" and not python.sections() and rule not in LEFT:
            assert verdict.rules <= python.rules and verdict.rules, name
    # What a run of a language model depends on is refused here, too.
    assert refused == {f"{CHECKED}:{rule}" for rule in CHECKED_RULES}


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
