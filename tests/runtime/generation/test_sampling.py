"""Sampling: the tokens that may be chosen are those that transformers leaves, and seeds repeat."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.generation.sampling import Sampler, Sampling, penalize, warp, weigh

VOCABULARY = 211
SETTINGS = [
    Sampling(True, temperature=0.7),
    Sampling(True, temperature=1.9, top_k=1),
    Sampling(True, top_k=12),
    Sampling(True, top_k=1000),
    Sampling(True, top_p=0.9),
    Sampling(True, top_p=0.01),
    Sampling(True, top_p=0.999),
    Sampling(True, temperature=0.3, top_k=40, top_p=0.8),
    Sampling(True, temperature=1.3, top_k=40, top_p=0.95),
]


def draw(seed: int, scale: float = 3.0) -> Any:
    # RandomState's numbers are the same in every version of numpy.
    return (np.random.RandomState(seed).standard_normal(VOCABULARY) * scale).astype(np.float32)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_warping_equals_transformers(sampling: Sampling) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    warpers = []
    if sampling.temperature != 1:
        warpers.append(process.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(process.TopPLogitsWarper(sampling.top_p))
    for seed in range(60):
        logits = draw(seed, scale=[0.1, 1, 3, 12][seed % 4])
        if seed % 3 == 0:
            logits = np.round(logits)  # many of them are equal
        scores = torch.from_numpy(logits.copy())[None]
        for warper in warpers:
            scores = warper(None, scores)
        got, want = warp(logits, sampling), scores[0].numpy()
        if seed % 3 == 0:
            # Which of equal ones torch's sort puts first isn't said anywhere; how many stay is.
            got, want = np.sort(got), np.sort(want)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_the_repetition_penalty_equals_transformers(penalty: float) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    theirs = process.RepetitionPenaltyLogitsProcessor(penalty)
    for seed in range(20):
        ids = np.random.default_rng(seed).integers(0, VOCABULARY, 50)  # some of them twice
        logits = draw(seed)
        want = theirs(torch.from_numpy(ids)[None], torch.from_numpy(logits.copy())[None])[0]
        penalize(logits, ids, penalty)
        np.testing.assert_array_equal(logits, want.numpy())


def test_probabilities_are_those_of_the_softmax() -> None:
    sampling = Sampling(True, temperature=0.9, top_k=6, seed=5)
    logits = draw(1)
    kept, weights = weigh(logits, sampling)
    assert len(kept) == 6
    exact = np.exp(logits[kept].astype(np.float64) / 0.9)
    np.testing.assert_allclose(weights / weights.sum(), exact / exact.sum(), rtol=1e-5)
    sampler = Sampler(sampling, [], 4000)
    counts = collections.Counter(sampler.choose(logits) for _ in range(4000))
    assert set(counts) <= set(kept.tolist())
    shares = [counts[token] / 4000 for token in kept.tolist()]
    # Six standard deviations of a share.
    np.testing.assert_allclose(shares, exact / exact.sum(), atol=6 * 0.5 / 4000**0.5)


def test_a_seed_gives_the_same_tokens_and_another_one_others() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(True, seed=seed), [], 50)
        return [sampler.choose(draw(i, 1.0)) for i in range(50)]

    assert run(1) == run(1)
    assert run(1)[:4] == [91, 164, 0, 65]
    assert len({tuple(run(seed)) for seed in (1, 2, None, None)}) == 4


def test_the_likeliest_token_is_taken_without_sampling() -> None:
    logits = draw(3)
    assert Sampler(Sampling(), [], 1).choose(logits) == int(logits.argmax())


def test_what_was_said_is_penalized_prompt_and_new_tokens_alike() -> None:
    logits = np.array([1.0, 3.0, 2.9, 2.8, -9], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=2.0), [1], 4)
    before = logits.copy()
    assert [sampler.choose(logits) for _ in range(3)] == [2, 3, 1]
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("do_sample", [False, True])
def test_logits_that_are_no_numbers_are_refused(value: float, do_sample: bool) -> None:
    logits = draw(1)
    logits[7] = value
    with pytest.raises(NativeError, match=r"the largest is (nan|inf)"):
        Sampler(Sampling(do_sample), [], 1).choose(logits)
    with pytest.raises(NativeError, match="the largest is -inf"):
        Sampler(Sampling(do_sample), [], 1).choose(np.full(5, -np.inf, np.float32))


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-40, 1e-46, 1e-300])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_tiny_temperature_takes_the_likeliest_token(temperature: float, sign: int) -> None:
    logits = np.array([1, -np.inf, 4, 3, 2], np.float32) * np.float32(sign)
    logits[1] = -np.inf
    for more in ({}, {"top_k": 2}, {"top_p": 0.5}):
        sampling = Sampling(True, temperature=temperature, seed=1, **more)  # type: ignore[arg-type]
        assert Sampler(sampling, [], 1).choose(logits) == int(logits.argmax())


def test_tokens_without_a_logit_are_not_penalized() -> None:
    """Some models take tokens that they never make: theirs are behind the vocabulary."""
    logits = np.array([1, 3, 2], np.float32)
    sampler = Sampler(Sampling(repetition_penalty=2.0), [1, 3, 7], 2)
    assert [sampler.choose(logits), sampler.choose(logits)] == [2, 1]


def test_tokens_of_minus_infinity_are_never_chosen() -> None:
    logits = np.full(9, -np.inf, np.float32)
    logits[[2, 5]] = 0.5
    for settings in ({}, {"top_k": 5}, {"top_p": 0.99}):
        sampler = Sampler(Sampling(True, seed=1, **settings), [], 99)  # type: ignore[arg-type]
        assert {sampler.choose(logits) for _ in range(99)} == {2, 5}
