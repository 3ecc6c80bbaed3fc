"""Opens hostile bundles in a process of its own, watched from inside.

Standard input names a bundle a line; for each a line of JSON goes to standard output (``Answer`` in
loaders.py reads it). What the process does meanwhile is recorded by an audit hook and by wrapping
the functions that open, hash and load:

- nothing outside the bundle's folder is opened, nothing is written, no process or socket is made;
- a library is loaded only by the descriptor whose content was hashed before, and that content has a
  hash that the manifest lists.

    python worker.py MEMORY_MIB SECONDS [once]

With ``once`` a bundle that opening refuses is tried in no other way.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import edgecompile
import edgecompile.runtime.cpu.programs
import edgecompile.runtime.format.files.folder as files
import edgecompile.runtime.format.files.hashes as hashes
import edgecompile.runtime.model.model
from edgecompile.runtime.__main__ import main
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.cpu import library
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.agreement import named_rules

#: Audit events that no loader has a reason to cause.
FORBIDDEN = re.compile(
    r"os\.(remove|rename|mkdir|rmdir|link|symlink|chmod|chown|truncate|utime|system|exec|fork|"
    r"forkpty|posix_spawn|spawn|kill|putenv|listdir|scandir|chdir|setxattr|removexattr)|"
    r"(subprocess|socket|shutil|tempfile|pickle|webbrowser|urllib|ftplib|http|smtplib|pty|sqlite3)\."
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Read to describe the machine; none of them depends on the bundle.
_HARMLESS = ("/proc/cpuinfo", "/proc/meminfo", "/proc/self/statm", "/sys/devices/system/cpu")
#: The folder of this package, which has the versions of its wheels. Python lists those of modules that it imports.
PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(edgecompile.__file__)))
#: A descriptor that is open already: to find out why a library couldn't be mapped.
_OWN = re.compile(r"/proc/self/fd/[0-9]+")


class Watch:
    """Steps taken while a bundle is open."""

    def __init__(self) -> None:
        self.folder = ""
        self.real = ""
        self.active = False
        self.violations: list[str] = []
        # (device, inode) -> digests of what was hashed there, in this process.
        self.hashed: dict[tuple[int, int], set[str]] = {}
        self.listed: frozenset[str] = frozenset()
        self.loaded = 0

    def begin(self, folder: str) -> None:
        self.folder, self.real = folder, os.path.realpath(folder)
        self.violations = []
        self.listed = frozenset()
        self.active = True

    def accuse(self, text: str) -> None:
        self.violations.append(text[:300])

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            self._opening(*arguments)
        elif event == "ctypes.dlopen":
            self.active = False  # looking at it is no part of loading it
            self.check_library(str(arguments[0]))
            self.active = True
        elif event == "os.scandir" and isinstance(arguments[0], int):
            self.check_opened("a folder that is listed", arguments[0])
        elif event == "os.listdir" and _is_package(arguments[0]):
            pass
        elif FORBIDDEN.match(event):
            self.accuse(f"{event} {arguments!r}")

    def _opening(self, path: object, mode: object, flags: int) -> None:
        if isinstance(path, int):
            return  # a descriptor that is open already
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path)
        if flags & _WRITES:
            self.accuse(f"opens {text!r} for writing")
        elif (
            text == self.folder
            or text.startswith(_HARMLESS)
            or _is_module(text)
            or _OWN.fullmatch(text)
        ):
            pass
        elif "/" in text or text in ("", ".", "..") or not flags & os.O_NOFOLLOW:
            self.accuse(f"opens {text!r} with flags {flags:#o}")

    def check_opened(self, path: object, fd: int) -> None:
        """Where a descriptor really leads."""
        if self.active and not _OWN.fullmatch(str(path)):
            place = os.readlink(f"/proc/self/fd/{fd}")
            inside = place == self.real or place.startswith(self.real + "/")
            if not inside and not place.startswith(_HARMLESS) and not _is_module(place):
                self.accuse(f"{path!r} led to {place!r}")

    def note_hash(self, fd: int, digest: str) -> None:
        info = os.fstat(fd)
        self.hashed.setdefault((info.st_dev, info.st_ino), set()).add(digest)

    def check_library(self, path: str) -> None:
        """Looks at a library just before the dynamic loader does."""
        self.loaded += 1
        if not _OWN.fullmatch(path):
            return self.accuse(f"loads {path!r}, not a descriptor")
        info = os.stat(path)
        before = self.hashed.get((info.st_dev, info.st_ino), set())
        with open(path, "rb", buffering=0) as stream:
            actual = hashlib.sha256(stream.readall()).hexdigest()
        if actual not in before:
            self.accuse(f"loads {actual}, hashed before: {sorted(before)}")
        if actual not in self.listed:
            self.accuse(f"loads {actual}, which the manifest doesn't list")


def _is_package(folder: object) -> bool:
    own = os.path.join(PACKAGES, "edgecompile", "")
    return folder == PACKAGES or (isinstance(folder, str) and folder.startswith(own))


def _is_module(path: str) -> bool:
    roots = {sys.prefix, sys.base_prefix, *(item for item in sys.path if item)}
    return path.endswith((".py", ".pyc", ".so")) and any(
        path.startswith(root.rstrip("/") + "/") for root in roots
    )


def install(watch: Watch) -> None:
    """Wraps what the loader opens, hashes and loads with; the audit hook can't be taken off."""
    os_open, hash_descriptor = os.open, hashes.hash_descriptor
    parse, open_program = files.parse_manifest, library.RuntimeLibrary.open_program
    find_loaded = library.find_loaded

    def opening(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        fd = os_open(path, flags, *rest, **named)
        watch.check_opened(path, fd)
        return fd

    def hashing(fd: int, *rest: Any) -> tuple[str, int]:
        digest, size = hash_descriptor(fd, *rest)
        watch.note_hash(fd, digest)
        return digest, size

    def parsing(data: bytes, *rest: Any) -> Any:
        manifest = parse(data, *rest)
        watch.listed = frozenset(entry.sha256 for entry in manifest.files.values())
        return manifest

    def open_checked(self: Any, pinned: Any, *rest: Any) -> Any:
        # The native runtime opens programs, which no audit event tells of.
        if watch.active:
            watch.active = False
            watch.check_library(pinned.path)
            watch.active = True
        return open_program(self, pinned, *rest)

    def finding(soname: str) -> Any:
        # Asks the dynamic loader what it has loaded already; loads nothing.
        if "/" in soname:
            watch.accuse(f"looks for {soname!r}, a path")
        active, watch.active = watch.active, False
        loaded = find_loaded(soname)
        watch.active = active
        return loaded

    os.open = opening
    hashes.hash_descriptor = hashing
    files.parse_manifest = parsing
    library.find_loaded = finding
    library.RuntimeLibrary.open_program = open_checked  # type: ignore[method-assign]
    sys.addaudithook(watch.audit)


def _open(path: str) -> str:
    with open_bundle(path, threads=1, verify="full") as model:
        return json.dumps(model.info) + json.dumps(model.stats)


def _command(name: str, *options: str) -> Callable[[str], str]:
    def run(path: str) -> str:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        errors = io.StringIO()
        with redirect_stdout(stream), redirect_stderr(errors):
            code = main([name, path, "--debug", *options])
            stream.flush()
        return f"exit code {code}"

    return run


#: What is tried on every bundle; the first one's answer is compared with other loaders'.
ATTEMPTS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("open", _open),
    ("info", _command("info")),
    ("selftest", _command("selftest", "--verify", "fast", "--json")),
)


def attempt(watch: Watch, path: str, once: bool = False) -> dict[str, Any]:
    """Everything about one bundle: the exit code and rules of opening it, and what went wrong."""
    answer: dict[str, Any] = {"code": 0, "rules": [], "text": "", "crashes": []}
    for name, call in ATTEMPTS:
        watch.begin(path)
        try:
            call(path)
        except EdgecompileError as error:
            text = str(error)
            if name == "open":
                answer.update(code=error.exit_code, text=text[:2000])
                answer["rules"] = sorted(named_rules(text))
            if len(text) > 200_000:
                answer["crashes"].append(f"{name}: a message of {len(text)} characters")
        except BaseException as error:
            tail = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(tail.filename)}:{tail.lineno}"
            answer["crashes"].append(f"{name}: {type(error).__name__} at {place}: {error}"[:400])
            if name == "open":
                answer["code"] = -1
        finally:
            watch.active = False
        answer["crashes"] += [f"{name}: {text}" for text in watch.violations]
        if once and answer["code"]:
            break
    return answer


def read_kib(key: str) -> int:
    """VmRSS or VmHWM of this process: its resident memory, and the most it ever was."""
    with open("/proc/self/status") as stream:
        match = re.search(key + r":\s*([0-9]+)", stream.read())
    return int(match.group(1)) if match else 0


def forget_peak() -> None:
    """Lets VmHWM begin anew at VmRSS."""
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")


def serve(memory_mib: int, seconds: int, once: bool = False) -> None:
    """Answers until standard input ends. A case that takes more CPU time ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    watch = Watch()
    install(watch)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds + 1, resource.RLIM_INFINITY))
        forget_peak()
        before = read_kib("VmRSS")
        started = time.perf_counter()
        answer = attempt(watch, line.rstrip("\n"), once)
        answer["seconds"] = time.perf_counter() - started
        answer["kib"] = max(read_kib("VmHWM") - before, 0)
        answer["loaded"] = watch.loaded
        answer["descriptors"] = len(os.listdir("/proc/self/fd"))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), "once" in sys.argv[3:])
