"""Starts the runtime in a bundle, as NAME.ecb/__main__.py. From outside:

    python3 NAME.ecb COMMAND …          a command of the runtime, on this bundle
    python3 NAME.ecb FILE.py …          a program that imports edgecompile.runtime
    python3 NAME.ecb -m MODULE …        a module of the runtime, or one that imports it
    python3 -I NAME.ecb/__main__.py …   the same, and nothing else in the folder can run before this

Every file in runtime/ is compared with manifest.json before one is imported, and what isn't listed
is refused. Modules are made from the bytes that were compared; byte code is neither read nor
written. What this can't do is vouch for itself and for the manifest: see docs/security.md.
"""

import posix  # built in, as sys is: any other import looks at sys.path first
import sys

HERE = __file__.rpartition("/")[0] or "."


def _inside(path: str) -> bool:
    """Whether a folder or an archive is in the bundle, or is reached through it."""
    path, last = path if path.startswith("/") else "./" + path, ""
    while path and last != "..":  # what comes before it needn't be above
        if _below(path):
            return True
        path, _, last = path.rpartition("/")
    return False


def _below(path: str) -> bool:
    """Whether a folder is the bundle, or is in it."""

    def identity(place: str) -> object:
        info = posix.stat(place)
        return info.st_dev, info.st_ino

    try:
        bundle, below = identity(HERE), object()
        while identity(path) not in (bundle, below):
            below, path = identity(path), path + "/.."
        return identity(path) == bundle
    except OSError:  # there is no such folder
        return False


if __name__ == "__main__":
    # Python puts the bundle first, and PYTHONPATH may name its runtime/: a json.py or numpy/ that
    # somebody left there mustn't be imported.
    sys.path[:] = [path for path in sys.path if not _inside(path)]

import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
from importlib import import_module  # noqa: E402
from importlib.machinery import ModuleSpec  # noqa: E402
from types import CodeType, ModuleType  # noqa: E402
from typing import Any, Dict, List, NoReturn, Optional  # noqa: E402

# The exit codes of errors.BundleError, DamagedBundleError and FilePermissionError.
NO_NUMPY = 1
USAGE, MALFORMED, DAMAGED, NOT_PERMITTED = 2, 20, 22, 71
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def refuse(code: int, message: str, hint: str) -> NoReturn:
    """Ends the program."""
    sys.stderr.write("error: {}\nhint: {}\n".format(message, hint))
    sys.exit(code)


def compare(bundle: str) -> Dict[str, bytes]:
    """The content of each file of runtime/ by its path in the bundle, all as the manifest says.

    Raises:
        PermissionError: this user may not read one of them, or a folder.
    """
    try:
        with open(os.open(os.path.join(bundle, "manifest.json"), _FLAGS), "rb") as stream:
            files = json.load(stream)["files"].items()
        listed = {
            name: (int(entry["size"]), entry["sha256"])
            for name, entry in files
            if name.startswith("runtime/")
        }
    except PermissionError:
        raise
    except Exception as error:  # whatever a document that isn't a manifest leads to
        text = "{}: manifest.json can't be read: {!r} [bundle-manifest]".format(bundle, error)
        refuse(MALFORMED, text, "the bundle isn't complete: copy it again")
    contents: Dict[str, bytes] = {}
    problems: List[str] = []
    folders = ["runtime"]
    for folder in folders:
        place = os.path.join(bundle, folder)
        try:
            entries = list(os.scandir(os.open(place, _FLAGS | os.O_DIRECTORY)))
        except PermissionError:
            raise
        except OSError:  # such as a link
            continue  # the files in it count as changed below
        for entry in entries:
            name = folder + "/" + entry.name
            if name in listed:
                contents[name] = _read(os.path.join(place, entry.name), listed[name][0])
            elif any(other.startswith(name + "/") for other in listed):
                folders.append(name)
            # An empty file of this name keeps Python from writing byte code.
            elif (
                entry.name != "__pycache__"
                or not entry.is_file(follow_symlinks=False)
                or entry.stat().st_size
            ):
                problems.append(ascii(name)[1:-1] + ": isn't listed [file-unlisted]")
    for name, (size, sha256) in listed.items():
        data = contents.get(name, b"")
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            text = ": isn't the file that the manifest lists [file-hash]"
            problems.append(ascii(name)[1:-1] + text)
    if problems:
        text = "{}: {}".format(bundle, "\n  ".join(sorted(problems)[:40]))
        refuse(DAMAGED, text, "remove what isn't listed, or copy the bundle again")
    return contents


def _read(path: str, size: int) -> bytes:
    """The first ``size`` bytes of a file and one more; none of a link."""
    try:
        with open(os.open(path, _FLAGS), "rb") as stream:
            return stream.read(size + 1) or b""
    except PermissionError:
        raise
    except OSError:
        return b""


class Compared:
    """Imports edgecompile from bytes that were compared, and from nowhere else."""

    def __init__(self, bundle: str, files: Dict[str, bytes]) -> None:
        self.bundle, self.files = bundle, files
        self.launcher = os.path.join(bundle, "__main__.py")  # for processes that are started

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """As importlib asks."""
        if name.partition(".")[0] != "edgecompile":
            return None
        file = self._file(name)
        place = os.path.join(self.bundle, file)
        package = file.endswith("/__init__.py")
        spec = ModuleSpec(name, self, origin=place, is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def _file(self, name: str) -> str:
        base = "runtime/" + name.replace(".", "/")
        for file in (base + "/__init__.py", base + ".py"):
            if file in self.files:
                return file
        # Not None: another finder may know a package of this name.
        raise ModuleNotFoundError("{} isn't in {}".format(name, self.bundle), name=name)

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills a new module."""
        assert module.__spec__ is not None
        exec(self.get_code(module.__spec__.name), module.__dict__)  # noqa: S102

    def get_code(self, name: str) -> CodeType:
        """The code of a module, for this loader and for runpy."""
        file = self._file(name)
        place = os.path.join(self.bundle, file)
        code: CodeType = compile(self.files[file], place, "exec", dont_inherit=True)
        return code

    def get_source(self, name: str) -> str:
        """For tracebacks."""
        return self.files[self._file(name)].decode("utf-8")


def main(arguments: List[str]) -> None:
    """Runs what the arguments name."""
    bundle = os.path.abspath(HERE)
    try:
        files = compare(bundle)
    except PermissionError as error:
        text = "{}: user {} isn't permitted to read it".format(error.filename, os.geteuid())
        hint = "give this user the right: chmod -R a+rX BUNDLE, and x on each folder above it"
        refuse(NOT_PERMITTED, text, hint)
    sys.meta_path.insert(0, Compared(bundle, files))
    if arguments[:1] == ["-m"] and arguments[1:]:
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif arguments and arguments[0].endswith(".py"):
        if not os.path.isfile(arguments[0]):
            refuse(USAGE, arguments[0] + ": there is no such program", "check the path")
        sys.argv = arguments
        folder = os.path.dirname(os.path.abspath(sys.argv[0]))
        if not _inside(folder):
            sys.path.insert(0, folder)
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        name = "python3 " + os.path.basename(bundle)
        if "runtime/edgecompile/torch_runtime/__main__.py" in files:
            import_module("edgecompile.torch_runtime")  # registers its loader
        try:
            program = import_module("edgecompile.runtime.__main__")
            sys.exit(program.main(arguments, program.make_parser(name, bundle)))
        except ModuleNotFoundError as error:
            if error.name != "numpy":
                raise
            text = "the runtime needs the Python package numpy, which isn't installed here"
            refuse(NO_NUMPY, text, "pip install numpy")


if __name__ == "__main__":
    main(sys.argv[1:])
