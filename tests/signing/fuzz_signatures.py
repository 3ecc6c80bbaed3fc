"""Mutated signatures: accepted only where the same was signed. Run by hand for millions, and briefly in tests.

python -m tests.signing.fuzz_signatures COUNT [SEED] [--c]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import tempfile
from pathlib import Path

from edgecompile.runtime.base.errors import BundleError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.trust.statement import Fault, parse_envelope
from tests.hostile.trees import mutate_bytes
from tests.native.c_runtime import c_library
from tests.runtime.signed import SignedBundle


class CRuntime:
    """A process of ``host_cases.c``, which is asked about one signed bundle again and again.

    Its context ends it. Without an error in that, it says then whether it leaked.
    """

    def __init__(self, program: Path, signed: SignedBundle) -> None:
        variables = {**c_library.SANITIZED, "EDGECOMPILE_TRUST": str(signed.trust)}
        self._path = signed.path
        self._process = subprocess.Popen(
            [program, "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )

    def judge(self) -> int:
        """The exit code for the signatures; 0: they suffice, and what is refused is the dummies that follow."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{self._path}\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline().partition("\t")[0] or -1)
        return status if status in (-1, 20) or 75 <= status <= 79 else 0

    def __enter__(self) -> CRuntime:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()
        assert kind is not None or self._process.returncode == 0


def fuzz(place: Path, count: int, seed: int = 0, program: Path | None = None) -> int:
    """Opens a bundle with ``count`` mutated signatures; the number of those that are taken.

    Args:
        place: an empty folder.
        count: number of the signatures.
        seed: seed of the changes.
        program: the program of ``host_cases.c``, which is to judge each as Python does; None: it isn't asked.

    Raises:
        AssertionError: a signature was taken that says or signs anything else, or the C runtime judged otherwise.
    """
    signed = SignedBundle(place)
    path = signed.sign()
    good = path.read_bytes()
    meant = parse_envelope(good)
    rng = random.Random(seed)
    taken = 0
    asked = contextlib.nullcontext() if program is None else CRuntime(program, signed)
    with asked as other:
        for number in range(count):
            data = change(rng, good)
            path.write_bytes(data)
            code = 0
            try:
                BundleFolder(str(signed.path), trust=signed.trust).close()
            except BundleError as error:
                code = error.exit_code
                assert code in (20, 76), f"{seed}:{number}: {error}"
            told = code if other is None else other.judge()
            assert told == code, f"{seed}:{number}: C says {told}, Python {code}: {data!r}"
            if code:
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


def build_program() -> Path:
    """The program of ``host_cases.c``, with sanitizers."""
    sources = [c_library.PROGRAMS / "host_cases.c"]
    machine = c_library.MACHINES[c_library.NATIVE_ARCH]
    return c_library.build(machine, "host_cases", sources, flags=c_library.SANITIZERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument(
        "--c", action="store_true", help="the C runtime, with sanitizers, judges each, too"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = build_program() if options.c else None
        found = fuzz(Path(folder), options.count, options.seed, asked)
    print(f"{options.count} mutated signatures, {found} with the same content taken, no fault")
