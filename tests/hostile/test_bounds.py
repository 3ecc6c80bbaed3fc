"""Documents as large as the format allows, made to be dear: bounded time and memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import BundleError, UnsupportedHostError
from edgecompile.runtime.call.dispatch import Dispatcher
from edgecompile.runtime.cpu import host as cpu
from edgecompile.runtime.format.document import Problems
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.files.weights import MAX_HEADER_BYTES, read_constants
from edgecompile.runtime.format.manifest.parse import MAX_MANIFEST_BYTES
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.hostile.cases import MANIFEST, Corpus
from tests.hostile.conftest import Toy
from tests.hostile.fuzzer import MEMORY_MIB, build_programs
from tests.hostile.loaders import Loader, NativeLoader, PythonLoader
from tests.hostile.toy import WEIGHTS, ToyLibraries

pytestmark = pytest.mark.slow

#: Of resident memory, for the largest weights header; the largest manifest takes a quarter of it.
MOST_MIB = 1024
#: The largest header takes some seconds.
CPU_SECONDS = 60


def fill(start: str, item: Callable[[int], str], end: str, size: int) -> bytes:
    """``start``, items with commas between them, ``end``: ``size`` bytes with spaces."""
    length = len(item(10**6)) + 1
    count = (size - len(start) - len(end)) // length
    text = start + ",".join(item(i) for i in range(count)) + end
    assert len(text) <= size
    return text.encode().ljust(size)


DOCUMENTS: dict[str, Callable[[int], bytes]] = {
    "lists": lambda size: fill('{"plan": [', lambda i: "[]", "]}", size),
    "objects": lambda size: fill('{"plan": [', lambda i: "{}", "]}", size),
    "pairs": lambda size: fill('{"plan": [', lambda i: '{"":[]}', "]}", size),
    "integers": lambda size: fill('{"plan": [', lambda i: "7", "]}", size),
    "numbers": lambda size: fill('{"plan": [', lambda i: "1.5", "]}", size),
    "strings": lambda size: fill('{"plan": [', lambda i: '"é"', "]}", size)[:size],
    "keys": lambda size: fill("{", lambda i: f'"{i}":0', "}", size),
    "empty": lambda size: fill("{", lambda i: f'"{i}":{{}}', "}", size),
    "tensors": lambda size: fill(
        "{", lambda i: f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "}", size
    ),
    "escapes": lambda size: b'{"name": "' + b"\\u0000" * ((size - 12) // 6) + b'"}',
    "one string": lambda size: b'{"name": "' + b"x" * (size - 12) + b'"}',
    "astral": lambda size: b'{"name": "' + b"x" * 999 + "\U0001f600".encode() * (size // 5) + b'"}',
    "quotes": lambda size: b'{"name": ' + b'"' * (size - 10),
    "deep": lambda size: fill('{"plan": [', lambda i: "[" * 28 + "]" * 28, "]}", size),
    "files": lambda size: fill('{"format_version":1,"files":{', lambda i: f'"{i}":1', "}}", size),
    "axes": lambda size: fill(
        '{"format_version":1,"axes":{',
        lambda i: f'"{i}":{{"lo":1,"hi":1}}',
        '},"buckets":[' + ",".join(['{"axes":{}}'] * 256) + "]}",
        size,
    ),
    "axes of buckets": lambda size: fill(
        '{"format_version":1,"buckets":[' + '{"axes":{}},' * 255 + '{"axes":{',
        lambda i: f'"{i}":{{"lo":1,"hi":1}}',
        "}}]}",
        size,
    ),
    "features": lambda size: fill(
        '{"format_version":1,"variants":[{"requires":[', lambda i: '"-"', "]}]}", size
    ),
}


@pytest.fixture(scope="module")
def loaders(libraries: ToyLibraries) -> Iterator[list[Loader]]:
    found: list[Loader] = [
        # Each way of opening reads documents by the same functions; other tests try them all on small ones.
        PythonLoader("once", memory_mib=MEMORY_MIB, cpu_seconds=CPU_SECONDS, variables={}),
        NativeLoader(
            "plain",
            build_programs()["plain"],
            wall_seconds=10 * CPU_SECONDS,
            variables={},
            memory_mib=MOST_MIB,
        ),
    ]
    yield found
    assert [text for loader in found for text in loader.close()] == []


@pytest.fixture(scope="module")
def corpus(libraries: ToyLibraries, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(0, libraries, tmp_path_factory.mktemp("work") / "canary")


def test_warm_up_inputs_of_more_than_half_of_the_memory_are_refused(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.bundle.write()
    sizes = [
        Dispatcher(BundleFolder(str(toy.bundle.folder)).manifest).hint_sizes(i) for i in (0, 1)
    ]
    most = max(2 * 8 * item["batch"] * item["length"] for item in sizes)
    monkeypatch.setattr(cpu, "_memory", lambda: 2 * most)
    open_bundle(toy.bundle.folder, threads=1).close()
    monkeypatch.setattr(cpu, "_memory", lambda: 2 * most - 2)
    with pytest.raises(UnsupportedHostError, match=f"the inputs have {most} bytes"):
        open_bundle(toy.bundle.folder, threads=1)
    open_bundle(toy.bundle.folder, threads=1, warmup=False).close()


def test_reading_stops_where_too_much_is_wrong(tmp_path: Path) -> None:
    problems = Problems("document")
    for i in range(10_000):
        assert not problems.too_many
        problems.add("key-type", str(i), "wrong")
    assert problems.too_many
    with pytest.raises(BundleError, match=r"10000 or more problems(.|\n)*at least 9960 more"):
        problems.raise_if_any()
    header = DOCUMENTS["keys"](1 << 20)
    (tmp_path / "weights").write_bytes(len(header).to_bytes(8, "little") + header)
    with (
        (tmp_path / "weights").open("rb") as file,
        pytest.raises(BundleError, match="10000 or more problems"),
    ):
        read_constants(file.fileno(), 8 + len(header), "weights")


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_large_manifests(corpus: Corpus, tmp_path: Path, loaders: list[Loader], name: str) -> None:
    case = corpus.valid()
    case.entries[MANIFEST] = DOCUMENTS[name](MAX_MANIFEST_BYTES)[:MAX_MANIFEST_BYTES]
    case.write(tmp_path / "case.ecb")
    answers = [loader.ask(tmp_path / "case.ecb") for loader in loaders]
    assert [answer.crashes for answer in answers] == [[], []]
    assert [answer.code for answer in answers] == [20, 20]
    assert answers[0].kib < MOST_MIB / 4 * 1024


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_large_headers(corpus: Corpus, tmp_path: Path, loaders: list[Loader], name: str) -> None:
    case = corpus.valid()
    size = MAX_HEADER_BYTES - 8  # so that the data begins aligned
    header = DOCUMENTS[name](size)[:size]
    data = len(header).to_bytes(8, "little") + header
    case.entries[WEIGHTS] = data
    manifest = case.entries[MANIFEST]
    assert isinstance(manifest, bytes)
    document = json.loads(manifest)
    document["files"][WEIGHTS] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    case.entries[MANIFEST] = json.dumps(document).encode()
    case.write(tmp_path / "case.ecb")
    answers = [loader.ask(tmp_path / "case.ecb") for loader in loaders]
    assert [answer.crashes for answer in answers] == [[], []]
    codes = {answer.code for answer in answers}
    # Tensors without elements are tensors.
    assert codes == ({0} if name == "tensors" else {20})
    assert answers[0].kib < MOST_MIB * 1024
