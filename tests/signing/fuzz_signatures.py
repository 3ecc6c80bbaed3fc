"""Mutated signatures: accepted only where the same was signed. Run by hand for millions, and briefly in a test.

python -m tests.signing.fuzz_signatures COUNT [SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.folder import BundleFolder
from edgecompile.runtime.format.trust.statement import Fault, parse_envelope
from tests.hostile.trees import mutate_bytes
from tests.runtime.signed import SignedBundle


def fuzz(place: Path, count: int, seed: int = 0) -> int:
    """Opens a bundle with ``count`` mutated signatures; the number of those that are taken.

    Raises:
        AssertionError: a signature was taken that says or signs anything else.
    """
    signed = SignedBundle(place)
    path = signed.sign()
    good = path.read_bytes()
    meant = parse_envelope(good)
    rng = random.Random(seed)
    taken = 0
    for number in range(count):
        data = change(rng, good)
        path.write_bytes(data)
        try:
            BundleFolder(str(signed.path), trust=signed.trust).close()
        except BundleError as error:
            assert error.exit_code in (20, 76), f"{seed}:{number}: {error}"
            continue
        taken += 1
        try:
            assert parse_envelope(data) == meant, f"{seed}:{number}: {data!r}"
        except Fault as fault:
            raise AssertionError(f"{seed}:{number}: taken, and {fault}") from None
    return taken


def change(rng: random.Random, data: bytes) -> bytes:
    """One to three changes: of bits, bytes, digits of base64, or of larger parts."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            digit = rng.choice(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
            # Most of the file is the payload: the signature lies at its end.
            at = rng.choice((at, max(0, len(data) - rng.randrange(1, 150))))
            data = data[:at] + bytes([digit]) + data[at + 1 :]
        elif kind == 2:
            data = mutate_bytes(rng, data, 1 << 16)
        else:
            data = data[:at] + data[at + rng.randrange(1, 9) :]
        data = data or b"{"
    return data


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        wanted = int(sys.argv[1])
        found = fuzz(Path(folder), wanted, int(sys.argv[2]) if sys.argv[2:] else 0)
        print(f"{wanted} mutated signatures, {found} with the same content taken, no fault")
