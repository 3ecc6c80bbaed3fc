"""Mixtures of int4 and wider matrices: which are found, with how few judgments, and a bundle of one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from click.testing import CliRunner

from edgecompile.cli import cli
from edgecompile.pipeline.build import build
from edgecompile.precision import Precision
from edgecompile.quantization import language_choice
from edgecompile.quantization.judged import JudgedModel
from edgecompile.quantization.mixture import Mixture, find_mixture, least_near
from edgecompile.quantization.quality import max_mean_kl
from tests.quantization.test_int4 import HEAD, header_of, judged, llama, texts_of
from tests.quantization.test_quality import INT8, request_for

__all__ = ["judged", "llama"]  # fixtures


def bound_of(mean_kl: float) -> float:
    """The ratio that goes with a mean divergence."""
    return math.exp(mean_kl / max_mean_kl(math.e))


@pytest.fixture(scope="module")
def narrow(judged: JudgedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Precision]:
    """int8, and int4 with the head in int8, both rounded for texts."""
    both = [INT8, judged.default_precision("int4")]
    rounded = judged.round_weights(tmp_path_factory.mktemp("rounded"), "key", *both)
    return [replace(p, rounded=weights) for p, weights in zip(both, rounded, strict=True)]


def find(
    judged: JudgedModel, pure: Precision, wider: Precision, bound: float
) -> tuple[Mixture, int]:
    """A mixture, and the number of judgments that it took."""
    told: list[str] = []
    found = find_mixture(judged, pure, wider, bound, told.append)
    assert found is not None
    return found, sum(text.endswith("in torch") for text in told)


def test_both_precisions_are_kept_for_the_next_build(judged: JudgedModel, tmp_path: Path) -> None:
    both = [INT8, judged.default_precision("int4")]
    first = judged.round_weights(tmp_path, "key", *both)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and judged.round_weights(tmp_path, "key", *both) == first
    files[0].unlink()  # both are made again
    assert judged.round_weights(tmp_path, "key", *both) == first
    assert sorted(tmp_path.iterdir()) == files


def test_the_fewest_matrices_are_wider_that_the_bound_needs(
    judged: JudgedModel, narrow: list[Precision]
) -> None:
    int8, int4 = narrow
    pure, judgments = find(judged, int4, int8, 1.5)
    assert (pure.kept, judgments) == (0, 1)
    assert pure.quality.matrices == {"int8": 1, "int4": 10}
    counts = []
    for share in (0.9, 0.6, 0.3):
        bound = bound_of(share * pure.quality.mean_kl)
        mixed, judgments = find(judged, int4, int8, bound)
        assert mixed.quality.within(bound) and judgments <= 5
        assert mixed.quality.matrices == {"int8": 1 + mixed.kept, "int4": 10 - mixed.kept}
        # Each weight comes from the rounding of its own precision.
        for attr, (names, exact) in judged.program.products.items():
            form = mixed.precision.of(names)
            source = int8 if form == "int8" else int4
            assert mixed.precision.rounded is not None and source.rounded is not None
            kept = mixed.precision.rounded.take(attr, exact, form)
            assert kept is not None and kept is source.rounded.take(attr, exact, form)
        # One matrix fewer, the last of the ranking, is too few.
        ranked = [group for group, _ in judged.rank(pure.precision, int8)]
        fewer = {w: "int8" for group in ranked[: mixed.kept - 1] for w in group} | {HEAD: "int8"}
        less = judged.mix_weights(
            Precision("int4", tuple(fewer.items())), [int4.rounded, int8.rounded]
        )
        assert not judged.quality(less).within(bound)
        counts.append(mixed.kept)
    assert 0 < counts[0] < counts[1] < counts[2] < 10
    described = mixed.quality.describe("int4")
    assert f"int4 (matrices: {1 + mixed.kept} in int8, {10 - mixed.kept} in int4)" in described


def test_a_mixture_has_what_the_wider_precision_keeps_wider_still(
    judged: JudgedModel, narrow: list[Precision]
) -> None:
    int8, int4 = narrow
    first = judged.program.groups[0]
    wider = replace(int8, kept=tuple((name, "bf16") for name in (*first, HEAD)))
    pure = judged.quality(int4)
    mixed, _ = find(judged, int4, wider, bound_of(0.2 * pure.mean_kl))
    kept = {mixed.precision.of(names) for names in judged.program.groups}
    assert kept <= {"bf16", "int8", "int4"} and mixed.precision.of([HEAD]) == "bf16"
    assert mixed.precision.of(first) in ("bf16", "int4")


def test_where_no_mixture_holds_the_narrow_one_tells_why(
    judged: JudgedModel, narrow: list[Precision]
) -> None:
    int8, int4 = narrow
    found, _ = find(judged, int4, int8, 1 + 1e-9)
    assert found.kept == 0 and not found.quality.within(1 + 1e-9)
    assert found.precision == int4
    assert find_mixture(judged, int8, int8, 1.5) is None


def test_without_calibration_weights_go_to_the_nearest(judged: JudgedModel) -> None:
    int4 = judged.default_precision("int4")
    pure = judged.quality(int4)
    mixed, _ = find(judged, int4, INT8, bound_of(0.5 * pure.mean_kl))
    assert mixed.precision.rounded is None and 0 < mixed.kept < 10


def test_a_good_guess_asks_few_and_a_bad_one_no_more_than_a_search() -> None:
    for most in (1, 2, 3, 10, 151):
        for want in range(1, most + 1):
            for guess in (0, 1, want - 1, want, want + 1, most, most + 5):
                asked: list[int] = []

                def holds(count: int, want: int = want, asked: list[int] = asked) -> bool:
                    asked.append(count)
                    return count >= want

                assert least_near(guess, most, holds) == want
                assert len(asked) == len(set(asked)) <= 2 * math.log2(most + 1) + 1
                assert all(0 < count < most for count in asked)
                if guess == want < most:
                    assert len(asked) <= 2


@pytest.mark.slow
def test_auto_mixes_int4_with_int8(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model is no faster in int4, so the narrowest is taken here whatever its time."""
    monkeypatch.setattr(
        language_choice, "fastest", lambda trials: [t for t in trials if t.within][-1]
    )
    request = request_for(
        llama,
        tmp_path / "a.ecb",
        precision="auto",
        texts=texts_of(llama),
        max_perplexity_ratio=1.01,
    )
    result = build(request)
    assert result.verify is not None and result.verify.ok and result.quality is not None
    assert result.quality.bound == 1.01 and result.quality.mean_kl <= max_mean_kl(1.01)
    matrices = dict(result.quality.matrices)
    assert set(matrices) == {"int8", "int4"} and sum(matrices.values()) == 11
    assert any(f"{matrices['int4']} in int4" in note for note in result.notes)
    manifest = json.loads((result.bundle_path / "manifest.json").read_bytes())
    assert manifest["plan"]["quality"]["matrices"] == matrices
    header = header_of(result.bundle_path / manifest["weights"][manifest["precision"]])
    packed = [item["dtype"] for name, item in header.items() if name.startswith("ecpack_")]
    assert {"int8": packed.count("I8"), "int4": packed.count("U8")} == matrices
    shown = CliRunner().invoke(cli, ["inspect", str(result.bundle_path)])
    said = f"matrices {matrices['int8']} in int8, {matrices['int4']} in int4"
    assert said in " ".join(shown.stdout.split())
