"""JSON documents that a writer of JSON wouldn't write: keys twice, numbers that aren't, any depth.

A tree is made of plain values, lists, ``Members`` in place of dicts, and ``Raw`` text. ``mutate``
changes one in a random place.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any


class Members(list):  # type: ignore[type-arg]
    """An object as [key, value] pairs: a key may occur twice."""


class Raw(str):
    """Text that stands for a value as it is."""

    __slots__ = ()


def to_tree(value: Any) -> Any:
    """The tree of plain JSON values."""
    if isinstance(value, dict):
        return Members([key, to_tree(item)] for key, item in value.items())
    if isinstance(value, list):
        return [to_tree(item) for item in value]
    return value


def render(tree: Any) -> str:
    """The tree as text."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Members):
        pairs = (f"{render(key)}: {render(value)}" for key, value in tree)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(render(item) for item in tree) + "]"
    return json.dumps(tree)


def find(tree: Members, key: str) -> Any:
    """The first value of a key; None where there is none."""
    return next((value for name, value in tree if name == key), None)


def replace(tree: Members, key: str, value: Any) -> None:
    """Sets the first value of a key, or adds it."""
    for pair in tree:
        if pair[0] == key:
            pair[1] = value
            return
    tree.append([key, value])


INTEGERS = (
    0, 1, -1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62,
    2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64, 10**30,
)  # fmt: skip
NUMBERS = (
    *INTEGERS, 0.0, -0.0, 1.0, 0.5, 2.0**53, 1e308, -1e308, 5e-324, Raw("NaN"), Raw("-NaN"),
    Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-1e999"), Raw("1e-999"), Raw("01"),
    Raw("-"), Raw("-0"), Raw("1."), Raw(".5"), Raw("+1"), Raw("0x10"), Raw("1_000"), Raw("1e"),
    Raw("1E+2"), Raw("1e5"), Raw("9" * 20), Raw("9" * 5000), Raw("1" + "0" * 200000),
    Raw("0." + "3" * 100), Raw("1e" + "9" * 50), Raw("-9223372036854775808.0"),
)  # fmt: skip
OTHERS = (
    None, True, False, [], Members(), [[]], Members([["", None]]), [None] * 9, Raw("nul"),
    Raw("TRUE"), Raw(""), Raw("'text'"), Raw('"unterminated'), Raw('"\\x"'), Raw('"\\u12"'),
    Raw('"\t"'), Raw("[1,]"), Raw("{,}"), Raw("[1 2]"), Raw("// no\n1"), Raw("\u00a01"),
)  # fmt: skip
DEPTHS = (1, 28, 29, 30, 31, 32, 33, 100, 5000, 200000)
STRINGS = (
    "", " ", "a", ".", "..", "/", "a/", "/a", "a//b", "./a", "a/./b", "a/../b", "../a", "~", "~/a",
    "a\\b", "C:\\a", "a\0b", "\0", "weights.fp32\0", "weights.fp32/", "./weights.fp32",
    "code/../weights.fp32", "manifest.json", "manifest.json/x", "code", "proc/self/environ",
    "/proc/self/environ", "/dev/zero", "/etc/passwd", "file:///etc/passwd", "$HOME", "`id`", "%s%n",
    "-rf", "*", "a\nb", "\x1b[2J", "\x7f", "\u202egpj.", "\u2028", "\ufeff", "\ufdd0", "\ue000",
    "\u0378", "\U000e0001", "\U0010ffff", "\ud800", "\udc00", "\ud83d\ude00", "é", "e\u0301",
    "\uff0e\uff0e/", "x" * 200, "x" * 201, "x" * 255, "x" * 256, "é" * 200, "\U0001f600" * 1024,
    "x" * 1024, "x" * 1025, "ab/" * 341 + "a", "ab/" * 400, "x" * 100000, "\\" * 5000, '"' * 5000,
    "int64", "F32", "pad", "exact", "length", "batch", "fp32", "toy", "aoti-cpu", "2.34", "999.999",
    "9.9.9", "0" * 64, "F" * 64, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)  # fmt: skip


def hostile_value(rng: random.Random) -> Any:
    """A value that a reader may trip over."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice(STRINGS)
    if kind < 9:
        return rng.choice(OTHERS)
    depth = rng.choice(DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    balanced = closing * depth if rng.random() < 0.7 else ""
    return Raw(opening * depth + "1" + balanced)


def places(tree: Any) -> list[Any]:
    """(container, index) of every value below the root; a pair of an object is a container too."""
    pairs: list[Any] = []
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Members):
            children = [(pair, 1) for pair in item]
        elif isinstance(item, list):
            children = [(item, index) for index in range(len(item))]
        else:
            continue
        pairs += children
        waiting += [container[index] for container, index in children]
    return pairs


def _set(rng: random.Random, tree: Any) -> None:
    container, index = rng.choice(places(tree))
    container[index] = hostile_value(rng)


def _perturb(rng: random.Random, tree: Any) -> None:
    numbers = [
        (container, index)
        for container, index in places(tree)
        if isinstance(container[index], (int, float)) and not isinstance(container[index], bool)
    ]
    if not numbers:
        return _set(rng, tree)
    container, index = rng.choice(numbers)
    value = container[index]
    changes: list[Callable[[], Any]] = [
        lambda: value + rng.choice((-64, -2, -1, 1, 2, 64)),
        lambda: -value,
        lambda: value * 2,
        lambda: float(value),
        lambda: str(value),
        lambda: int(value) ^ (1 << rng.randrange(63)),
        lambda: rng.choice(INTEGERS),
        lambda: bool(value),
    ]
    container[index] = rng.choice(changes)()


def _change_text(rng: random.Random, tree: Any) -> None:
    texts = [
        (container, index)
        for container, index in places(tree)
        if isinstance(container[index], str) and not isinstance(container[index], Raw)
    ]
    if not texts:
        return _set(rng, tree)
    container, index = rng.choice(texts)
    value = container[index]
    at = rng.randrange(len(value) + 1)
    piece = rng.choice(("/", "../", "\0", ".", "A", " ", "\u00e9", "x" * 300, "\n", "\ud800"))
    choices = (
        value[:at] + piece + value[at:],
        value[:at],
        value[at:],
        value.upper(),
        value + value,
        rng.choice(texts)[0][rng.choice((0, -1))] if rng.random() < 0.5 else value[::-1],
        rng.choice(STRINGS),
    )
    container[index] = rng.choice(choices)


def _objects(tree: Any) -> list[Members]:
    values = [tree] + [container[index] for container, index in places(tree)]
    return [item for item in values if isinstance(item, Members) and item]


def _change_key(rng: random.Random, tree: Any) -> None:
    members = rng.choice(_objects(tree))
    pair = rng.choice(members)
    kind = rng.randrange(6)
    if kind == 0:
        members.remove(pair)
    elif kind == 1:
        members.append([pair[0], pair[1]])
    elif kind == 2:
        members.insert(rng.randrange(len(members) + 1), [pair[0], hostile_value(rng)])
    elif kind == 3:
        pair[0] = rng.choice(STRINGS)
    elif kind == 4:
        pair[0] = hostile_value(rng)
    else:
        members.append([rng.choice(STRINGS), hostile_value(rng)])


def _change_list(rng: random.Random, tree: Any) -> None:
    lists = [
        container[index]
        for container, index in places(tree)
        if isinstance(container[index], list) and not isinstance(container[index], Members)
    ]
    lists = [item for item in lists if item]
    if not lists:
        return _change_key(rng, tree)
    chosen = rng.choice(lists)
    kind = rng.randrange(6)
    item = rng.choice(chosen)
    if kind == 0:
        chosen.remove(item)
    elif kind == 1:
        chosen.append(item)
    elif kind == 2:
        chosen.reverse()
    elif kind == 3:
        chosen.clear()
    elif kind == 4:
        chosen.insert(rng.randrange(len(chosen) + 1), hostile_value(rng))
    else:
        chosen[:] = [item] * rng.choice((9, 65, 257, 2000))


def _move(rng: random.Random, tree: Any) -> None:
    pairs = places(tree)
    (source, i), (target, j) = rng.choice(pairs), rng.choice(pairs)
    # A copy by way of text: no tree may hold itself.
    text = Raw(render(source[i]))
    if rng.random() < 0.5:
        source[i] = Raw(render(target[j]))
    target[j] = text


_CHANGES = (_set, _perturb, _perturb, _change_text, _change_key, _change_list, _move)


def mutate(rng: random.Random, tree: Any) -> None:
    """Changes a tree in one random place, in place."""
    if places(tree):
        rng.choice(_CHANGES)(rng, tree)


def mutate_bytes(rng: random.Random, data: bytes, most: int) -> bytes:
    """Changes bytes without regard to what they mean; ``most`` is the limit of their reader."""
    kind = rng.randrange(14)
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice((1, 2, 8, 64, 1000)))
    if kind < 4:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == 4:
        return data[:at] + data[to:]
    if kind == 5:
        return data[:at] + data[at:to] * rng.choice((2, 100)) + data[to:]
    if kind == 6:
        return data[:at]
    if kind == 7:
        junk = (b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b'"', b"{", b"]")
        return data[:at] + rng.choice(junk) * rng.choice((1, 3)) + data[at:]
    if kind == 8:
        return rng.choice((b"\xef\xbb\xbf" + data, data.decode("latin-1").encode("utf-16")))
    if kind == 9:
        return data + rng.choice((b"\n", b" ", b"\0", b",", b"{}", data))
    if kind == 10:
        return (
            data.ljust(most + rng.choice((-1, 0, 1)), b" ") if rng.random() < 0.05 else b" " + data
        )
    if kind == 11:
        return rng.choice((b"", b" ", b"{}", b"[]", b"null", b"0", b'""', b"{", b"\0" * 100))
    if kind == 12:
        return bytes(rng.randrange(256) for _ in range(rng.choice((1, 8, 100))))
    return data[:at] + rng.choice((b"[", b'{"":', b'"', b"\\")) * 3000 + data[at:]
