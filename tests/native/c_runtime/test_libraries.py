"""Through the C runtime no library is loaded that wasn't hashed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agreement import Verdict
from tests.native.c_runtime import c_library
from tests.native.c_runtime.agreement import PROBE_PATH, Compile, ask_c, dummy, make_compiler  # noqa: F401
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH, Machine

pytestmark = pytest.mark.slow

MARKER = """
#include <fcntl.h>
#include <string.h>
__attribute__((constructor)) static void mark(void) { open("%s", O_CREAT | O_WRONLY, 0600); }
int ec_probe(char* buffer, int size) { strcpy(buffer, "%s"); return 1; }
"""


@pytest.mark.parametrize("verify", ["auto", "fast", "full"])
def test_a_swapped_library_never_runs(
    tmp_path: Path, compile_for: Callable[[Machine], Compile], verify: str
) -> None:
    native = MACHINES[NATIVE_ARCH]
    compile_c = compile_for(native)
    marker = tmp_path / "ran"
    good = compile_c(MARKER % (tmp_path / "good-ran", "a"))
    evil = compile_c(MARKER % (marker, "b"))
    assert good != evil
    bundle = dummy(tmp_path / "b.ecb", native, compile_c)
    # Of one size: only the hash can tell them apart.
    size = max(len(good), len(evil))
    bundle.files[PROBE_PATH] = good.ljust(size, b"\0")
    path = Path(bundle.write())
    (path / PROBE_PATH).write_bytes(evil.ljust(size, b"\0"))
    program = c_library.build(native, "host_cases", [c_library.PROGRAMS / "host_cases.c"],
                           flags=c_library.SANITIZERS)  # fmt: skip
    level = {"auto": 0, "fast": 1, "full": 2}[verify]
    (told,) = ask_c(native, program, [path], level)
    assert told == Verdict(22, frozenset({"file-hash"}))
    assert not marker.exists()
    assert not (tmp_path / "good-ran").exists()


def test_a_library_exchanged_after_its_hash_isnt_loaded(
    tmp_path: Path, compile_for: Callable[[Machine], Compile]
) -> None:
    native = MACHINES[NATIVE_ARCH]
    compile_c = compile_for(native)
    bundle = dummy(tmp_path / "b.ecb", native, compile_c)
    bundle.document["variants"][0]["requires"] = ["good"]
    bundle.files[PROBE_PATH] = compile_c(MARKER % (tmp_path / "good-ran", "good"))
    path = Path(bundle.write())
    evil = tmp_path / "evil.so"
    evil.write_bytes(compile_c(MARKER % (tmp_path / "evil-ran", "evil")))
    # The program's dlopen first puts the other library in the place of the probe.
    program = c_library.build(
        native,
        "host_exchange",
        [c_library.PROGRAMS / "host_cases.c", c_library.PROGRAMS / "host_exchange.c"],
        link=["-Wl,--wrap=dlopen"],
    )
    done = native.run(
        [program, "0"], stdin=f"{path}\n",
        EXCHANGE_FROM=str(evil), EXCHANGE_TO=str(path / PROBE_PATH),
    )  # fmt: skip
    assert not evil.exists(), "nothing was exchanged"
    assert (tmp_path / "good-ran").exists()
    assert not (tmp_path / "evil-ran").exists()
    # It got past the probe, so its features were the good one's.
    assert "[program-signature]" in done.stdout, done.stdout + done.stderr
