"""Target profiles: what is shipped holds together, and a wrong file says all that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecompile.errors import TargetError
from edgecompile.targets.profile import (
    TargetProfile,
    VariantSpec,
    list_targets,
    load_target,
    load_variant,
)
from edgecompile.targets.schema import FEATURES, PROFILE_KEYS, PROFILES_VARIABLE, search_path

REPOSITORY = Path(__file__).resolve().parents[2]
PROFILES = REPOSITORY / "profiles"
V2 = {"cx16", "lahf", "popcnt", "sse3", "ssse3", "sse4_1", "sse4_2"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

PROFILE = """
name = "mine"
kind = "cpu"
description = "a machine of mine"
variants = ["x86-64-v3"]
cores = 8
memory_gib = 16
bandwidth_gbs = 51.2
glibc = "2.36"
python = "3.11"
peak_gflops = { fp32 = 512, int8 = 2048.0 }
"""
VARIANT = """
name = "odd"
arch = "x86-64"
march = "x86-64-v2"
simdlen = 128
cpu_capability = "DEFAULT"
requires = ["sse4_2"]
rank = 20
extra_flags = ["-mtune=atom"]
"""


def test_shipped_targets_are_listed() -> None:
    assert {
        *("cpu-x86-64", "cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4", "cpu-x86-64-amx"),
        *("cpu-x86-64-avxvnni", "cpu-x86-64-avx512bf16"),
        *("cpu-aarch64", "cpu-aarch64-i8mm", "cpu-any"),
        *("graviton2", "graviton3", "graviton4"),
        *("raspberry-pi-4", "raspberry-pi-5", "jetson-orin-cpu"),
    } <= set(list_targets())
    assert list(list_targets()) == sorted(list_targets())


@pytest.mark.parametrize("name", [path.stem for path in sorted(PROFILES.glob("*.toml"))])
def test_shipped_profile_is_whole(name: str) -> None:
    profile = load_target(name, [PROFILES])
    assert profile.name == name
    figures = ("cores", "memory_gib", "bandwidth_gbs", "peak_gflops", "glibc", "python")
    assert set(dict(profile.sources)) >= set(figures), "a figure without a source"
    known = {key.name for key in PROFILE_KEYS}
    assert set(dict(profile.sources)) <= known, "the source of a figure that isn't there"
    assert TargetProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
    for arch in profile.archs:
        assert profile.features_of(arch)


@pytest.mark.parametrize(
    "path", sorted((PROFILES / "variants").glob("*.toml")), ids=lambda p: p.stem
)
def test_shipped_variant_is_whole(path: Path) -> None:
    variant = load_variant(path.stem, [PROFILES])
    assert len(set(variant.requires)) == len(variant.requires)
    assert VariantSpec.from_json(json.loads(json.dumps(variant.to_json()))) == variant


@pytest.mark.parametrize("name", [path.stem for path in sorted(PROFILES.glob("*.toml"))])
def test_peaks_are_made_of_the_cores_and_their_clock(name: str) -> None:
    """Operations a cycle and core, in powers of two; the source says which."""
    profile = load_target(name, [PROFILES])
    assert profile.clock_ghz is not None
    cycle = profile.peak() / (profile.cores * profile.clock_ghz)
    assert round(cycle, 6) in (8, 16, 32, 64)
    text = dict(profile.sources)["peak_gflops"]
    assert f"{profile.cores} cores x {profile.clock_ghz} GHz x {cycle:.0f} fp32" in text
    if "fp16" in dict(profile.peak_gflops):
        assert profile.peak("fp16") == 2 * profile.peak()
        assert all("asimdhp" in profile.features_of(arch) for arch in profile.archs)


def test_one_bundle_for_any_host() -> None:
    profile = load_target("cpu-any")
    assert set(profile.archs) == {"x86-64", "aarch64"}
    assert [v.name for v in profile.variants if v.arch == "x86-64"] == [
        *("x86-64-v2", "x86-64-v3", "x86-64-v4"),
    ]
    assert [v.name for v in profile.variants if v.arch == "aarch64"] == [
        *("aarch64-neon", "aarch64-dotprod"),
    ]
    assert set(profile.features_of("x86-64")) == V2
    assert profile.features_of("aarch64") == ("asimd",)


def test_devices_name_what_their_cpus_have() -> None:
    """The best code for each, no more than it can run."""
    assert [v.name for v in load_target("raspberry-pi-4").variants] == ["aarch64-neon"]
    assert "asimddp" not in load_target("raspberry-pi-4").features_of("aarch64")
    best = dict.fromkeys(("raspberry-pi-5", "graviton2", "jetson-orin-cpu"), "aarch64-dotprod")
    best |= dict.fromkeys(("graviton3", "graviton4"), "aarch64-i8mm")
    for name, variant in best.items():
        profile = load_target(name)
        assert [v.name for v in profile.variants] == [variant]
        assert set(profile.variants[0].requires) <= set(profile.features_of("aarch64"))
    assert "sve" in load_target("graviton3").features_of("aarch64")


def test_ranks_tell_the_variants_of_an_architecture_apart() -> None:
    variants = [load_variant(p.stem) for p in (PROFILES / "variants").glob("*.toml")]
    ranks = [(variant.arch, variant.rank) for variant in variants]
    assert len(set(ranks)) == len(ranks)
    for one in variants:
        for other in variants:
            if one.arch == other.arch and set(one.requires) < set(other.requires):
                assert one.rank < other.rank


def test_x86_64_levels_require_what_the_abi_says() -> None:
    v3, v4 = load_target("cpu-x86-64").variants
    assert (v3.name, v3.march, v3.simdlen, v3.cpu_capability) == (
        *("x86-64-v3", "x86-64-v3"),
        *(256, "AVX2"),
    )
    assert (v4.name, v4.march, v4.simdlen, v4.cpu_capability) == (
        *("x86-64-v4", "x86-64-v4"),
        *(512, "AVX512"),
    )
    assert set(v3.requires) == V3
    assert set(v4.requires) == V4


def test_a_class_has_the_features_of_its_least_variant() -> None:
    assert set(load_target("cpu-x86-64").features_of("x86-64")) == V3
    assert set(load_target("cpu-x86-64-v4").features_of("x86-64")) == V4
    assert load_target("cpu-x86-64").features_of("aarch64") == ()


def test_features_are_those_that_the_probe_writes() -> None:
    source = (REPOSITORY / "edgecompile/runtime/native/probe/cpu_probe.c").read_text()
    for arch, features in FEATURES.items():
        missing = [feature for feature in features if f'"{feature}"' not in source]
        assert not missing, f"{arch}: profiles may require what the probe never reports"


def test_peak_and_variant_look_ups(write: Callable[..., Path]) -> None:
    profile = load_target(write())
    assert (profile.peak(), profile.peak("int8"), profile.peak("bf16")) == (512.0, 2048.0, 512.0)
    assert profile.variant("x86-64-v3").simdlen == 256
    with pytest.raises(TargetError, match=r"no variant 'x86-64-v5'[\s\S]*did you mean x86-64-v3"):
        profile.variant("x86-64-v5")


def test_speed_may_be_unknown(write: Callable[..., Path]) -> None:
    """As in what ``targets detect`` writes: it is measured then."""
    peaks = "peak_gflops = { fp32 = 512, int8 = 2048.0 }"
    profile = load_target(write(("bandwidth_gbs = 51.2", ""), (peaks, "")))
    assert profile.bandwidth_gbs is None and profile.peak_gflops == ()
    assert TargetProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
    with pytest.raises(TargetError, match="mine states no peak_gflops"):
        profile.peak()


def test_a_path_is_read_and_its_variants_come_from_the_shipped_ones(
    write: Callable[..., Path],
) -> None:
    profile = load_target(write())
    assert (profile.name, profile.cores, profile.memory_gib) == ("mine", 8, 16.0)
    assert isinstance(profile.memory_gib, float)
    assert profile.variants == (load_variant("x86-64-v3"),)
    assert profile.clock_ghz is None and profile.sources == ()


def test_own_variants_lie_beside_the_profile(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "odd.toml").write_text(VARIANT)
    profile = load_target(write(('["x86-64-v3"]', '["x86-64-v3", "odd"]')))
    assert [variant.name for variant in profile.variants] == ["odd", "x86-64-v3"]  # by rank
    assert profile.variants[0].extra_flags == ("-mtune=atom",)
    assert profile.features_of("x86-64") == ("sse4_2",)


def test_variants_of_two_architectures(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "variants").mkdir()
    arm = VARIANT.replace('"x86-64"', '"aarch64"').replace("x86-64-v2", "armv8.2-a")
    arm = arm.replace('"DEFAULT"', '"NEON"').replace("sse4_2", "asimd")
    (tmp_path / "variants" / "odd.toml").write_text(arm.replace("-mtune=atom", "-mtune=cortex-a76"))
    profile = load_target(
        write(
            ('["x86-64-v3"]', '["x86-64-v3", "odd"]'),
            ("[", "features = { aarch64 = ['asimd', 'asimddp'] }\nvariants = ["),
            ("variants = features", "features"),
        )
    )
    assert set(profile.archs) == {"x86-64", "aarch64"}
    assert profile.features_of("aarch64") == ("asimd", "asimddp")
    assert TargetProfile.from_json(profile.to_json()) == profile


def test_environment_variable_comes_first(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write().rename(tmp_path / "cpu-x86-64.toml")
    text = (tmp_path / "cpu-x86-64.toml").read_text()
    (tmp_path / "cpu-x86-64.toml").write_text(text.replace('"mine"', '"cpu-x86-64"'))
    assert load_target("cpu-x86-64").cores != 8
    monkeypatch.setenv(PROFILES_VARIABLE, str(tmp_path))
    assert search_path()[0] == tmp_path
    assert load_target("cpu-x86-64").cores == 8
    assert load_target("cpu-x86-64-v4").variants[0].name == "x86-64-v4"


def test_environment_variable_that_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILES_VARIABLE, "/nowhere/at/all")
    with pytest.raises(TargetError, match="/nowhere/at/all is not a folder"):
        load_target("cpu-x86-64")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(TargetError) as caught:
        load_target("cpu-x86_64")
    assert caught.value.exit_code == TargetError.exit_code != 1
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean cpu-x86-64 ")
    assert "see 'edgecompile targets list'" in caught.value.hint
    assert len(caught.value.hint) < 150


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("rpi5", "raspberry-pi-5? "),
        ("pi5", "raspberry-pi-5? "),
        ("RPi4", "raspberry-pi-4? "),
        ("orin-nano", "jetson-orin-nano or "),
        ("jetson-orin-nan", "jetson-orin-nano or "),
        ("graviton", "graviton2 or graviton3 or graviton4? "),
    ],
)
def test_short_names_are_understood(name: str, meant: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(name)
    assert (caught.value.hint or "").startswith(f"did you mean {meant}")


@pytest.mark.parametrize("name", ["", "..", "*", "variants", "cpu-x86-64\n", "\0", "a" * 300])
def test_names_that_are_no_names(name: str) -> None:
    with pytest.raises(TargetError, match="unknown target"):
        load_target(name)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no profile .*gone\.toml"):
        load_target(tmp_path / "gone.toml")


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe\x00", b"a = 1\na = 2\n"])
def test_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=r"mine\.toml is not valid TOML"):
        load_target(path)


def test_every_problem_is_named_at_once(write: Callable[..., Path]) -> None:
    path = write(
        ("cores = 8", "core = 8"),
        ("memory_gib = 16", 'memory_gib = "16 GB"'),
        ('glibc = "2.36"', "glibc = 2.36"),
        ('["x86-64-v3"]', '["x86-64-v33", "x86-64-v4x"]'),
        ("fp32 = 512, int8", "fp23 = 512, int8"),
    )
    with pytest.raises(TargetError) as caught:
        load_target(path)
    message = caught.value.message
    assert str(path) in message
    for part in (
        "core: unknown key (did you mean cores?)",
        "cores: missing",
        "memory_gib: expected a number above 0, not '16 GB'",
        "glibc: expected a string such as '2.34', not 2.36",
        "unknown variant 'x86-64-v33'",
        "unknown variant 'x86-64-v4x'",
        "did you mean x86-64-v3",
        "unknown precision 'fp23' (did you mean fp32?)",
    ):
        assert part in message, message


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('kind = "cpu"', 'kind = "gpu"', "kind: 'gpu' is none of cpu"),
        ("cores = 8", "cores = 0", "cores: expected a whole number from 1"),
        ("cores = 8", "cores = true", "cores: expected a whole number"),
        ("cores = 8", "cores = 8.0", "cores: expected a whole number"),
        ("memory_gib = 16", "memory_gib = nan", "memory_gib: expected a number above 0"),
        ("memory_gib = 16", "memory_gib = inf", "memory_gib: expected a number above 0"),
        ("bandwidth_gbs = 51.2", "bandwidth_gbs = -1", "bandwidth_gbs: expected a number above"),
        ('["x86-64-v3"]', "[]", "variants: expected at least 1 entries, not 0"),
        ('["x86-64-v3"]', '"x86-64-v3"', "variants: expected a list"),
        ('["x86-64-v3"]', "[3]", "variants: expected a non-empty string, not 3"),
        ('["x86-64-v3"]', '["../variants/x86-64-v3"]', "unknown variant '../variants/x86-64-v3'"),
        ('["x86-64-v3"]', '["x86-64-v3", "x86-64-v3"]', "one is named twice"),
        ("fp32 = 512, int8", "int8", "peak_gflops.fp32: missing"),
        ('name = "mine"', 'name = "yours"', "'yours' differs from the file's name 'mine'"),
        ('python = "3.11"', 'python = "3"', "python: expected a string such as"),
        ("cores = 8", "cores = 8\nclock_ghz = 0", "clock_ghz: expected a number above 0"),
        ("cores = 8", "cores = 8\nsources = 'me'", "sources: expected a table"),
        ("cores = 8", "cores = 8\nfeatures.x86-64 = ['avx3']", "unknown x86-64 feature 'avx3'"),
        ("cores = 8", "cores = 8\nfeatures.x86-64 = ['avx2']", "requires also avx, bmi1"),
        ("cores = 8", "cores = 8\nfeatures.aarch64 = ['asimd']", "no variant of this arch"),
        ("cores = 8", "cores = 8\nfeatures.arm64 = ['asimd']", "unknown architecture 'arm64'"),
    ],
)
def test_malformed_profile(write: Callable[..., Path], old: str, new: str, problem: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_target(write((old, new)))
    assert problem in caught.value.message, caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("rank = 20", "", "rank: missing"),
        ("rank = 20", "rank = -1", "rank: expected a whole number from 0 to 1000, not -1"),
        ("rank", "rnak", "rnak: unknown key (did you mean rank?)"),
        ('arch = "x86-64"', 'arch = "x86_64"', "'x86_64' is none of x86-64, aarch64 (did you mean"),
        ("simdlen = 128", "simdlen = 130", "simdlen: 130 is none of 128, 256, 512"),
        ("simdlen = 128", "simdlen = 128.0", "simdlen: 128.0 is none of"),
        ('"DEFAULT"', '"avx2"', "cpu_capability: 'avx2' is none of"),
        ('"sse4_2"', '"sse42"', "unknown x86-64 feature 'sse42' (did you mean sse4_2?)"),
        ('"sse4_2"', '"asimd"', "unknown x86-64 feature 'asimd'"),
        ('"sse4_2"', "4.2", "requires: expected a non-empty string, not 4.2"),
        ('"-mtune=atom"', '"evil.o"', "extra_flags: expected a string such as"),
        ('"x86-64-v2"', '"x86-64-v2 -o/etc/passwd"', "march: expected a string such as"),
        ('"odd"', '"even"', "'even' differs from the file's name 'odd'"),
    ],
)
def test_malformed_variant(tmp_path: Path, old: str, new: str, problem: str) -> None:
    (tmp_path / "variants").mkdir()
    assert old in VARIANT
    (tmp_path / "variants" / "odd.toml").write_text(VARIANT.replace(old, new))
    with pytest.raises(TargetError) as caught:
        load_variant("odd", [tmp_path])
    assert problem in caught.value.message, caught.value.message
    assert "odd.toml" in caught.value.message


def test_from_json_refuses_what_is_no_profile() -> None:
    data = load_target("cpu-x86-64").to_json()
    for damaged in ({}, {**data, "cores": "two"}, {**data, "variants": None}, {**data, "x": 1}):
        with pytest.raises(TargetError):
            TargetProfile.from_json(damaged)
    del data["variants"][0]["march"]
    with pytest.raises(TargetError, match="march: missing"):
        TargetProfile.from_json(data)


def test_json_names_no_path() -> None:
    assert str(REPOSITORY) not in json.dumps(load_target("cpu-x86-64").to_json())
