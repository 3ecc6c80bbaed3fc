"""C++ compilers: finding them, running them, remembering what was run.

Objects are kept in a content-addressed cache: the key covers the compiler's version, every flag,
the source's bytes and the identity of the headers, so that an unchanged source is never compiled
twice, nor by two processes at a time. Entries are written beside and renamed, which makes concurrent builds safe.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import edgecompile.runtime
from edgecompile.errors import CompileError, DiskFullError, ToolchainError
from edgecompile.toolchain.locks import alone
from edgecompile.toolchain.precompiled import headers_wanted, precompile

#: Minimum g++: C++20 and GCC's vector extensions with vector conditions in C++.
MINIMUM_GCC = 10

#: Debian's packages that hold the tools for each architecture.
_PACKAGES = {
    "x86-64": "g++ binutils",
    "aarch64": "g++-aarch64-linux-gnu binutils-aarch64-linux-gnu",
}
_PREFIXES = {"x86-64": "x86_64-linux-gnu-", "aarch64": "aarch64-linux-gnu-"}

#: Flags of every object: position independent, no symbol leaves unless it is marked.
COMMON_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DNDEBUG")

#: Of these the one that C has not, and warns of.
_CPLUSPLUS_FLAG = "-fvisibility-inlines-hidden"

#: Functions of the compiler's own library that ask the CPU before they use newer instructions: their
#: names stay in the libraries, so that a disassembly can tell them from the rest.
_KEPT_SYMBOLS = {
    "aarch64": ("__aarch64_*", "uw_*", "execute_stack_op*", "_Unwind_GetGR*"),
}

#: Changed when what this module does with the same arguments changes; part of every key.
_RECIPE = b"3"


@dataclass(frozen=True)
class Toolchain:
    """The tools that build for one architecture.

    Attributes:
        arch: ``x86-64`` or ``aarch64``.
        cxx: path of g++.
        objcopy: path of objcopy.
        nm: path of nm.
        version: first line of ``g++ --version``.
    """

    arch: str
    cxx: str
    objcopy: str
    nm: str
    version: str


@dataclass(frozen=True)
class BuiltObject:
    """An object file in the cache.

    Attributes:
        path: the object file.
        seconds: the build time; 0 when it came from the cache.
        command: the command that was run, with the source and the output left out.
    """

    path: Path
    seconds: float
    command: tuple[str, ...]


@lru_cache(maxsize=8)
def find_toolchain(arch: str = "x86-64") -> Toolchain:
    """Finds g++, objcopy and nm for ``arch``.

    ``$EDGECOMPILE_CXX`` names another compiler for x86-64.

    Raises:
        ToolchainError: a tool is missing or too old; says which package has it.
    """
    if arch not in _PREFIXES:
        raise ToolchainError(
            f"there is no toolchain for architecture '{arch}'",
            hint="known architectures: " + ", ".join(sorted(_PREFIXES)),
        )
    install = f"on Debian or Ubuntu: apt-get install {_PACKAGES[arch]}"
    override = os.environ.get("EDGECOMPILE_CXX") if arch == "x86-64" else None
    cxx = _find(arch, override or "g++", exact=override is not None)
    tools = {"g++": cxx, "objcopy": _find(arch, "objcopy"), "nm": _find(arch, "nm")}
    missing = [
        override if name == "g++" and override else name for name, p in tools.items() if not p
    ]
    if missing:
        raise ToolchainError(f"no {', '.join(missing)} for {arch} on this machine", hint=install)
    version = _output([str(cxx), "--version"]).splitlines()[0]
    major = _output([str(cxx), "-dumpversion"]).split(".")[0].strip()
    if not major.isdigit() or int(major) < MINIMUM_GCC:
        raise ToolchainError(
            f"{cxx} is version {major or 'unknown'}; {MINIMUM_GCC} or newer is needed", hint=install
        )
    return Toolchain(arch, str(cxx), str(tools["objcopy"]), str(tools["nm"]), version)


def _find(arch: str, tool: str, *, exact: bool = False) -> str | None:
    """The tool with the architecture's prefix, or the plain one if it is the host's."""
    if exact:
        return shutil.which(tool)
    prefixed = shutil.which(_PREFIXES[arch] + tool)
    if prefixed:
        return prefixed
    machine = os.uname().machine
    native = {"x86_64": "x86-64", "aarch64": "aarch64"}.get(machine)
    return shutil.which(tool) if native == arch else None


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolchainError(f"{command[0]} can't be run: {error}") from error


def cache_directory() -> Path:
    """The folder for objects: ``$EDGECOMPILE_CACHE_DIR``, else the user's cache directory."""
    explicit = os.environ.get("EDGECOMPILE_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "edgecompile"


def run_tool(command: Sequence[str], what: str) -> None:
    """Runs a tool of the toolchain.

    Raises:
        DiskFullError: the tool reported a full disk.
        CompileError: the tool failed; carries the end of what it printed.
    """
    environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk is full: {what}") from error
        raise ToolchainError(f"{command[0]} can't be run: {error}") from error
    if done.returncode == 0:
        return
    text = (done.stderr or done.stdout).strip()
    if "No space left on device" in text or "Disk quota exceeded" in text:
        raise DiskFullError(
            f"the disk is full: {what}", hint="free some space or put `work_dir` on another disk"
        )
    if done.returncode < 0:
        raise CompileError(
            f"{what}: {Path(command[0]).name} was killed by signal {-done.returncode}",
            hint="the usual cause is too little memory: build with `jobs=1`",
        )
    # The errors, without notes and template back traces.
    lines = [x for x in text.splitlines() if "error" in x or "undefined" in x or "cannot" in x]
    raise CompileError(f"{what} failed:\n" + "\n".join((lines or text.splitlines())[:12]))


def old_libc() -> Path:
    """A folder of headers that come before the C library's, so that code made with a new glibc runs with an old one."""
    return Path(next(iter(edgecompile.runtime.__path__))) / "native" / "libc"


def compile_object(
    toolchain: Toolchain,
    source: bytes,
    *,
    name: str,
    flags: Sequence[str],
    include_dirs: Sequence[Path] = (),
    headers_id: str = "",
    precompiled: str = "",
    precompiled_id: str | None = None,
) -> BuiltObject:
    """Compiles one translation unit, or takes it from the cache.

    Args:
        toolchain: the tools.
        source: the source's bytes; ``.c`` if ``name`` ends so, else C++.
        name: the name that appears in messages and in the object file.
        flags: compiler flags; part of the key.
        include_dirs: header directories; their paths aren't part of the key, so that the same
            project in another folder hits the same entry. ``headers_id`` stands for them.
        headers_id: the id of the content of the headers that the source may include from there.
        precompiled: the #include lines that the source begins with, or of C++'s own headers that may stand
            before it, to be taken from a precompiled header where those are asked for; see
            :mod:`edgecompile.toolchain.precompiled`. The object is the same either way.
        precompiled_id: the id of the headers that these lines include; None: ``headers_id``.

    Raises:
        CompileError, ToolchainError, DiskFullError.
    """
    is_c = name.endswith(".c")
    options = (*flags, *(flag for flag in COMMON_FLAGS if not (is_c and flag == _CPLUSPLUS_FLAG)))
    digest = hashlib.sha256(_RECIPE)
    for part in (toolchain.version, toolchain.cxx, name, *options, headers_id):
        digest.update(part.encode() + b"\0")
    digest.update(source)
    key = digest.hexdigest()
    directory = cache_directory() / "objects" / key[:2]
    target = directory / f"{key}.o"
    command = (toolchain.cxx, *options)
    if target.is_file():
        return BuiltObject(target, 0.0, command)
    scratch = directory / f"{key}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with alone(directory / f"{key[2]}.lock"):
            if target.is_file():
                return BuiltObject(target, 0.0, command)
            start = time.perf_counter()
            scratch.mkdir()
            (scratch / name).write_bytes(source)
            folders = (old_libc(), *include_dirs)
            includes = [f"-I{d}" for d in folders]
            # No folder's name may reach the object (through __FILE__, say), or builds would differ.
            includes += [f"-ffile-prefix-map={d}=include" for d in folders]
            if precompiled and headers_wanted():
                known = headers_id if precompiled_id is None else precompiled_id
                header = precompile(cache_directory(), [*command, *includes], precompiled, known)
                includes += ["-include", str(header)]
            remap = [f"-ffile-prefix-map={scratch}=."]
            output = scratch / "out.o"
            run_tool(
                [*command, *includes, *remap, "-c", str(scratch / name), "-o", str(output)],
                f"compiling {name}",
            )
            os.replace(output, target)
            return BuiltObject(target, time.perf_counter() - start, command)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk is full: {directory}") from error
        raise ToolchainError(
            f"the cache directory can't be written: {error}",
            hint="set EDGECOMPILE_CACHE_DIR to a directory that you can write",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def link_shared(
    toolchain: Toolchain,
    objects: Sequence[Path],
    output: Path,
    *,
    exports: Sequence[str],
    soname: str | None = None,
    libraries: Sequence[Path] = (),
) -> None:
    """Links a shared library that exports ``exports`` (patterns) and nothing else.

    libstdc++ and libgcc are linked statically with their symbols hidden: devices may lack them,
    and exported copies clash with another copy in the same process.
    """
    source = old_libc() / "new_names.cpp"
    names = compile_object(
        toolchain, source.read_bytes(), name=source.name, flags=("-O2", "-ffunction-sections")
    )
    # Names of its own: another process may be linking the same library.
    own = f"{output.name}.{uuid.uuid4().hex}"
    script = output.with_name(own + ".map")
    script.write_text("{ global: " + " ".join(f"{e};" for e in exports) + " local: *; };\n")
    partial = output.with_name(own + ".partial")
    command = [
        toolchain.cxx,
        "-shared",
        "-static-libstdc++",
        "-static-libgcc",
        "-Wl,--exclude-libs,ALL",
        f"-Wl,--version-script={script}",
        "-Wl,-z,noexecstack,-z,relro,-z,now",
        # The runtime's threads run its code until the process ends: it must never be unmapped.
        "-Wl,-z,nodelete",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,--as-needed",
        "-Wl,-z,defs",
        "-o",
        str(partial),
        *map(str, [*objects, names.path, *libraries]),
    ]
    if soname:
        command.append(f"-Wl,-soname,{soname}")
    symbols = _KEPT_SYMBOLS.get(toolchain.arch)
    if not symbols:
        command.append("-s")
    try:
        run_tool(command, f"linking {output.name}")
        if symbols:
            options = [f"--keep-symbol={name}" for name in symbols]
            strip = [toolchain.objcopy, "--strip-all", "--wildcard", *options, str(partial)]
            run_tool(strip, f"stripping {output.name}")
        os.replace(partial, output)
    finally:
        script.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def undefined_symbols(toolchain: Toolchain, obj: Path) -> frozenset[str]:
    """Names that an object file needs from elsewhere, weak ones included."""
    text = _output([toolchain.nm, "--format=posix", "--undefined-only", str(obj)])
    return frozenset(line.split()[0] for line in text.splitlines() if line.strip())


def dynamic_symbols(library: Path, *, defined: bool) -> frozenset[str]:
    """Names that a shared library offers, or those that it needs from elsewhere.

    They are read without binutils, which a host that only packs bundles may lack.
    """
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        symbols = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
        return frozenset(
            symbol.name
            for symbol in symbols
            if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
        )


def rename_symbols(toolchain: Toolchain, source: Path, output: Path, names: dict[str, str]) -> None:
    """Copies an object file with symbols renamed."""
    table = output.with_name(output.name + ".syms")
    table.write_text("".join(f"{old} {new}\n" for old, new in sorted(names.items())))
    try:
        run_tool(
            [toolchain.objcopy, f"--redefine-syms={table}", str(source), str(output)],
            f"renaming symbols of {source.name}",
        )
    finally:
        table.unlink(missing_ok=True)
