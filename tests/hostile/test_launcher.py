"""Files that somebody left in a bundle are refused before they run: the bundle's own runtime, started as a
device without an installed one starts it. Whatever is planted leaves a trace once it runs."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from edgecompile.bundle.staging import Staging
from edgecompile.bundle.writer import BundleWriter
from tests.hostile.conftest import Toy
from tests.other_user import OTHER_USER, admit_other_user
from tests.runtime.bundles import DummyBundle

MALFORMED, DAMAGED, NOT_PERMITTED = 20, 22, 71
PACKAGE = "runtime/edgecompile/runtime"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the runtime that every bundle carries."""
    with Staging(tmp_path_factory.mktemp("donor") / "donor.ecb") as claim:
        writer = BundleWriter(claim)
        writer.add_runtime()
        return {name: (writer.staging / name).read_bytes() for name in writer.files}


@pytest.fixture
def bundle(toy: Toy, runtime: dict[str, bytes]) -> DummyBundle:
    """The toy bundle with the runtime that every bundle carries."""
    toy.bundle.files.update(runtime)
    toy.bundle.write()
    for folder in {Path(name).parent for name in toy.bundle.files if name.endswith(".py")}:
        (toy.bundle.folder / folder / "__pycache__").touch()
    return toy.bundle


def start(*command: str | Path, python: str = sys.executable, **variables: str) -> tuple[int, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [python, *command], env={**kept, **variables}, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def trace_of(toy: Toy, text: str = "") -> str:
    """Python that leaves a trace, then goes on as ``text`` does."""
    return f"open({str(toy.trace)!r}, 'w').close()\n{text}"


@pytest.mark.parametrize(
    "form",
    [(), pytest.param(("-I",), marks=pytest.mark.slow)],
    ids=["folder", "isolated"],
)
def test_it_runs_the_commands_on_its_own_bundle(
    bundle: DummyBundle, tmp_path: Path, form: tuple[str, ...]
) -> None:
    path = bundle.folder / "__main__.py" if form else bundle.folder
    before = sorted(bundle.folder.rglob("*"))
    for _ in range(2):  # what the first start left doesn't trouble the second
        code, told = start(*form, path, "selftest", "--json")
        assert code == 0, told
    assert json.loads(told[: told.rindex("}") + 1])["verify"] == "full"
    code, told = start(*form, path, "info", PYTHONPATH=str(bundle.folder / "runtime"))
    assert code == 0 and "tiny" in told
    code, told = start(*form, path, "--help")
    assert code == 0 and told.startswith("usage: python3 toy.ecb ")
    # Processes of its own come by the same way: with PYTHONPATH they would read what isn't compared.
    code, told = start(*form, path, "bench", "--seconds", "0.01", "--cold-runs", "1", "--json")
    assert code == 0, told
    assert sorted(bundle.folder.rglob("*")) == before, "something was written"


def test_a_program_imports_what_was_compared(bundle: DummyBundle, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, helper, edgecompile.runtime as r\n"
        "with r.open_bundle(sys.argv[1]) as model:\n"
        "    print(helper.WORD, model.info['name'], type(r.__spec__.loader).__name__)\n"
        "raise SystemExit(3)\n"
    )
    (tmp_path / "helper.py").write_text("WORD = 'so'\n")
    code, told = start(bundle.folder, program, bundle.folder)
    assert (code, told) == (3, "so tiny Compared\n")
    code, told = start(bundle.folder, "-m", "edgecompile.runtime", "info", bundle.folder)
    assert code == 0, told
    code, told = start(bundle.folder, "-m", "edgecompile.export.export")
    assert code == 1 and "edgecompile.export isn't in" in told
    code, told = start(bundle.folder, "absent.py")
    assert (code, told.splitlines()[0]) == (2, "error: absent.py: there is no such program")


def plant_bytecode(toy: Toy, folder: Path) -> None:
    place = folder / PACKAGE / "format" / "__pycache__"
    place.unlink()
    place.mkdir()
    source = folder / PACKAGE / "evil.py"
    source.write_text(trace_of(toy))
    py_compile.compile(
        str(source),
        str(place / f"document.{sys.implementation.cache_tag}.pyc"),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    source.unlink()


def plant(name: str) -> Callable[[Toy, Path], object]:
    def write(toy: Toy, folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(trace_of(toy))

    return write


def change_listed(toy: Toy, folder: Path) -> None:
    file = folder / PACKAGE / "format" / "document.py"
    text = trace_of(toy, file.read_text())
    file.write_text(text)


def change_listed_of_the_same_size(toy: Toy, folder: Path) -> None:
    file = folder / PACKAGE / "format" / "document.py"
    size, text = file.stat().st_size, trace_of(toy)
    file.write_text(text + "#" * (size - len(text)))


def link_to_evil(toy: Toy, folder: Path) -> None:
    plant("../evil.py")(toy, folder)
    (folder / PACKAGE / "format" / "document.py").unlink()
    (folder / PACKAGE / "format" / "document.py").symlink_to(folder.parent / "evil.py")


def link_package(toy: Toy, folder: Path) -> None:
    shutil.copytree(folder / PACKAGE, folder.parent / "copy")
    shutil.rmtree(folder / PACKAGE)
    (folder / PACKAGE).symlink_to(folder.parent / "copy")


def link_runtime(toy: Toy, folder: Path) -> None:
    (folder / "runtime").rename(folder.parent / "copy")
    (folder / "runtime").symlink_to("../copy")


def put_fifo(toy: Toy, folder: Path) -> None:
    (folder / PACKAGE / "format" / "document.py").unlink()
    os.mkfifo(folder / PACKAGE / "format" / "document.py")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (plant_bytecode, f"{PACKAGE}/format/__pycache__: isn't listed"),
        (plant("runtime/sitecustomize.py"), "runtime/sitecustomize.py: isn't listed"),
        (plant("runtime/numpy/__init__.py"), "runtime/numpy: isn't listed"),
        (plant(f"{PACKAGE}/format/json.py"), f"{PACKAGE}/format/json.py: isn't listed"),
        (plant(f"{PACKAGE}/format/numpy/__init__.py"), f"{PACKAGE}/format/numpy: isn't listed"),
        (plant("runtime/json.py"), "runtime/json.py: isn't listed"),
        (plant(f"{PACKAGE}/compare.abi3.so"), "compare.abi3.so: isn't listed"),
        (change_listed, "document.py: isn't the file that the manifest lists"),
        (change_listed_of_the_same_size, "document.py: isn't the file that the manifest lists"),
        (link_to_evil, "document.py: isn't the file that the manifest lists"),
        (link_package, "FORMAT.md: isn't the file that the manifest lists"),
        (link_runtime, "runtime/__init__.py: isn't the file that the manifest lists"),
        (put_fifo, "document.py: isn't the file that the manifest lists"),
    ],
    ids=lambda value: "" if isinstance(value, str) else getattr(value, "__name__", None),
)
@pytest.mark.parametrize("form", [(), ("-I",)], ids=["folder", "isolated"])
def test_what_is_planted_in_the_runtime_is_refused_before_it_runs(
    toy: Toy,
    bundle: DummyBundle,
    form: tuple[str, ...],
    change: Callable[[Toy, Path], object],
    told: str,
) -> None:
    change(toy, bundle.folder)
    path = bundle.folder / "__main__.py" if form else bundle.folder
    code, said = start(*form, path, "selftest")
    assert (code, told in said) == (DAMAGED, True), said
    assert "hint: " in said and "Traceback" not in said
    assert not toy.trace.exists()


@pytest.mark.parametrize(
    "name",
    [
        "json.py",
        pytest.param("hashlib.py", marks=pytest.mark.slow),
        pytest.param("numpy/__init__.py", marks=pytest.mark.slow),
        "edgecompile.py",
    ],
)
def test_what_is_planted_beside_it_isn_t_imported_but_named(
    toy: Toy, bundle: DummyBundle, name: str
) -> None:
    plant(name)(toy, bundle.folder)
    where = str(bundle.folder)
    for path in ("", where, where + "/", where + "/runtime/..", os.path.relpath(where)):
        code, said = start(bundle.folder, "selftest", PYTHONPATH=path)
        assert code == DAMAGED and f"{name.split('/')[0]}: isn't listed" in said, said
        assert not toy.trace.exists(), path


def test_an_archive_or_a_link_in_it_is_no_place_to_import_from(
    toy: Toy, bundle: DummyBundle
) -> None:
    with ZipFile(bundle.folder / "evil.zip", "w") as archive:
        archive.writestr("below/hashlib.py", trace_of(toy))
        archive.writestr("hashlib.py", trace_of(toy))
    plant("../elsewhere/below/hashlib.py")(toy, bundle.folder)
    (bundle.folder / "link").symlink_to("../elsewhere")
    where = os.path.relpath(bundle.folder)
    for name in ("evil.zip", "evil.zip/", "evil.zip/below", "link/below", "runtime/../evil.zip"):
        for path in (f"{bundle.folder}/{name}", f"{where}/{name}"):
            code, said = start(bundle.folder, "info", PYTHONPATH=path)
            assert (code, toy.trace.exists()) == (0, False), (path, said)


def test_a_program_in_the_bundle_doesn_t_import_its_neighbours(
    toy: Toy, bundle: DummyBundle
) -> None:
    (bundle.folder / "program.py").write_text("import colorsys, edgecompile.runtime\n")
    plant("colorsys.py")(toy, bundle.folder)
    code, said = start(bundle.folder, bundle.folder / "program.py")
    assert (code, toy.trace.exists()) == (0, False), said


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (f"{PACKAGE}/format/document.py", 0o000),
        ("manifest.json", 0o000),
        ("runtime", 0o000),
        ("runtime", 0o444),
        (PACKAGE, 0o111),
        (PACKAGE, 0o444),
    ],
)
def test_what_may_not_be_read_isn_t_called_damaged(
    bundle: DummyBundle, shared_folder: Path, name: str, mode: int
) -> None:
    admit_other_user(bundle.folder, shared_folder)
    (bundle.folder / name).chmod(mode)
    become, *options = OTHER_USER
    code, said = start(*options, sys.executable, bundle.folder, "info", python=become)
    (bundle.folder / name).chmod(0o755)
    assert code == NOT_PERMITTED and str(bundle.folder / name) in said, said
    assert "user 65534" in said and "chmod" in said and "Traceback" not in said


def test_names_of_the_manifest_reach_no_terminal_raw(bundle: DummyBundle) -> None:
    place = bundle.folder / "manifest.json"
    document = json.loads(place.read_text())
    document["files"]["runtime/\x1b[2Jx"] = {"size": 1, "sha256": "0" * 64}
    place.write_text(json.dumps(document))
    code, said = start(bundle.folder, "info")
    assert code == DAMAGED and "runtime/\\x1b[2Jx: isn't the file" in said, said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", ["runpy.py", "importlib/__init__.py", "pkgutil.py", "os.py"])
def test_isolated_nothing_in_the_folder_comes_first(
    toy: Toy, bundle: DummyBundle, name: str
) -> None:
    """Where Python is given a folder it imports some modules of its own from there; docs/security.md."""
    plant(name)(toy, bundle.folder)
    code, said = start("-I", bundle.folder / "__main__.py", "selftest")
    assert code == DAMAGED and f"{name.split('/')[0]}: isn't listed" in said, said
    assert not toy.trace.exists()


def test_byte_code_of_the_launcher_is_neither_written_nor_looked_for(
    toy: Toy, bundle: DummyBundle
) -> None:
    place = bundle.folder / "__pycache__"
    start(bundle.folder, "info")
    assert place.is_file()
    # Without that file Python writes there, which the self-test refuses.
    place.unlink()
    code, said = start(bundle.folder, "selftest")
    assert code == DAMAGED and "__pycache__: isn't listed" in said and "hint: " in said


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": []}', '{"files": {"runtime/x": 1}}', "[" * 9999]
)
def test_what_is_no_manifest(bundle: DummyBundle, text: str) -> None:
    (bundle.folder / "manifest.json").write_text(text)
    code, said = start(bundle.folder, "selftest")
    assert (code, "[bundle-manifest]" in said, "hint: " in said) == (MALFORMED, True, True), said
    assert "manifest.json can't be read" in said and "Traceback" not in said


@pytest.mark.parametrize("change", ["missing", "link", "fifo"])
def test_where_no_manifest_is(bundle: DummyBundle, change: str) -> None:
    place = bundle.folder / "manifest.json"
    place.rename(bundle.folder.parent / "elsewhere.json")
    if change == "link":
        place.symlink_to("../elsewhere.json")
    elif change == "fifo":
        os.mkfifo(place)
    code, said = start(bundle.folder, "info")
    assert code == MALFORMED and "[bundle-manifest]" in said and "Traceback" not in said, said
