"""Targets of a build: device profiles (profiles/*.toml) and the variants that they name.

A profile describes a device or a class of devices: its cores, memory, speed, the oldest system
that must load the result, and the instruction-set variants to build. Variants stand in files of
their own (profiles/variants/*.toml), so that all profiles mean the same by "x86-64-v3".
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import TargetError
from edgecompile.files import plain_fields
from edgecompile.targets.gpu import GpuSpec, gpu_problems
from edgecompile.targets.schema import (
    PROFILE_KEYS,
    check_table,
    features_problems,
    problems_error,
    read_table,
    search_path,
    variant_problems,
)


@dataclass(frozen=True)
class VariantSpec:
    """One instruction set of one architecture, and how code is made for it.

    Attributes:
        name: such as ``x86-64-v3``; the folder under code/ in a bundle.
        arch: ``x86-64`` or ``aarch64``.
        march: the compiler's ``-march=``.
        simdlen: bits of a vector register.
        cpu_capability: torch's CPU_CAPABILITY macro: AVX2, AVX512, NEON or DEFAULT (scalar).
        requires: CPU features, in the names of the runtime's probe, without which code of this
            variant must not be loaded.
        rank: the order of preference: of all variants that a host can run, the highest rank is
            loaded.
        extra_flags: further compiler flags.
        description: a description for people.
    """

    name: str
    arch: str
    march: str
    simdlen: int
    cpu_capability: str
    requires: tuple[str, ...]
    rank: int
    extra_flags: tuple[str, ...] = ()
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; ``from_json`` reverses it."""
        return plain_fields(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VariantSpec:
        """Reads what ``to_json`` wrote; raises TargetError naming every problem."""
        problems = variant_problems(data)
        if problems:
            raise problems_error("a variant's description is malformed", problems)
        return cls(**_frozen(data))


@dataclass(frozen=True)
class TargetProfile:
    """A device, or a class of devices.

    Attributes:
        name: the value of ``--target``; the file's name without ``.toml``.
        kind: the family of backends that builds for it: ``cpu``, ``jetson``, or ``cuda`` for another
            machine with a GPU.
        description: a description for people.
        variants: the variants to build, highest rank last.
        cores: CPU cores that inference may use.
        memory_gib: main memory in GiB.
        glibc: oldest glibc that must load the libraries, such as "2.34".
        python: oldest Python on the device, such as "3.9".
        clock_ghz: sustained clock of all cores, or None where it isn't known.
        bandwidth_gbs: main memory bandwidth, 1e9 bytes per second, or None where it isn't known.
        peak_gflops: (precision, 1e9 operations per second of all cores together) pairs; a
            multiply-add counts as two. Empty where it isn't known: costs then have to be measured.
        features: (arch, feature names) pairs that every member of the class has; where the
            profile names none, what its least demanding variant of that arch requires.
        sources: (key, where the figure comes from) pairs.
        gpu: the GPU of a ``jetson`` or ``cuda``; its variants are then for the machine's own cores,
            to fall back to.
        jetpacks: releases of a ``jetson``'s system to build for, the first by default.
        tensorrt: major.minor of a ``cuda``'s TensorRT; empty: any from 10.3 on.
    """

    name: str
    kind: str
    description: str
    variants: tuple[VariantSpec, ...]
    cores: int
    memory_gib: float
    glibc: str
    python: str
    clock_ghz: float | None = None
    bandwidth_gbs: float | None = None
    peak_gflops: tuple[tuple[str, float], ...] = ()
    features: tuple[tuple[str, tuple[str, ...]], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    gpu: GpuSpec | None = None
    jetpacks: tuple[str, ...] = ()
    tensorrt: str = ""

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures of the variants, each once, in the variants' order."""
        return tuple(dict.fromkeys(variant.arch for variant in self.variants))

    def features_of(self, arch: str) -> tuple[str, ...]:
        """The features that every device of the class with this architecture has; () if none."""
        return dict(self.features).get(arch, ())

    def peak(self, precision: str = "fp32") -> float:
        """Peak GFLOP/s of all cores together at a precision; fp32's where it isn't stated.

        Raises:
            TargetError: the profile states no peak.
        """
        table = dict(self.peak_gflops)
        if not table:
            raise TargetError(
                f"the profile {self.name} states no peak_gflops", hint="add it, with its source"
            )
        return table.get(precision, table["fp32"])

    def variant(self, name: str) -> VariantSpec:
        """The variant of this name; raises TargetError naming those that there are."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        names = [variant.name for variant in self.variants]
        raise TargetError(
            f"target {self.name} has no variant {name!r}", hint=_suggest(name, names, "variants")
        )

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; ``from_json`` reverses it. Holds no path of the build machine."""
        data = plain_fields(self)
        for key in ("peak_gflops", "features", "sources"):
            data[key] = dict(data[key])
        # A profile of a CPU has no keys of GPUs.
        return {k: v for k, v in data.items() if v or k not in ("gpu", "jetpacks", "tensorrt")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TargetProfile:
        """Reads what ``to_json`` wrote; raises TargetError naming every problem."""
        rest = {key: value for key, value in data.items() if key != "variants"}
        problems = check_table({**rest, "variants": ["-"]}, PROFILE_KEYS, "profile")
        if problems or not isinstance(data.get("variants"), list):
            raise problems_error("a profile is malformed", problems or ["variants: not a list"])
        variants = tuple(VariantSpec.from_json(item) for item in data["variants"])
        return _assemble(rest, variants, "a profile is malformed")


def list_targets(folders: Sequence[Path] | None = None) -> tuple[str, ...]:
    """The names that ``load_target`` knows, sorted. Files aren't read."""
    return _names(search_path() if folders is None else folders)


def list_variants(folders: Sequence[Path] | None = None) -> tuple[str, ...]:
    """The names that ``load_variant`` knows, sorted. Files aren't read."""
    folders = search_path() if folders is None else folders
    return _names(folder / "variants" for folder in folders)


def load_target(name_or_path: str | Path, folders: Sequence[Path] | None = None) -> TargetProfile:
    """Reads a target profile.

    Args:
        name_or_path: a name to look up, or the path of a TOML file: what ends in ``.toml`` or
            holds a path separator is a path.
        folders: the folders to search instead of ``search_path()``.

    Raises:
        TargetError: unknown name (the nearest ones are named), unreadable or malformed file
            (every problem is named).
    """
    text = os.fspath(name_or_path)
    folders = search_path() if folders is None else tuple(folders)
    if text.endswith(".toml") or os.sep in text:
        path = Path(text)
        folders = (path.parent, *folders)  # the user's own variants lie beside the profile
    else:
        candidates = [folder / f"{text}.toml" for folder in folders]
        existing = [path for path in candidates if os.path.isfile(path)]
        if not existing:
            meant = _did_you_mean(text, _names(folders))
            raise TargetError(
                f"unknown target {text!r}",
                hint=f"{meant}see 'edgecompile targets list', or give a .toml file",
            )
        path = existing[0]

    where = f"the profile {path} is malformed"
    table, problems = read_table(path, lambda item: check_table(item, PROFILE_KEYS, "profile"))
    variants = []
    names = table.get("variants")
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str):
            try:
                variants.append(load_variant(name, folders))
            except TargetError as error:
                problems.append(
                    f"variants: {error.message}" + (f" ({error.hint})" * bool(error.hint))
                )
    if problems:
        raise problems_error(where, problems)
    return _assemble(table, tuple(variants), where)


def load_variant(name: str, folders: Sequence[Path] | None = None) -> VariantSpec:
    """Reads ``variants/NAME.toml`` from the first of the folders that has it.

    Raises:
        TargetError: unknown name, unreadable or malformed file.
    """
    folders = search_path() if folders is None else folders
    for folder in folders:
        path = folder / "variants" / f"{name}.toml"
        if os.sep not in name and os.path.isfile(path):
            break
    else:
        hint = _suggest(name, list_variants(tuple(folders)), "variants")
        raise TargetError(f"unknown variant {name!r}", hint=hint)
    table, problems = read_table(path, variant_problems)
    if problems:
        raise problems_error(f"the variant {path} is malformed", problems)
    return VariantSpec(**_frozen(table))


def _assemble(
    table: Mapping[str, Any], variants: tuple[VariantSpec, ...], where: str
) -> TargetProfile:
    """Builds a profile from a table that passed ``check_table``, and checks that it agrees."""
    problems = []
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        problems.append(f"variants: one is named twice: {', '.join(names)}")
    if table.get("peak_gflops") and "fp32" not in table["peak_gflops"]:
        problems.append("peak_gflops.fp32: missing")

    for key, kinds in (
        ("gpu", ("jetson", "cuda")),
        ("jetpacks", ("jetson",)),
        ("tensorrt", ("cuda",)),
    ):
        if table["kind"] in kinds and key not in table and key != "tensorrt":
            problems.append(f"{key}: missing; a profile of kind {table['kind']} has it")
        elif table["kind"] not in kinds and key in table:
            problems.append(f"{key}: only a profile of kind {' or '.join(kinds)} has it")
    if "gpu" in table:
        problems += gpu_problems(table["gpu"])

    by_arch: dict[str, list[VariantSpec]] = {}
    for variant in sorted(variants, key=lambda variant: variant.rank):
        by_arch.setdefault(variant.arch, []).append(variant)
    features = {}
    for arch, named in table.get("features", {}).items():
        problems += features_problems(arch, named, f"features.{arch}")
        if arch not in by_arch:
            problems.append(f"features.{arch}: the target has no variant of this architecture")
    for arch, members in by_arch.items():
        named = table.get("features", {}).get(arch)
        features[arch] = members[0].requires if named is None else tuple(named)
        if not any(set(member.requires) <= set(features[arch]) for member in members):
            lacking = sorted(set(members[0].requires) - set(features[arch]))
            problems.append(
                f"features.{arch}: too few for any of the target's variants; "
                f"{members[0].name} requires also {', '.join(lacking)}"
            )
    if problems:
        raise problems_error(where, problems)
    ordered = tuple(sorted(variants, key=lambda variant: variant.rank))
    data = {
        **_frozen(table),
        "variants": ordered,
        "features": tuple(features.items()),
        "peak_gflops": tuple((key, float(v)) for key, v in table.get("peak_gflops", {}).items()),
        "sources": tuple(table.get("sources", {}).items()),
    }
    if "gpu" in table:
        data["gpu"] = GpuSpec.from_table(table["gpu"])
    for key in ("memory_gib", "bandwidth_gbs", "clock_ghz"):
        if data.get(key) is not None:
            data[key] = float(data[key])
    return TargetProfile(**data)


def _names(folders: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted({path.stem for folder in folders for path in folder.glob("*.toml")}))


def _suggest(name: str, names: Sequence[str], what: str) -> str:
    return f"{_did_you_mean(name, names)}known {what}: {', '.join(names) or 'none'}"


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    """Up to three names that what was written is short for, or near to, as a question."""

    def is_short_for(full: str) -> bool:
        letters = iter(full)
        return all(letter in letters for letter in plain)  # in this order

    plain = re.sub("[^a-z0-9]", "", name.lower())
    short = [full for full in names if len(plain) > 2 and is_short_for(full)]
    short.sort(key=lambda full: len(full))
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    suggestions = list(dict.fromkeys([*short, *close]))[:3]
    return f"did you mean {' or '.join(suggestions)}? " if suggestions else ""


def _frozen(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
