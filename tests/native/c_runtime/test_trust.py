"""Signatures through the C runtime: every attack is judged as by Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import EdgecompileError, FilePermissionError
from edgecompile.runtime.format.files.folder import BundleFolder
from tests.agreement import Verdict, named_rules
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import MACHINES, NATIVE_ARCH
from tests.runtime.format.test_trust import SECRET, STUB, WHOLE, need_unshare
from tests.runtime.signed import ATTACKS, RELEASE, SignedBundle
from tests.signing.fuzz_signatures import build_program, fuzz

pytestmark = pytest.mark.slow

MACHINE = MACHINES[NATIVE_ARCH]


@pytest.fixture(scope="module")
def program() -> Path:
    return build_program()


def ask_c(
    program: Path, signed: SignedBundle, prefix: tuple[str, ...] = (), **variables: str
) -> Verdict:
    """The C runtime's answer, with the bundle's trust folder."""
    named = {"EDGECOMPILE_TRUST": str(signed.trust), **c_library.SANITIZED, **variables}
    done = MACHINE.run([*prefix, program, "0"], stdin=f"{signed.path}\n", **named)
    assert done.returncode == 0, done.stderr[-4000:]
    status, text = done.stdout.rstrip("\n").split("\t", 1)
    return Verdict(int(status), named_rules(text))


def is_taken(verdict: Verdict) -> bool:
    """Whether the signatures sufficed: what is refused is the dummies that follow."""
    trust = {rule for rule, _, _ in ATTACKS}
    return not verdict.rules & trust and not 75 <= verdict.status <= 79


def test_every_attack_is_judged_as_by_python(program: Path, tmp_path: Path) -> None:
    wrong = {}
    for number, (rule, code, attack) in enumerate(ATTACKS):
        signed = SignedBundle(tmp_path / str(number))
        attack(signed)
        told = ask_c(program, signed)
        try:
            BundleFolder(str(signed.path), trust=signed.trust).close()
        except EdgecompileError as error:
            expected = Verdict(error.exit_code, named_rules(error.message))
        assert expected.status == code and rule in expected.rules
        # What is wrong with a text first depends on the parser.
        rules = {name for name in told.rules if not name.startswith("json-")}
        if told.status != code or not rules <= expected.rules:
            wrong[f"{rule}-{number}"] = f"C says {told}, Python says {expected}"
    assert wrong == {}


@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
def test_what_python_takes_c_takes(program: Path, tmp_path: Path, curve: str) -> None:
    signed = SignedBundle(tmp_path, curve)
    signed.policy["models"]["tiny*"]["threshold"] = 2
    signed.write_policy()
    signed.sign("ci")
    assert ask_c(program, signed) == Verdict(76, frozenset({"signature-trusted"}))
    signed.sign("release")
    assert is_taken(ask_c(program, signed))
    assert ask_c(program, signed, EDGECOMPILE_TRUST=str(tmp_path)).status == 76
    signed.policy["refused"] = [signed.open().manifest_sha256]
    signed.write_policy()
    assert ask_c(program, signed) == Verdict(77, frozenset({"bundle-refused"}))


def test_expiry(program: Path, tmp_path: Path) -> None:
    """The release of these tests has expired in any year in which they run."""
    signed = SignedBundle(tmp_path)
    signed.sign()
    assert is_taken(ask_c(program, signed))
    signed.policy["expiry"] = "enforce"
    signed.write_policy()
    assert ask_c(program, signed) == Verdict(78, frozenset({"release-expired"}))


def test_without_a_folder_nothing_is_checked(program: Path, tmp_path: Path) -> None:
    signed = SignedBundle(tmp_path)
    assert ask_c(program, signed).status == 75
    for value in ("off", ""):
        assert is_taken(ask_c(program, signed, EDGECOMPILE_TRUST=value))


def test_a_stale_signature_hides_no_good_one(program: Path, tmp_path: Path) -> None:
    signed = SignedBundle(tmp_path)
    stale = signed.sign("ci", "a").read_bytes()
    signed.write_release({**RELEASE, "number": 43})
    (signed.path / "signatures" / "zz.sig").write_bytes(stale)
    assert ask_c(program, signed).status == 76
    signed.sign("ci", "m")
    assert is_taken(ask_c(program, signed))


def test_a_read_only_mount_needs_no_modes(program: Path, tmp_path: Path) -> None:
    unshare = need_unshare("--map-root-user", "--mount")
    signed = SignedBundle(tmp_path)
    signed.sign()
    place = tmp_path / "secret"
    place.mkdir()
    secret = (*unshare, "sh", "-c", SECRET, "sh", str(place), str(signed.trust))
    told = ask_c(program, signed, (*secret, "rw"), EDGECOMPILE_TRUST=str(place))
    assert told == Verdict(76, frozenset({"trust-folder"}))
    assert is_taken(ask_c(program, signed, (*secret, "ro"), EDGECOMPILE_TRUST=str(place)))


@pytest.mark.parametrize("name", ["signatures", "signatures/ci.sig", "release.json"])
def test_lacking_rights_are_no_damage(program: Path, tmp_path: Path, name: str) -> None:
    unshare = need_unshare("--user")
    signed = SignedBundle(tmp_path)
    signed.sign()
    leaks = {"ASAN_OPTIONS": "detect_leaks=0"}  # their search needs rights, too
    assert is_taken(ask_c(program, signed, unshare, **leaks))
    (signed.path / name).chmod(0)
    told = ask_c(program, signed, unshare, **leaks)
    (signed.path / name).chmod(0o700)
    assert told == Verdict(FilePermissionError.exit_code, frozenset())


ETC = """
mount -t tmpfs none /etc && mkdir -p /etc/edgecompile && cp -r "$1" /etc/edgecompile/trust || exit 9
shift
exec "$@"
"""


def test_the_system_s_folder(program: Path, tmp_path: Path) -> None:
    unshare = need_unshare("--map-root-user", "--mount")
    signed = SignedBundle(tmp_path)
    system = (*unshare, "sh", "-c", ETC, "sh", str(signed.trust))
    assert ask_c(program, signed, system, EDGECOMPILE_TRUST="").status == 75
    assert is_taken(ask_c(program, signed, system, EDGECOMPILE_TRUST="off"))
    signed.policy["locked"] = True
    signed.write_policy()
    for value in ("off", str(tmp_path)):
        assert ask_c(program, signed, system, EDGECOMPILE_TRUST=value).status == 75
    signed.sign()
    assert is_taken(ask_c(program, signed, system, EDGECOMPILE_TRUST="off"))


@pytest.mark.parametrize(
    ("source", "status", "rule"),
    [
        ("#define INIT 1\n#define VERIFY -1\n" + WHOLE, 76, "signature-value"),
        ("#define INIT 1\n#define VERIFY 2\n" + WHOLE, 76, "signature-value"),
        ("#define INIT -1\n#define VERIFY 1\n" + WHOLE, 76, "signature-value"),
        ("#define INIT 1\n#define VERIFY 1\n" + STUB, 79, "crypto-missing"),
    ],
)
def test_only_one_is_success(
    program: Path, tmp_path: Path, source: str, status: int, rule: str
) -> None:
    signed = SignedBundle(tmp_path)
    signed.sign()
    library = tmp_path / "libcrypto.so.3"
    command = [MACHINE.tool("gcc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source.encode(), check=True)
    told = ask_c(program, signed, LD_LIBRARY_PATH=str(tmp_path))
    assert told.status == status and rule in told.rules


def test_mutated_signatures_are_judged_as_by_python(program: Path, tmp_path: Path) -> None:
    assert 0 < fuzz(tmp_path, 400, 3, program) < 200
