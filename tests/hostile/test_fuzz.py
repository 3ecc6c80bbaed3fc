"""Hostile bundles: refused by every loader for the same reason, and nothing outside touched."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.hostile.cases import Corpus
from tests.hostile.fuzzer import CPU_SECONDS, MEMORY_MIB, build_programs, open_fuzzer
from tests.hostile.loaders import REPOSITORY, Canary, PythonLoader
from tests.hostile.toy import ToyLibraries
from tests.hostile.trees import Members, mutate, render, to_tree

COUNT = 1250
#: What a loader may take beside the arrays of a warm-up.
ROOM_MIB = 64


@pytest.fixture(scope="module")
def corpus(libraries: ToyLibraries, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(1, libraries, tmp_path_factory.mktemp("work") / "canary")


@pytest.fixture
def python(tmp_path: Path) -> PythonLoader:
    variables = {"EDGECOMPILE_INTRUDER_TRACE": str(tmp_path / "trace"), "EDGECOMPILE_VARIANT": ""}
    return PythonLoader(memory_mib=MEMORY_MIB, cpu_seconds=CPU_SECONDS, variables=variables)


def test_trees_are_json(corpus: Corpus) -> None:
    import json

    value = {"a": [1, {"b": None}], "c": "é", "d": 1.5}
    assert json.loads(render(to_tree(value))) == value
    assert render(Members([["a", 1], ["a", 2]])) == '{"a": 1, "a": 2}'
    texts = set()
    for seed in range(200):
        tree = to_tree(value)
        mutate(random.Random(seed), tree)
        texts.add(render(tree))
    assert len(texts) > 100


def test_a_case_is_the_same_each_time_and_not_the_next_one(corpus: Corpus) -> None:
    for number in range(50):
        assert corpus.case(number).entries == corpus.case(number).entries
    assert len({repr(corpus.case(number).entries) for number in range(50)}) > 45


def test_every_change_is_made(corpus: Corpus) -> None:
    from tests.hostile.cases import _CHANGES

    counts = Counter(name for number in range(1000) for name in corpus.case(number).done)
    assert set(counts) == {change.__name__.strip("_") for change in _CHANGES}


def test_the_canary_notices(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"1")
    canary = Canary(tmp_path)
    assert canary.events() == 0
    (tmp_path / "folder" / "file").read_bytes()
    assert canary.events() > 0
    assert canary.events() == 0
    canary.close()


BROKEN_LOADERS = {
    "hash": (
        "import edgecompile.runtime.format.files.folder as files\n"
        "files.BundleFolder._hash_problem = lambda self, name, fd: None\n",
        "hashed before: []",
    ),
    "link": (
        "import edgecompile.runtime.format.files.folder as files\n"
        "import os\n"
        "files._FILE_FLAGS &= ~os.O_NOFOLLOW\n",
        "with flags",
    ),
    "write": (
        "import edgecompile.runtime.format.files.folder as files\n"
        "files.BundleFolder.check_sizes = lambda self: open('/dev/null', 'w').close()\n",
        "for writing",
    ),
    "process": (
        "import edgecompile.runtime.format.files.folder as files, os\n"
        "files.BundleFolder.check_sizes = lambda self: os.system('true')\n",
        "os.system",
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN_LOADERS))
def test_the_watch_notices_a_loader_that_is_broken(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    source, text = BROKEN_LOADERS[name]
    folder = tmp_path / "valid.ecb"
    corpus.valid().write(folder)
    script = f"import tests.hostile.worker as worker\n{source}worker.serve({MEMORY_MIB}, 60)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], input=f"{folder}\n", capture_output=True, text=True,
        cwd=REPOSITORY, env={"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert text in done.stdout, done.stderr


def test_the_watch_is_content_with_a_valid_bundle(
    corpus: Corpus, tmp_path: Path, python: PythonLoader
) -> None:
    corpus.valid().write(tmp_path / "valid.ecb")
    for _ in range(2):
        answer = python.ask(tmp_path / "valid.ecb")
        assert (answer.code, answer.crashes) == (0, [])
        # "open" and "selftest" load the probe, the runtime and two programs, "info" the probe.
        assert answer.loaded >= 7
    assert python.close() == []


def test_a_dead_or_slow_loader_is_a_finding(tmp_path: Path, python: PythonLoader) -> None:
    python._command = ["sh", "-c", "read line; kill -SEGV $$"]
    assert "SIGSEGV" in python.ask(tmp_path).crashes[0]
    python._command = ["sh", "-c", "read line; exec sleep 60"]
    python._wall_seconds = 0.2
    assert "took more than" in python.ask(tmp_path).crashes[0]
    assert python.restarts == 1


@pytest.mark.slow
def test_hostile_bundles() -> None:
    with open_fuzzer(1, build_programs()) as fuzzer:
        fuzzer.run(range(COUNT))
    report = fuzzer.report
    told = [f"{item.number} ({item.done}): {item.texts}" for item in report.findings]
    assert told == []
    assert report.endings == []
    assert report.cases == COUNT
    # The corpus is neither trivial nor harmless.
    assert COUNT // 50 < report.accepted < COUNT // 2
    assert {20, 22, 26} <= set(report.codes)
    assert len(report.rules) >= 30
    assert report.libraries_checked > COUNT
    # A warm-up of huge sizes takes at most one array of half the address space; the next one
    # fails. Nothing else is nearly as large.
    assert report.largest.value < MEMORY_MIB / 2 + ROOM_MIB
