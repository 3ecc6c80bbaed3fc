"""Weights files and golden vectors that aren't what they say."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
from typing import Any

from tests.hostile.trees import Members, Raw, mutate, mutate_bytes, render, replace, to_tree

MAX_HEADER = 16 << 20
ENTRIES: dict[str, Any] = {
    "__metadata__": {"format": "edgecompile"},
    "a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
    "b": {"dtype": "I16", "shape": [3], "data_offsets": [64, 70]},
    "__pad.0": {"dtype": "U8", "shape": [58], "data_offsets": [70, 128]},
    "c": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [128, 136]},
}
SPANS = (
    [0, 0], [0, 64], [64, 64], [0, 128], [32, 96], [1, 65], [64, 0], [-64, 0], [0, 136], [136, 136],
    [2**63 - 64, 2**63 - 1], [2**63 - 8, 2**63 - 8], [0, 2**62], [2**31, 2**31 + 64],
)  # fmt: skip
SHAPES = (
    [], [0], [1], [16], [2**63 - 1], [2**32, 2**32], [2**31] * 3, [2**62, 4], [2**62, 4, 0],
    [0, 2**63 - 1, 2**63 - 1], [-1], [-4, -4], [1] * 8, [1] * 9, [2**63 - 1] * 8, [4, 4, 1], [2, 8],
)  # fmt: skip
DTYPES = ("F32", "F64", "I8", "BOOL", "U8", "BF16", "f32", "F8_E4M3", "U16", "U64", "")


def weights_data() -> bytes:
    """The contents of the tensors of ENTRIES."""
    return bytes(range(136))


def pack(header: bytes, data: bytes, *, length: int | None = None, align: int = 64) -> bytes:
    """A container; ``length`` is what it says of its header."""
    header += b" " * (-(len(header) + 8) % align)
    said = len(header) if length is None else length
    return struct.pack("<Q", said % 2**64) + header + data


def hostile_weights(rng: random.Random) -> bytes:
    """A weights file with something wrong in it, mostly."""
    tree = to_tree(ENTRIES)
    data = weights_data()
    length = None
    align = 64
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.randrange(12)
        entry = rng.choice(tree)[1] if tree else None
        if kind < 4 or not isinstance(entry, Members):
            mutate(rng, tree)
        elif kind == 4:
            replace(entry, "data_offsets", list(rng.choice(SPANS)))
        elif kind == 5:
            replace(entry, "shape", list(rng.choice(SHAPES)))
        elif kind == 6:
            replace(entry, "dtype", rng.choice(DTYPES))
        elif kind == 7:
            # A shape and a span that agree with each other, but not with the others.
            begin = rng.choice((0, 32, 64, 70, 128, 136, 192, 2**62))
            size = rng.choice((0, 1, 58, 64, 2**40))
            shape = [size]
            replace(entry, "dtype", "U8")
            replace(entry, "shape", shape)
            replace(entry, "data_offsets", [begin, begin + size])
        elif kind == 8:
            data = rng.choice(
                (data[:-1], data + b"\0", data[:64], b"", data + bytes(64), data * 40)
            )
        elif kind == 9:
            size = len(render(tree))
            length = rng.choice(
                (0, 1, 2, size, size + 64, -1, 2**63, 2**63 - 9, MAX_HEADER, MAX_HEADER + 1, 2**32)
            )
        elif kind == 10:
            align = rng.choice((1, 8, 32, 63))
        else:
            name = rng.choice(("__pad.1", "__pad.", "d", "__metadata__", "a", "\u0378", "\u200b"))
            copy = Raw(render(entry))
            tree.insert(rng.randrange(len(tree) + 1), [name, copy])
    header = render(tree).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        header = mutate_bytes(rng, header, 1 << 16)
    packed = pack(header, data, length=length, align=align)
    if rng.random() < 0.1:
        packed = mutate_bytes(rng, packed, 1 << 16)
    return packed


NPY_SHAPES = (
    "()", "(1,)", "(1, 7)", "(7, 1)", "(1, 7, 1)", "(0, 7)", "(-1, 7)", "(1, 8)", "(1, 1000000)",
    "(9223372036854775807, 9223372036854775807)", "(1, 134217728)", "(10**9,)", "(1.0, 7)",
    "(True, 7)", "[1, 7]", "(1, 7,)", "(1L, 7L)", "(" * 300 + ")" * 300, "(1, 7", "None",
    "(1, 99999999999999999999999)", "(1" + ", 1" * 64 + ")", "-" * 9000 + "1", "1" + "+1" * 9000,
)  # fmt: skip
NPY_TYPES = (
    "'<i8'", "'>i8'", "'=i8'", "'|i8'", "'<i4'", "'<f4'", "'|O'", "'|V8'", "'<U8'", "'|S8'", "'<M8[s]'",
    "'<c8'", "'|b1'", "'i8,i8'", "'(2,)i8'", "'(1000000000,1000000000)i8'", "[('a', '<i8')]",
    "[('a', '|O')]", "'x'", "''", "None", "1", "int", "__import__('os').abort()", "'\\0'", "'<i8\n'",
)  # fmt: skip


def hostile_npy(rng: random.Random, data: bytes) -> bytes:
    """An .npy file made of the header and data of another one."""
    (size,) = struct.unpack("<H", data[8:10])
    header, body = data[10 : 10 + size].decode("latin-1"), data[10 + size :]
    kind = rng.randrange(10)
    version = b"\x01\x00"
    if kind < 3:
        header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {rng.choice(NPY_SHAPES)}, }}"
    elif kind < 6:
        header = f"{{'descr': {rng.choice(NPY_TYPES)}, 'fortran_order': False, 'shape': (1, 7), }}"
    elif kind == 6:
        version = rng.choice((b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\xff", b"\x01\x01"))
    elif kind == 7:
        body = rng.choice((body[:-1], body + b"\0", b"", body * 1000, b"cos\nsystem\n(S'x'\ntR."))
    elif kind == 8:
        header = rng.choice(("", "{}", "[]", "1", "{" * 200, header * 50, header[:-9], "'" * 60000))
    else:
        header = header.replace(
            "False", rng.choice(("True", "0", "None", "1", "'no'", "False, 'x': 1"))
        )
    packed = header.encode("utf-8", "replace")[:65535]
    length = len(packed) if rng.random() < 0.9 else rng.choice((0, 1, 65535))
    return data[:6] + version + struct.pack("<H", length) + packed + body


def list_of_members(count: int) -> bytes:
    """An archive that is nothing but the list of its members, with names of one character."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, 0, *[0] * 4, *[0] * 3,
                        1, *[0] * 4, 0, 0) + b"x"  # fmt: skip
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(entry) * count, 0, 0)
    return entry * count + end


def hostile_golden(rng: random.Random, data: bytes) -> bytes:
    """An .npz file with something wrong in it, mostly."""
    kind = rng.randrange(12)
    if kind < 2:
        return mutate_bytes(rng, data, 1 << 16)
    if kind == 10:
        return list_of_members(rng.choice((100, 20000, 65535)))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    method = zipfile.ZIP_STORED
    at = rng.randrange(len(members))
    name, content = members[at]
    if kind < 6:
        members[at] = (name, hostile_npy(rng, content))
    elif kind == 6:
        others = (
            "../../canary/secret",
            "/etc/passwd",
            "",
            "in..npy",
            name + "/",
            "é",
            members[0][0],
        )
        members[at] = (rng.choice(others), content)
    elif kind == 7:
        del members[at]
    elif kind == 8:
        members.append((rng.choice(("more.npy", name, "x" * 60000)), content))
    elif kind == 11:
        method = rng.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    else:
        # Zeros compress a thousandfold.
        method = zipfile.ZIP_DEFLATED
        members[at] = (name, content + bytes(8 << 20))
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")  # about names that occur twice
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    packed = bytearray(stream.getvalue())
    if rng.random() < 0.3:
        # Sizes, flags and methods of the central directory.
        start = packed.find(b"PK\x01\x02")
        offset = start + rng.choice((8, 10, 20, 24, 28, 30, 42))
        packed[offset : offset + 2] = rng.choice((b"\0\0", b"\xff\xff", b"\x01\0", b"\0\x80"))
    return bytes(packed)
