"""Bundles that the C runtime and the Python runtime have to judge alike, and what each says of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.agreement import Verdict, agree, named_rules
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, Machine
from tests.runtime.bundles import DummyBundle
from tests.runtime.format.test_format import PROBE, functions
from tests.runtime.generations import make_generative

PROBE_PATH = "code/x86-64/libecprobe.so"
Compile = Callable[[str], bytes]


@pytest.fixture(name="machine", scope="module", params=sorted(MACHINES))
def take_machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[str(request.param)]


@pytest.fixture(name="program", scope="module")
def build_program(machine: Machine) -> Path:
    # Sanitizers' run-time libraries don't work under qemu-user.
    flags = () if machine.runner else c_library.SANITIZERS
    return c_library.build(
        machine, "host_cases", [c_library.PROGRAMS / "host_cases.c"], flags=flags
    )


@pytest.fixture(name="folder", scope="module")
def make_folder(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(machine.arch)


@pytest.fixture(name="compile_for", scope="module")
def make_compiler(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Compile]:
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
    """The C runtime's answer to each bundle."""
    done = machine.run(
        [program, str(verify)], stdin="".join(f"{path}\n" for path in paths), **c_library.SANITIZED
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
    expected = [ask_python(path, verify) for _, path in cases.values()]
    wrong = {
        name: f"C says {ours}, Python says {theirs}"
        for name, ours, theirs in zip(cases, told, expected, strict=True)
        if not agree(theirs, ours)
    }
    assert wrong == {}, wrong
    return told, expected
