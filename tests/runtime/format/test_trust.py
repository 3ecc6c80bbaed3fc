"""Signatures as a device checks them: which keys count, and every attack with its rule and exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import (
    CryptoMissingError,
    DamagedBundleError,
    ExpiredReleaseError,
    FilePermissionError,
    InputError,
    NativeError,
    RefusedReleaseError,
    UnsignedBundleError,
    UntrustedBundleError,
)
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.trust import libcrypto, policy
from edgecompile.runtime.model.open_bundle import open_bundle
from tests.runtime.bundles import DummyBundle
from tests.runtime.signed import ATTACKS, RELEASE, SignedBundle, high_s, public_pem


@pytest.fixture
def signed(tmp_path: Path) -> SignedBundle:
    return SignedBundle(tmp_path)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The place of this machine's trust folder; there is none yet."""
    place = tmp_path / "etc"
    monkeypatch.setattr(policy, "SYSTEM_FOLDER", str(place))
    monkeypatch.delenv(policy.TRUST_VARIABLE, raising=False)
    return place


def test_a_signed_bundle_opens(signed: SignedBundle) -> None:
    signed.sign()
    verified = signed.open().verified
    assert verified is not None
    assert verified.keys == ("ci",)
    assert verified.release is not None and verified.release.number == 42
    (signed.path / "release.json").unlink()
    signed.sign("release")
    verified = signed.open().verified
    assert verified is not None
    assert (verified.keys, verified.release) == (("release",), None)


@pytest.mark.parametrize("curve", ["SECP256R1", "SECP384R1", "SECP521R1"])
@pytest.mark.parametrize("by_package", [False, True])
def test_each_curve_by_each_library(
    tmp_path: Path, curve: str, by_package: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_package:
        monkeypatch.setattr(libcrypto, "_verifier", None)
        monkeypatch.setattr(libcrypto, "SONAMES", ())
    signed = SignedBundle(tmp_path, curve)
    signed.sign()
    signed.open()
    signed.sign(signature=lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert "[signature-value]" in signed.refused().message


@pytest.mark.parametrize(
    ("rule", "code", "attack"),
    ATTACKS,
    ids=[f"{item[0]}-{number}" for number, item in enumerate(ATTACKS)],
)
def test_attacks(
    signed: SignedBundle, rule: str, code: int, attack: Callable[[SignedBundle], None]
) -> None:
    attack(signed)
    error = signed.refused()
    assert f"[{rule}]" in error.message
    assert error.exit_code == code, error.message


def test_a_threshold_needs_as_many_keys(signed: SignedBundle) -> None:
    signed.policy["models"]["tiny*"]["threshold"] = 2
    signed.write_policy()
    signed.sign("ci")
    error = signed.refused()
    assert "1 of its signatures count, 2 must [signature-trusted]" in error.message
    signed.sign("release")
    verified = signed.open().verified
    assert verified is not None and verified.keys == ("ci", "release")
    # The same key counts once, also by the other signature that ECDSA allows.
    signed.sign("ci", signature=high_s)
    signed.open()
    signed.sign("ci", "release", signature=high_s)
    assert "1 of its signatures count" in signed.refused().message


def test_signatures_that_do_not_count_do_no_harm(signed: SignedBundle) -> None:
    """As those of a key that is being replaced."""
    signed.sign("ci")
    (signed.path / "signatures" / "other.sig").write_bytes(b"{}")
    signed.open()


def test_a_stale_signature_hides_no_good_one(signed: SignedBundle) -> None:
    """The same key's, over an earlier release of the same manifest."""
    stale = signed.sign("ci", "a").read_bytes()
    signed.write_release({**RELEASE, "number": 43})
    (signed.path / "signatures" / "zz.sig").write_bytes(stale)
    error = signed.refused()
    assert error.message.count("ci: signed another content of release.json") == 2
    signed.sign("ci", "m")
    signed.open()


def test_a_refused_key_is_named(signed: SignedBundle) -> None:
    signed.sign("ci")
    signed.policy["refused"] = ["ci"]
    signed.write_policy()
    assert f"is by the key ci, which {signed.trust} refuses" in signed.refused().message
    signed.sign("release")
    signed.open()
    # Under each of its names.
    signed.write_key("release", public_pem(signed.keys["ci"]))
    for refused in ("ci", "release"):
        signed.policy["refused"] = [refused]
        signed.write_policy()
        signed.sign("ci", "release")
        assert "0 of its signatures count" in signed.refused().message


def test_no_hint_runs_the_folder_s_own_code(signed: SignedBundle) -> None:
    signed.sign()
    (signed.path / "sitecustomize.py").touch()
    hint = signed.refused().hint
    assert hint is not None and "edgecompile-runtime" in hint and "python3" not in hint


SECRET = """
mount -t tmpfs -o mode=1777 none "$1" && cp "$2"/* "$1" && chmod 0666 "$1"/* || exit 9
mount -o "remount,$3" none "$1" || exit 9
shift 3
exec "$@"
"""
OPENING = """
import sys
from edgecompile.runtime.base.errors import EdgecompileError
from edgecompile.runtime.format.files.folder import BundleFolder
try:
    BundleFolder(sys.argv[1], trust=sys.argv[2]).close()
except EdgecompileError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def open_within(signed: SignedBundle, *prefix: str, trust: Path | None = None) -> tuple[int, str]:
    """The exit code and the error of opening it in a process that another command starts."""
    command = [*prefix, sys.executable, "-c", OPENING, str(signed.path), str(trust or signed.trust)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def need_unshare(*options: str) -> tuple[str, ...]:
    """The command with namespaces of its own."""
    command = ("unshare", *options)
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip(f"this system doesn't let users make namespaces ({' '.join(command)})")
    return command


@pytest.mark.parametrize(("mount", "code"), [("rw", 76), ("ro", 0)])
def test_a_read_only_mount_needs_no_modes(
    signed: SignedBundle, tmp_path: Path, mount: str, code: int
) -> None:
    """Kubernetes mounts secrets so; as long as the mount can be written, modes count."""
    unshare = need_unshare("--map-root-user", "--mount")
    signed.sign()
    place = tmp_path / "secret"
    place.mkdir()
    secret = (*unshare, "sh", "-c", SECRET, "sh", str(place), str(signed.trust), mount)
    told, text = open_within(signed, *secret, trust=place)
    assert told == code and ("[trust-folder]" in text) == (code != 0), text


@pytest.mark.parametrize("name", ["signatures", "signatures/ci.sig", "release.json"])
def test_lacking_rights_are_no_damage(signed: SignedBundle, name: str) -> None:
    """In a namespace of users nobody has root's rights."""
    unshare = need_unshare("--user")
    signed.sign()
    assert open_within(signed, *unshare) == (0, "")
    (signed.path / name).chmod(0)
    told, text = open_within(signed, *unshare)
    (signed.path / name).chmod(0o700)
    assert told == FilePermissionError.exit_code and f"{name}: user" in text, text


def test_the_rule_of_the_longest_beginning_holds(signed: SignedBundle) -> None:
    signed.policy["models"] = {
        "*": {"keys": ["ci"], "threshold": 1},
        "tin*": {"keys": ["release"], "threshold": 1},
    }
    signed.write_policy()
    signed.sign("ci")
    assert "isn't a key of this model" in signed.refused().message
    signed.policy["models"]["tiny"] = {"keys": ["ci"], "threshold": 1}
    signed.write_policy()
    signed.open()


def test_a_refused_bundle(signed: SignedBundle) -> None:
    signed.sign()
    signed.policy["refused"] = [signed.open().manifest_sha256]
    signed.write_policy()
    error = signed.refused()
    assert isinstance(error, RefusedReleaseError) and error.exit_code == 77
    assert "[bundle-refused]" in error.message


def test_expiry(signed: SignedBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(year: int) -> None:
        now = time.struct_time((year, 1, 15, 0, 0, 0, 0, 15, 0))
        monkeypatch.setattr(time, "gmtime", lambda *_: now)

    signed.sign()
    clock(2100)
    signed.open()  # devices heed it only where their policy says so
    signed.policy["expiry"] = "enforce"
    signed.write_policy()
    error = signed.refused()
    assert isinstance(error, ExpiredReleaseError) and error.exit_code == 78
    assert "[release-expired]" in error.message
    for year in (2026, 1970):
        clock(year)
        signed.open()
    # A release from the future makes the clock go on, so one that expired before it was made is refused.
    signed.write_release({**RELEASE, "created": "2027-01-01T00:00:00Z"})
    signed.sign()
    assert signed.refused().exit_code == 78


def test_which_folder_holds(
    signed: SignedBundle, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(signed.path)
    BundleFolder(path).close()  # no folder, no check
    with pytest.raises(UnsignedBundleError):
        BundleFolder(path, trust=signed.trust)
    monkeypatch.setenv(policy.TRUST_VARIABLE, str(signed.trust))
    with pytest.raises(UnsignedBundleError):
        BundleFolder(path)
    BundleFolder(path, trust=False).close()
    monkeypatch.setenv(policy.TRUST_VARIABLE, str(system))
    with pytest.raises(UntrustedBundleError, match=r"can't be opened.*\[trust-folder\]"):
        BundleFolder(path)
    with pytest.raises(InputError, match="trust is True"):
        BundleFolder(path, trust=True)


def test_the_system_s_folder_holds_where_it_exists(
    signed: SignedBundle, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(signed.path)
    shutil.copytree(signed.trust, system)
    with pytest.raises(UnsignedBundleError):
        BundleFolder(path)
    BundleFolder(path, trust=False).close()
    monkeypatch.setenv(policy.TRUST_VARIABLE, policy.OFF)
    BundleFolder(path).close()
    with pytest.raises(UnsignedBundleError):
        BundleFolder(path, trust=signed.trust)
    # Broken, it may have been locked.
    (system / "policy.json").unlink()
    with pytest.raises(UntrustedBundleError):
        BundleFolder(path, trust=False)
    shutil.rmtree(system)
    # What can't be looked at is there.
    for target in ("nowhere", "etc"):
        system.symlink_to(target)
        with pytest.raises(UntrustedBundleError):
            BundleFolder(path, trust=False)
        system.unlink()
    system.symlink_to("etc")
    monkeypatch.setattr(policy, "SYSTEM_FOLDER", str(system / "trust"))
    with pytest.raises(UntrustedBundleError):
        BundleFolder(path, trust=False)


def test_a_locked_folder_holds_whatever_callers_say(
    signed: SignedBundle, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(signed.path)
    signed.policy["locked"] = True
    signed.write_policy()
    shutil.copytree(signed.trust, system)
    # The caller's own folder trusts whoever signed it.
    intruder = SignedBundle(signed.path.parent / "intruder")
    signed.sign(key=intruder.keys["ci"])
    for value in (None, policy.OFF, str(intruder.trust)):
        if value is None:
            monkeypatch.delenv(policy.TRUST_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(policy.TRUST_VARIABLE, value)
        for trust in (None, False, intruder.trust):
            with pytest.raises(UntrustedBundleError, match=r"\[signature-key\]"):
                BundleFolder(path, trust=trust)
    signed.sign()
    BundleFolder(path, trust=False).close()


def test_an_inner_bundle_is_covered(tmp_path: Path) -> None:
    """Its manifest must be the listed one, which is compared before anything of it is parsed."""
    signed = SignedBundle(tmp_path)
    inner = DummyBundle(signed.path / "encoder")
    inner.write()
    outer = DummyBundle(signed.path)
    for path in (signed.path / "encoder").rglob("*"):
        if path.is_file():
            outer.files[path.relative_to(signed.path).as_posix()] = path.read_bytes()
    outer.write()
    signed.sign()
    with closing(BundleFolder(str(signed.path), trust=signed.trust)) as folder:
        folder.open_inner("encoder").close()
        (signed.path / "encoder" / "manifest.json").write_bytes(b"{")
        with pytest.raises(DamagedBundleError, match=r"\[file-hash\]"):
            folder.open_inner("encoder")
    # By itself it isn't signed.
    inner.write()
    with pytest.raises(UnsignedBundleError):
        BundleFolder(str(inner.folder), trust=signed.trust)


# --- Libraries
STUB = """
#include <stddef.h>
void *d2i_PUBKEY(void **a, const unsigned char **b, long c) { return (void *)1; }
void *EVP_MD_CTX_new(void) { return (void *)1; }
void EVP_MD_CTX_free(void *a) {}
int EVP_DigestVerifyInit(void *a, void *b, void *c, void *d, void *e) { return INIT; }
int EVP_DigestVerify(void *a, const void *b, size_t c, const void *d, size_t e) { return VERIFY; }
void *EVP_sha256(void) { return (void *)1; }
void *EVP_sha384(void) { return (void *)1; }
void *EVP_sha512(void) { return (void *)1; }
void EVP_PKEY_free(void *a) {}
"""
WHOLE = STUB + "void ERR_clear_error(void) {}\n"


@pytest.mark.parametrize(("init", "verify"), [("1", "-1"), ("1", "2"), ("1", "0"), ("-1", "1")])
def test_only_one_is_success(
    signed: SignedBundle,
    compile_c: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
    init: str,
    verify: str,
) -> None:
    signed.sign()
    _use_library(
        monkeypatch, signed, compile_c(f"#define INIT {init}\n#define VERIFY {verify}\n" + WHOLE)
    )
    error = signed.refused()
    assert error.exit_code == 76 and "[signature-value]" in error.message


@pytest.mark.parametrize("lacking", [True, False])
def test_without_a_library_nothing_opens(
    signed: SignedBundle,
    compile_c: Callable[[str], bytes],
    monkeypatch: pytest.MonkeyPatch,
    lacking: bool,
) -> None:
    """Also where the only one lacks a function."""
    signed.sign()
    stub = compile_c("#define INIT 1\n#define VERIFY 1\n" + STUB)
    _use_library(monkeypatch, signed, stub if lacking else b"no library")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    error = signed.refused()
    assert isinstance(error, CryptoMissingError) and error.exit_code == 79
    assert "[crypto-missing]" in error.message


def _use_library(monkeypatch: pytest.MonkeyPatch, signed: SignedBundle, data: bytes) -> None:
    path = signed.path.parent / "libcrypto-stub.so"
    path.write_bytes(data)
    monkeypatch.setattr(libcrypto, "SONAMES", (str(path),))
    monkeypatch.setattr(libcrypto, "_verifier", None)


# --- What runs before, and what is fetched
MARKER = """
#include <fcntl.h>
__attribute__((constructor)) static void run(void) { open("MARKER", O_CREAT | O_WRONLY, 0600); }
"""


def test_no_code_runs_before_the_check(
    tmp_path: Path, compile_c: Callable[[str], bytes], system: Path
) -> None:
    signed = SignedBundle(tmp_path)
    marker = tmp_path / "marker"
    bundle = DummyBundle(signed.path)
    bundle.files["code/x86-64/libecprobe.so"] = compile_c(MARKER.replace("MARKER", str(marker)))
    bundle.write()
    signed.sign(key=SignedBundle(tmp_path / "other").keys["ci"])
    with pytest.raises(UntrustedBundleError):
        open_bundle(signed.path, trust=signed.trust)
    assert not marker.exists()
    with pytest.raises(NativeError):  # the marker isn't a probe
        open_bundle(signed.path, trust=False)
    assert marker.exists()


OFFLINE = """
import os, sys
asked = []
sys.addaudithook(lambda name, _: asked.append(name) if name.startswith(("socket.", "urllib.")) else None)
from edgecompile.runtime import open_bundle
if sys.argv[3] == "alone":
    assert os.listdir("/sys/class/net") == ["lo"] or not open("/proc/net/route").readlines()[1:]
with open_bundle(sys.argv[1], trust=sys.argv[2], verify="full") as model:
    assert model.manifest.name
assert not asked, asked
"""


@pytest.mark.parametrize("alone", [False, True])
def test_nothing_is_fetched(native_copy: Path, tmp_path: Path, alone: bool) -> None:
    """No socket is asked for; and opening goes on as well where there is no network interface."""
    signed = SignedBundle(tmp_path)
    shutil.rmtree(signed.path)
    signed.path = native_copy
    name = BundleFolder(str(native_copy)).manifest.name
    signed.write_release({**RELEASE, "name": name})
    signed.policy["models"] = {name: {"keys": ["ci"], "threshold": 1}}
    signed.write_policy()
    signed.sign()
    command = [sys.executable, "-c", OFFLINE, str(native_copy), str(signed.trust)]
    if alone:
        command = [*need_unshare("--map-root-user", "--net"), *command, "alone"]
    else:
        command.append("beside")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_key_s_text_may_be_formed_otherwise(signed: SignedBundle) -> None:
    signed.sign()
    pem = public_pem(signed.keys["ci"])
    signed.write_key("ci", b"\n" + pem.replace(b"\n", b"\r\n") + b"\n")
    signed.open()
