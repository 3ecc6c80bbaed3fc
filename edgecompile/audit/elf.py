"""Reads what a compiled library or object file asks of the system that loads it.

Only facts are gathered here; edgecompile.audit.judge judges them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from edgecompile.errors import ElfError

_MACHINES = {"EM_X86_64": "x86-64", "EM_AARCH64": "aarch64"}
_KINDS = {"ET_REL": "object", "ET_DYN": "shared", "ET_EXEC": "executable"}
_EXECUTABLE = 1  # PF_X
_SHF_EXECINSTR = 4
_DF_TEXTREL = 4
_DF_STATIC_TLS = 16
_SYMBOL_LIMIT = 1_000_000
_VERSION_LIMIT = 10_000


@dataclass(frozen=True)
class UndefinedSymbol:
    """A symbol that another file has to provide.

    Attributes:
        name: the linker's name, not demangled.
        weak: the loader leaves it null where no library provides it.
        version: symbol version asked for, such as GLIBC_2.34; "" if none.
        library: DT_NEEDED name that is to provide that version; "" if unversioned.
    """

    name: str
    weak: bool = False
    version: str = ""
    library: str = ""


@dataclass(frozen=True)
class VersionNeed:
    """A symbol version that a library must provide, and the symbols for which it is asked."""

    library: str
    version: str
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class ElfInfo:
    """The facts that an ELF file states about itself.

    Attributes:
        name: the file's name, without its folder.
        kind: object, shared or executable.
        machine: x86-64 or aarch64; else the ELF constant, such as EM_RISCV.
        soname: DT_SONAME, or "".
        needed: DT_NEEDED entries in order.
        rpath: DT_RPATH entries, then DT_RUNPATH entries.
        version_needs: sorted by library and version.
        executable_stack: loading it makes the process's stack executable.
        text_relocations: loading it writes to its code.
        static_tls: its thread-local variables need room that was set aside when the process began.
        page_size: the largest page of a system that can map it, in bytes: the least alignment of
            its segments. 0 if it has none.
        undefined: sorted by name.
        exported: defined symbols that others can bind to, sorted.
    """

    name: str
    kind: str
    machine: str
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    version_needs: tuple[VersionNeed, ...]
    executable_stack: bool
    text_relocations: bool
    static_tls: bool
    page_size: int
    undefined: tuple[UndefinedSymbol, ...]
    exported: tuple[str, ...]

    def highest_version(self, prefix: str) -> str | None:
        """The highest version needed of a series: "2.34" for ``GLIBC`` and GLIBC_2.34."""
        versions = [
            need.version[len(prefix) + 1 :]
            for need in self.version_needs
            if need.version.startswith(prefix + "_")
        ]
        numbered = [version for version in versions if version[:1].isdigit()]
        return max(numbered, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    """Sorts dotted versions by number: 2.9 before 2.34. Other characters end the number."""
    parts = []
    for part in version.split("."):
        digits = "".join(itertools.takewhile(str.isdigit, part))
        parts.append(int(digits) if digits.isascii() and digits else 0)
    return tuple(parts)


def read_elf(path: str | os.PathLike[str]) -> ElfInfo:
    """Reads an object file, shared library or executable for a 64-bit little-endian machine.

    Raises:
        ElfError: the file can't be opened, is no such ELF file, or is damaged.
    """
    return _open(path, _read)


def read_functions(path: str | os.PathLike[str]) -> tuple[tuple[int, int, str], ...]:
    """(start, end, name) of the functions that a library's symbol tables name, by address.

    Empty for object files, whose addresses mean nothing yet.

    Raises:
        ElfError: see ``read_elf``.
    """
    return _open(path, _read_functions)


_Result = TypeVar("_Result")


def _open(path: str | os.PathLike[str], read: Callable[[ELFFile, Path], _Result]) -> _Result:
    path = Path(path)
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise ElfError(f"can't read {path}: {error.strerror}") from error
    with file:
        if file.read(4) != b"\x7fELF":
            raise ElfError(f"{path} ({size} bytes) is not an ELF file: it doesn't begin as one")
        file.seek(0)
        try:
            return read(ELFFile(file), path)
        except ElfError:
            raise
        except Exception as error:  # pyelftools lets many kinds through on damaged files
            reason = str(error) or type(error).__name__
            raise ElfError(
                f"{path} ({size} bytes) is a damaged ELF file: {reason}",
                hint="it may have been truncated; build it again",
            ) from error


def _read(elf: ELFFile, path: Path) -> ElfInfo:
    if elf.elfclass != 64 or not elf.little_endian:
        order = "little" if elf.little_endian else "big"
        raise ElfError(
            f"{path} is a {elf.elfclass}-bit {order}-endian ELF file; "
            "only 64-bit little-endian machines are known"
        )
    kind = _KINDS.get(elf["e_type"])
    if kind is None:
        raise ElfError(f"{path} is neither object file nor library nor executable: {elf['e_type']}")
    sections = list(elf.iter_sections())
    dynamic = _dynamic(sections)
    versions = _versions(sections)
    numbers = next((s for s in sections if isinstance(s, GNUVerSymSection)), None)
    undefined = {}
    exported = set()
    for index, symbol in _symbols(sections, ".symtab" if kind == "object" else ".dynsym", path):
        binding, shndx = symbol["st_info"]["bind"], symbol["st_shndx"]
        if not symbol.name or binding == "STB_LOCAL":
            continue
        if shndx == "SHN_UNDEF":
            number = None if numbers is None else numbers.get_symbol(index)["ndx"]
            named = number & 0x7FFF if isinstance(number, int) else -1
            library, version = versions.get(named, ("", ""))
            undefined[symbol.name] = UndefinedSymbol(
                symbol.name, binding == "STB_WEAK", version, library
            )
        elif symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED"):
            exported.add(symbol.name)
    needs: dict[tuple[str, str], list[str]] = {pair: [] for pair in versions.values()}
    for name, symbol in sorted(undefined.items()):
        if symbol.version:
            needs[symbol.library, symbol.version].append(name)
    return ElfInfo(
        name=path.name,
        kind=kind,
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        soname=next(iter(dynamic.get("DT_SONAME", [])), ""),
        needed=tuple(dynamic.get("DT_NEEDED", ())),
        rpath=(*dynamic.get("DT_RPATH", ()), *dynamic.get("DT_RUNPATH", ())),
        version_needs=tuple(VersionNeed(*pair, tuple(needs[pair])) for pair in sorted(needs)),
        executable_stack=_executable_stack(elf, sections, kind),
        text_relocations="DT_TEXTREL" in dynamic
        or any(flags & _DF_TEXTREL for flags in dynamic.get("DT_FLAGS", ())),
        static_tls=any(flags & _DF_STATIC_TLS for flags in dynamic.get("DT_FLAGS", ())),
        page_size=min(
            (s["p_align"] for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"), default=0
        ),
        undefined=tuple(undefined[name] for name in sorted(undefined)),
        exported=tuple(sorted(exported)),
    )


def _read_functions(elf: ELFFile, path: Path) -> tuple[tuple[int, int, str], ...]:
    if elf["e_type"] == "ET_REL":
        return ()
    sections = list(elf.iter_sections())
    functions = set()
    for table in (".symtab", ".dynsym"):
        present = any(section.name == table for section in sections)
        for _, symbol in _symbols(sections, table, path) if present else ():
            start, length = symbol["st_value"], symbol["st_size"]
            if symbol["st_info"]["type"] == "STT_FUNC" and length and symbol.name:
                functions.add((start, start + length, str(symbol.name)))
    return tuple(sorted(functions))


def _dynamic(sections: list[Any]) -> dict[str, list[Any]]:
    """Values of the dynamic section by tag: names for the string tags, numbers for others."""
    values: dict[str, list[Any]] = {}
    for section in sections:
        if isinstance(section, DynamicSection):
            for tag in itertools.islice(section.iter_tags(), _VERSION_LIMIT):
                name = str(tag.entry.d_tag)
                # Of string tags pyelftools gives the text by the tag's name.
                text = getattr(tag, name.removeprefix("DT_").lower(), tag.entry.d_val)
                values.setdefault(name, []).append(text)
    return values


def _symbols(sections: list[Any], name: str, path: Path) -> Iterator[tuple[int, Any]]:
    for section in sections:
        if isinstance(section, SymbolTableSection) and section.name == name:
            if section.num_symbols() > _SYMBOL_LIMIT:
                raise ElfError(f"{path} claims {section.num_symbols()} symbols")
            yield from enumerate(section.iter_symbols())
            return
    if name == ".dynsym":
        raise ElfError(f"{path} has no dynamic symbol table: it can't be loaded as a library")


def _versions(sections: list[Any]) -> dict[int, tuple[str, str]]:
    """(library, version) of every entry of .gnu.version_r, by its number."""
    entries = (
        (auxiliary["vna_other"] & 0x7FFF, (str(library.name), str(auxiliary.name)))
        for section in sections
        if isinstance(section, GNUVerNeedSection)
        for library, auxiliaries in itertools.islice(section.iter_versions(), _VERSION_LIMIT)
        for auxiliary in auxiliaries
    )
    # A damaged chain can point at itself; real ones have some dozen entries.
    return dict(itertools.islice(entries, _VERSION_LIMIT))


def _executable_stack(elf: ELFFile, sections: list[Any], kind: str) -> bool:
    """Whether the file asks for one. Saying nothing is asking for it, on the machines known."""
    if kind == "object":
        notes = [section for section in sections if section.name == ".note.GNU-stack"]
        return not notes or bool(notes[0]["sh_flags"] & _SHF_EXECINSTR)
    stacks = [s for s in elf.iter_segments() if s["p_type"] == "PT_GNU_STACK"]
    return not stacks or bool(stacks[0]["p_flags"] & _EXECUTABLE)
