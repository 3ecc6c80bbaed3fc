"""cpu: judging variants, the choice among them, and the probe."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

import edgecompile.runtime
from edgecompile.runtime.base.errors import DamagedBundleError, NativeError, UnsupportedHostError
from edgecompile.runtime.cpu.host import (
    Host,
    architecture,
    choose_variant,
    describe_host,
    glibc_version,
    missing,
)
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.format.manifest.schema import Manifest, Variant
from tests.runtime.bundles import DummyBundle

HOST = Host(arch="x86-64", features=frozenset({"avx2", "fma"}), glibc=(2, 36))
V3 = Variant("v3", "x86-64", "aoti-cpu", ("avx2", "fma"), "2.34", 30)
PROBE_SOURCE = Path(edgecompile.runtime.__file__).parent / "native" / "probe" / "cpu_probe.c"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"requires": ("avx2", "avx512f", "amx")}, "the CPU or the system lacks avx512f, amx"),
        ({"arch": "aarch64"}, "is for aarch64, this is x86-64"),
        ({"glibc": "2.37"}, "needs glibc 2.37, this is 2.36"),
        ({"glibc": "3.0"}, "needs glibc 3.0"),
        ({"backend": "tensorflow"}, "needs the backend tensorflow"),
    ],
)
def test_what_a_variant_lacks(change: dict, reason: str) -> None:
    assert missing(V3, HOST) == []
    reasons = missing(V3._replace(**change), HOST)
    assert len(reasons) == 1 and reasons[0].startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"glibc": None}, "this C library isn't glibc"),
        ({"bits": 32}, "this one is 32-bit"),
        ({"byteorder": "big"}, "big-endian"),
        ({"system": "Darwin"}, "needs Linux, this is Darwin"),
    ],
)
def test_what_a_host_lacks(change: dict, reason: str) -> None:
    assert reason in missing(V3, HOST._replace(**change))[0]


def test_versions_are_compared_as_numbers() -> None:
    assert missing(V3._replace(glibc="2.9"), HOST) == []
    assert missing(V3._replace(glibc="2.36"), HOST) == []
    assert missing(V3._replace(glibc=None), HOST._replace(glibc=None)) == []


def with_variants(manifest: Manifest, *variants: Variant) -> Manifest:
    return manifest._replace(variants=variants)


def test_the_highest_rank_that_runs_is_chosen(manifest: Manifest) -> None:
    v2 = V3._replace(name="v2", requires=(), rank=20)
    v4 = V3._replace(name="v4", requires=("avx512f",), rank=40)
    chosen, refused = choose_variant(with_variants(manifest, v2, v4, V3), HOST)
    assert chosen.name == "v3"
    assert refused == {"v4": ["the CPU or the system lacks avx512f"]}
    other = HOST._replace(features=frozenset({"avx2", "fma", "avx512f"}))
    assert choose_variant(with_variants(manifest, v2, v4, V3), other)[0].name == "v4"
    twin = V3._replace(name="twin")
    assert choose_variant(with_variants(manifest, twin, V3), HOST)[0].name == "twin"


def test_a_wanted_variant(manifest: Manifest) -> None:
    v2 = V3._replace(name="v2", requires=(), rank=20)
    v4 = V3._replace(name="v4", requires=("avx512f",), rank=40)
    bundle = with_variants(manifest, v2, V3, v4)
    assert choose_variant(bundle, HOST, "v2")[0].name == "v2"
    with pytest.raises(UnsupportedHostError, match=r"v4 can't run here: .* lacks avx512f"):
        choose_variant(bundle, HOST, "v4")
    with pytest.raises(UnsupportedHostError, match=r"no variant 'v5'[\s\S]*v2, v3, v4"):
        choose_variant(bundle, HOST, "v5")


def test_no_variant_lists_what_each_lacks(manifest: Manifest) -> None:
    v4 = V3._replace(name="v4", requires=("avx512f", "avx2"), glibc="2.40", rank=40)
    neon = Variant("neon", "aarch64", "aoti-cpu", ("asimd",), "2.34", 30)
    with pytest.raises(UnsupportedHostError) as caught:
        choose_variant(with_variants(manifest, v4, neon), HOST)
    assert "v4: the CPU or the system lacks avx512f; needs glibc 2.40" in caught.value.message
    assert "neon: is for aarch64" in caught.value.message
    assert caught.value.exit_code == 23


def test_names_of_architectures() -> None:
    assert architecture("x86_64") == architecture("AMD64") == "x86-64"
    assert architecture("aarch64") == architecture("arm64") == "aarch64"
    assert architecture("riscv64") == "riscv64"


def test_this_machine_without_a_bundle() -> None:
    host = describe_host()
    assert host.arch == architecture(platform.machine())
    assert host.features == frozenset() and host.cpus >= 1
    assert host.glibc == glibc_version()
    assert host.to_json()["versions"]["python"] == platform.python_version()


@pytest.fixture
def probed(bundle: DummyBundle) -> DummyBundle:
    """The dummy bundle, made for this machine's architecture."""
    arch = architecture(platform.machine())
    bundle.document["variants"][0]["arch"] = arch
    bundle.document["probes"] = {arch: "code/x86-64/libecprobe.so"}
    return bundle


def test_the_real_probe(probed: DummyBundle, compile_c: Callable[[str], bytes]) -> None:
    probed.files["code/x86-64/libecprobe.so"] = compile_c(f'#include "{PROBE_SOURCE}"\n')
    folder = BundleFolder(probed.write())
    features = describe_host(folder).features
    folder.close()
    if architecture(platform.machine()) == "x86-64":
        flags = next(
            line.split(":")[1].split()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("flags")
        )
        assert "sse2" in features
        for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx512f"):
            assert (name in features) == (name in flags)
    else:
        assert "asimd" in features


def test_a_changed_probe_is_not_loaded(probed: DummyBundle) -> None:
    # Content of its own: what another test of this process has pinned isn't read again.
    probed.files["code/x86-64/libecprobe.so"] = b"a probe that changes"
    path = probed.write()
    (probed.folder / "code/x86-64/libecprobe.so").write_bytes(b"a probe that changed")
    folder = BundleFolder(path)
    with pytest.raises(DamagedBundleError, match="file-hash"):
        describe_host(folder)
    folder.close()


def test_a_probe_with_too_many_words(
    probed: DummyBundle, compile_c: Callable[[str], bytes]
) -> None:
    probed.files["code/x86-64/libecprobe.so"] = compile_c(
        "int ec_probe(char* buffer, int size) { return -size - 1; }"
    )
    folder = BundleFolder(probed.write())
    with pytest.raises(NativeError, match="more than 8192 bytes"):
        describe_host(folder)
    folder.close()
