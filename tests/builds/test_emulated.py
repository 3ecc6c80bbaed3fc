"""Bundles on CPUs that this machine hasn't: each variant's self-test under qemu, on a CPU that has
exactly what the variant requires, and refusals in words where it has less.

Emulation proves instructions and results, never speed.
"""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import UnsupportedHostError
from tests.hosts.emulation import (
    ARM,
    NOT_EMULATED,
    X86,
    build_encoder_for_any,
    build_for_any,
    interpreter,
    report_of,
    run,
    selftest,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.emulated,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="cross builds start from x86-64"),
]


@pytest.fixture(scope="module")
def encoder(shared_folder: Path, tiny_model: Path) -> Path:
    return build_encoder_for_any(shared_folder, tiny_model)


@pytest.fixture(scope="module")
def functions(shared_folder: Path) -> Path:
    """Every function that generated kernels take from the runtime, and conversions, reductions."""
    model = f"{Path(__file__).parents[1] / 'factories' / 'functions.py'}:functions"
    return build_for_any(shared_folder, "functions-any", model)


@pytest.mark.parametrize(("variant", "cpu"), [*X86, *ARM])
@pytest.mark.parametrize("model", ["encoder", "functions"])
def test_each_variant_gives_eager_s_results_on_the_least_cpu_that_has_it(
    model: str, variant: str, cpu: str, request: pytest.FixtureRequest
) -> None:
    """The loader itself chooses the variant, from what the emulated CPU reports."""
    bundle: Path = request.getfixturevalue(model)
    report = report_of(selftest(interpreter(variant, request), bundle, cpu, "--json"))
    assert report["variant"] == variant
    assert report["ok"] and all(case["ok"] for case in report["cases"])
    buckets = json.loads((bundle / "manifest.json").read_text())["buckets"]
    assert {case["bucket"] for case in report["cases"]} == set(range(len(buckets)))
    assert len(report["cases"]) >= 3 * len(buckets)


def test_the_verdict_names_every_bucket(encoder: Path, request: pytest.FixtureRequest) -> None:
    """A line for each golden vector of each bucket, and one for all."""
    manifest = json.loads((encoder / "manifest.json").read_text())
    done = selftest(interpreter("x86-64", request), encoder, "Nehalem")
    assert done.returncode == 0, done.stdout + done.stderr
    table, last = done.stdout.splitlines()[:-1], done.stdout.splitlines()[-1]
    verdicts = {(line.split()[0], line.split()[1]): line.split()[-1] for line in table[1:]}
    expected = {(str(item["bucket"]), item["case"]) for item in manifest["golden"]}
    together = {bucket for bucket, name in expected if name == "rows"}
    expected |= {(bucket, name) for bucket in together for name in ("equal-rows", "rows-alone")}
    assert len({bucket for bucket, _ in expected}) == len(manifest["buckets"]) == 2
    assert verdicts == dict.fromkeys(expected, "ok")
    assert last.startswith(f"PASSED: {len(expected)} of {len(expected)} cases ok")
    assert "variant x86-64-v2" in last


@pytest.mark.parametrize(
    ("variant", "cpu", "lacking"),
    [
        ("x86-64-v4", "Haswell", "avx512f"),
        ("x86-64-v3", "Nehalem", "avx2"),
        ("aarch64-dotprod", "cortex-a53", "asimddp"),
        ("x86-64-v3", "cortex-a76", "is for x86-64"),
        ("aarch64-neon", "Haswell", "is for aarch64"),
    ],
)
def test_a_lesser_cpu_is_refused_in_words(
    encoder: Path, variant: str, cpu: str, lacking: str, request: pytest.FixtureRequest
) -> None:
    host = "aarch64" if cpu.startswith("cortex") else "x86-64"
    done = selftest(interpreter(host, request), encoder, cpu, "--variant", variant)
    assert done.returncode == UnsupportedHostError.exit_code, done.stdout + done.stderr
    assert f"the variant {variant} can't run here" in done.stderr
    assert lacking in done.stderr
    assert "hint: " in done.stderr


def test_a_bundle_without_a_variant_for_the_cpu_says_what_each_lacks(
    encoder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As a bundle of x86-64-v4 alone on a Haswell."""
    bundle = tmp_path / "v4.ecb"
    shutil.copytree(encoder, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["variants"] = [v for v in manifest["variants"] if v["name"] == NOT_EMULATED]
    assert len(manifest["variants"]) == 1
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    done = selftest(interpreter("x86-64", request), bundle, "Haswell")
    assert done.returncode == UnsupportedHostError.exit_code, done.stdout + done.stderr
    assert "no variant of this bundle can run here" in done.stderr
    assert "x86-64-v4: the CPU or the system lacks avx512f" in done.stderr


FORCED = """
import sys
import edgecompile.runtime.cpu.host as cpu
cpu.missing = lambda variant, host: []
from edgecompile.runtime.__main__ import main
sys.exit(main(["selftest", sys.argv[1], "--variant", sys.argv[2]]))
"""


@pytest.mark.parametrize(("variant", "cpu"), [("x86-64-v4", "Haswell"), ("x86-64-v3", "Nehalem")])
def test_without_the_loader_s_refusal_it_would_die(
    encoder: Path, variant: str, cpu: str, request: pytest.FixtureRequest
) -> None:
    """The emulated CPU really lacks the instructions; the other tests rest on it."""
    command = [*interpreter(variant, request), "-c", FORCED, str(encoder), variant]
    done = run(command, encoder, cpu)
    assert done.returncode == -4, done.stdout + done.stderr  # SIGILL
    assert "llegal instruction" in done.stderr


THROWING = """
import sys
import numpy as np
from edgecompile.runtime import NativeError, open_bundle
with open_bundle(sys.argv[1]) as model, np.load(sys.argv[2]) as case:
    good = {key[3:]: case[key] for key in case.files if key.startswith("in.")}
    bad = dict(good, input_ids=np.full_like(good["input_ids"], 1 << 40))
    before = model.run(good)
    for attempt in range(20):
        try:
            model.run(bad)
        except NativeError as error:
            print(error.message)
    after = model.run(good)
    assert all(np.array_equal(before[key], after[key]) for key in before)
"""


def test_exceptions_unwind_on_aarch64(
    encoder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A check in a model library throws, inside a parallel region: nothing there is glibc's own.

    The loader's check of bounds is taken away, else nothing would get so far.
    """
    bundle = tmp_path / "unchecked.ecb"
    shutil.copytree(encoder, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for item in manifest["inputs"]:
        item["bounds"] = None
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    golden = bundle / manifest["golden"][0]["file"]
    python = interpreter("aarch64", request)
    done = run([*python, "-c", THROWING, str(bundle), str(golden)], bundle, "cortex-a53")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= 20
    assert "check failed in" in done.stdout


def test_info_says_what_was_chosen_and_why_the_others_were_not(
    encoder: Path, request: pytest.FixtureRequest
) -> None:
    command = ["-m", "edgecompile.runtime", "info", str(encoder), "--json", "--host"]
    done = run([*interpreter("aarch64", request), *command], encoder, "cortex-a53")
    report = report_of(done)
    text = json.dumps(report)
    assert report["host"]["arch"] == "aarch64"
    assert "asimd" in report["host"]["features"]
    assert "asimddp" not in report["host"]["features"]
    for words in ("aarch64-neon", "lacks asimdrdm, atomics", "is for x86-64, this is aarch64"):
        assert words in text
