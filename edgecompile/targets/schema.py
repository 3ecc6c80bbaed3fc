"""Files of profiles, variants and releases: their folders, their keys, and the check of a file."""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.errors import TargetError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


PROFILES_VARIABLE = "EDGECOMPILE_PROFILES"

# CPU features by architecture, in the names that the runtime's probe (native/probe) writes.
FEATURES: Mapping[str, tuple[str, ...]] = {
    "x86-64": (
        *("cx16", "lahf", "popcnt", "sse3", "ssse3", "sse4_1", "sse4_2"),
        *("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
        *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
        *("avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
        *("amx_tile", "amx_bf16", "amx_int8"),
    ),
    "aarch64": (
        *("asimd", "asimddp", "asimdhp", "fphp", "asimdrdm", "asimdfhm", "atomics", "crc32"),
        *("bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm"),
    ),
}

KINDS = ("cpu", "cuda", "jetson")
CAPABILITIES = ("AVX2", "AVX512", "DEFAULT", "NEON")
WIDTHS = (128, 256, 512)

Check = Callable[[Any], "str | None"]


@dataclass(frozen=True)
class Key:
    """A key of a table: its check returns what is wrong with a value, or None."""

    name: str
    check: Check
    required: bool = True


def nearest(name: str, names: Sequence[str]) -> str:
    """`` (did you mean x?)`` where a known name is near, else an empty string."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def check_table(table: object, keys: Sequence[Key], what: str) -> list[str]:
    """Every problem of a table: unknown keys (with the nearest known one), missing keys, wrong
    values."""
    if not isinstance(table, Mapping):
        return [f"the {what} is not a table"]
    by_name = {key.name: key for key in keys}
    problems = []
    for name, value in table.items():
        if name not in by_name:
            hint = nearest(name, list(by_name)) or f" (known: {', '.join(by_name)})"
            problems.append(f"{name}: unknown key{hint}")
        elif (problem := by_name[name].check(value)) is not None:
            problems.append(f"{name}: {problem}")
    problems += [f"{key.name}: missing" for key in keys if key.required and key.name not in table]
    return problems


def features_problems(arch: str, features: Sequence[str], where: str) -> list[str]:
    """The problems of a list of CPU features of an architecture."""
    if arch not in FEATURES:
        archs = ", ".join(FEATURES)
        return [f"{where}: unknown architecture {arch!r}{nearest(arch, list(FEATURES))}: {archs}"]
    known_features = FEATURES[arch]
    return [
        f"{where}: unknown {arch} feature {feature!r}{nearest(feature, known_features)}"
        for feature in features
        if feature not in known_features
    ]


def variant_problems(table: Mapping[str, Any]) -> list[str]:
    """Every problem of a variant's table: its keys, and the features that it requires."""
    problems = check_table(table, _VARIANT_KEYS, "variant")
    names = table.get("requires")
    if table.get("arch") in FEATURES and _list_of(_text, least=0)(names) is None and names:
        problems += features_problems(table["arch"], names, "requires")
    return problems


def _text(value: Any) -> str | None:
    if isinstance(value, str) and value.strip():
        return None
    return f"expected a non-empty string, not {value!r}"


def _any_text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"expected a string, not {value!r}"


def _matching(pattern: str, example: str) -> Check:
    def check(value: Any) -> str | None:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return None
        return f"expected a string such as {example!r}, not {value!r}"

    return check


def _one_of(choices: Sequence[Any]) -> Check:
    def check(value: Any) -> str | None:
        if type(value) in {type(choice) for choice in choices} and value in choices:
            return None
        hint = nearest(value, choices) if isinstance(value, str) else ""
        return f"{value!r} is none of {', '.join(map(str, choices))}{hint}"

    return check


def _integer(lo: int, hi: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is int and lo <= value <= hi:
            return None
        return f"expected a whole number from {lo} to {hi}, not {value!r}"

    return check


def _positive(value: Any) -> str | None:
    if type(value) in (int, float) and math.isfinite(value) and value > 0:
        return None
    return f"expected a number above 0, not {value!r}"


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _list_of(check: Check, *, least: int) -> Check:
    def check_list(value: Any) -> str | None:
        if not isinstance(value, (list, tuple)):
            return f"expected a list, not {value!r}"
        if len(value) < least:
            return f"expected at least {least} entries, not {len(value)}"
        return "; ".join(problem for problem in map(check, value) if problem) or None

    return check_list


def _table_of(check: Check) -> Check:
    def check_values(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return f"expected a table, not {value!r}"
        problems = [(name, check(item)) for name, item in value.items()]
        return "; ".join(f"{name}: {problem}" for name, problem in problems if problem) or None

    return check_values


_NAME = _matching(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "x86-64-v3")
_VERSION = _matching(r"[0-9]+\.[0-9]+", "2.34")
_PRECISIONS = ("fp32", "bf16", "fp16", "int8", "fp8")


def _peaks(value: Any) -> str | None:
    problem = _table_of(_positive)(value)
    if problem:
        return problem
    unknown = [name for name in value if name not in _PRECISIONS]
    hints = [f"unknown precision {name!r}{nearest(name, _PRECISIONS)}" for name in unknown]
    return "; ".join(hints) or None


def _table(value: Any) -> str | None:
    return None if isinstance(value, Mapping) else f"expected a table, not {value!r}"


_VARIANT_KEYS = (
    Key("name", _NAME),
    Key("description", _any_text, required=False),
    Key("arch", _one_of(tuple(FEATURES))),
    Key("march", _matching(r"[a-z0-9][a-z0-9.+_-]*", "x86-64-v3")),
    Key("simdlen", _one_of(WIDTHS)),
    Key("cpu_capability", _one_of(CAPABILITIES)),
    Key("requires", _list_of(_text, least=0)),
    Key("rank", _integer(0, 1000)),
    Key("extra_flags", _list_of(_matching(r"-\S+", "-mtune=generic"), least=0), required=False),
)

PROFILE_KEYS = (
    Key("name", _NAME),
    Key("kind", _one_of(KINDS)),
    Key("description", _text),
    Key("variants", _list_of(_text, least=1)),
    Key("cores", _integer(1, 4096)),
    Key("clock_ghz", _optional(_positive), required=False),
    Key("memory_gib", _positive),
    Key("bandwidth_gbs", _optional(_positive), required=False),
    Key("peak_gflops", _peaks, required=False),
    Key("glibc", _VERSION),
    Key("python", _matching(r"[0-9]+\.[0-9]+", "3.9")),
    Key("gpu", _table, required=False),
    Key("jetpacks", _list_of(_VERSION, least=1), required=False),
    Key("tensorrt", _VERSION, required=False),
    Key("features", _table_of(_list_of(_text, least=0)), required=False),
    Key("sources", _table_of(_text), required=False),
)

#: Of a profile's ``[gpu]``.
GPU_KEYS = (
    Key("compute_capability", _VERSION),
    Key("sm_count", _integer(1, 1024), required=False),
    Key("cubins", _list_of(_VERSION, least=1), required=False),
    Key("l2_kib", _integer(1, 1 << 20), required=False),
    Key("ptxas", _VERSION, required=False),
    Key("clock_mhz", _positive),
    Key("bandwidth_gbs", _positive),
    Key("memory_gib", _positive),
    Key("models", _list_of(_text, least=1)),
    Key("peak_gflops", _peaks),
)

#: Of a release of JetPack.
JETPACK_KEYS = (
    Key("name", _VERSION),
    *(Key(name, _VERSION) for name in ("ubuntu", "glibc", "python", "cuda")),
    Key("tensorrt", _matching(r"[0-9]+\.[0-9]+\.[0-9]+", "10.3.0")),
    Key("tensorrt_least", _VERSION),
    Key("tensorrt_below", _VERSION),
    Key("opset", _integer(9, 30)),
    Key("ran", _text, required=False),
    Key("sources", _table_of(_text), required=False),
)


def search_path() -> tuple[Path, ...]:
    """The folders in which names are looked up, in order: that of the environment variable
    EDGECOMPILE_PROFILES, the packaged profiles, and the source tree's ``profiles/``.

    Raises:
        TargetError: the variable names no folder.
    """
    folders = []
    chosen = os.environ.get(PROFILES_VARIABLE)
    if chosen:
        if not Path(chosen).is_dir():
            raise TargetError(
                f"{PROFILES_VARIABLE}={chosen} is not a folder",
                hint=f"set it to a folder of profiles (*.toml), or unset {PROFILES_VARIABLE}",
            )
        folders.append(Path(chosen))
    package = Path(__file__).resolve().parents[1]
    # The second exists in a source tree and in editable installs of it only.
    shipped = (package / "_profiles", package.parent / "profiles")
    folders += [folder for folder in shipped if folder.is_dir()]
    return tuple(folders)


def read_table(
    path: Path, check: Callable[[Mapping[str, Any]], list[str]]
) -> tuple[dict[str, Any], list[str]]:
    """The table of a file, and its problems: those that ``check`` finds, and a wrong name.

    Raises:
        TargetError: the file is missing, unreadable or no TOML.
    """
    table = read_toml(path)
    problems = check(table)
    if table.get("name") not in (None, path.stem):
        problems.append(f"name: {table['name']!r} differs from the file's name {path.stem!r}")
    return table, problems


def problems_error(where: str, problems: Sequence[str]) -> TargetError:
    """The error that lists every problem."""
    return TargetError("\n  ".join([f"{where}:", *problems]))


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a file.

    Raises:
        TargetError: it is missing, unreadable or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(
            f"there is no profile {path}", hint="`edgecompile targets list` names the known ones"
        ) from None
    except OSError as error:
        raise TargetError(f"can't read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} is not valid TOML: {error}") from error
