"""Lookup with narrow weights and caches, and with states: whole bundles, in which no token changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from edgecompile.runtime import Model, open_bundle
from edgecompile.runtime.generation.cached_text import CachedText
from edgecompile.runtime.generation.chunk_runs import ChunkRuns
from edgecompile.runtime.generation.lookup import Draft, Worth
from tests.zoo.generation_bundles import build_family
from tests.zoo.generation_families import load_family

TOKENS = 14


@pytest.fixture(
    scope="module",
    params=[
        ("llama", "int8", "bf16"),
        ("lfm2", "bf16", "bf16"),
        # Narrow weights and caches, and two kinds of states; with programs for several texts, too.
        "falcon_together",
        "qwen_together",
        # Sums of fewer than eight numbers: of four experts, and in the norms of four rates.
        ("mixtral", "fp32", "fp32"),
        ("jamba", "fp32", "fp32"),
        *(
            pytest.param(item, marks=pytest.mark.exhaustive)
            for item in (
                ("llama", "int4", "fp32"),
                ("llama", "fp32", "int8"),
                ("falcon_h1", "fp32", "fp32"),
                ("qwen3_5", "fp32", "fp32"),
            )
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else "-".join(item),
)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    """Packing has compared each row with a run of its token alone, to the last bit."""
    if isinstance(request.param, str):
        bundle: Path = request.getfixturevalue(request.param)
    else:
        name, weights, caches = request.param
        folder = tmp_path_factory.mktemp(name)
        loaded = load_family(name, calm=weights != "fp32", lookup=8, cache_precision=caches)
        bundle = build_family(loaded, folder / "a.ecb", folder / "work", precision=weights)
    with open_bundle(bundle, threads=1) as opened:
        yield opened


class Guesses:
    """Tries the right tokens, and wrong ones behind some of them, whether that pays or not.

    Attributes:
        want: the tokens that follow.
        runs: the tokens of each run, and those of them that became the text's.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.want: list[int] = []
        self.runs: list[tuple[int, int]] = []
        self._random = np.random.default_rng(8)
        try_tokens, confirm = CachedText.try_tokens, CachedText.confirm

        def find(draft: Draft, most: int) -> list[int]:
            left = self.want[draft._count - draft._prompt :][:most]
            right = int(self._random.integers(0, len(left) + 1))
            return [*left[:right], *((token + 1) % 97 for token in left[right:])]

        def tried(text: CachedText, tokens: Any) -> Any:
            self.runs.append((len(tokens), 1))
            return try_tokens(text, tokens)

        def confirmed(text: CachedText) -> bool:
            kept = confirm(text)
            self.runs[-1] = self.runs[-1][0], self.runs[-1][1] + kept
            return kept

        patch.setattr(Draft, "find", find)
        patch.setattr(Worth, "choose", lambda worth, most, *_: most)
        patch.setattr(CachedText, "try_tokens", tried)
        patch.setattr(CachedText, "confirm", confirmed)


def test_no_token_changes_nor_a_bit_of_what_is_kept(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses, random = Guesses(monkeypatch), np.random.default_rng(38)
    for every in (None, 5):
        plain, trying, ahead = (model.session(checkpoint_every=every) for _ in range(3))
        text: list[int] = []
        for number in range(60):
            # Texts of one turn and of several.
            text = text if number % 3 else []
            text = [*text, *random.integers(3, 97, random.integers(1, 9)).tolist()]
            how: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "eos": ()}
            if number % 2:
                how = {**how, "do_sample": True, "temperature": 0.5, "seed": number}
            guesses.want = ahead.generate(text, **how)
            streams = plain.stream(text, **how), trying.stream(text, lookup=True, **how)
            # Some end where tokens that were tried are left.
            count = int(random.integers(1, TOKENS + 1))
            tokens, found = ([next(stream) for _ in range(count)] for stream in streams)
            assert found == tokens
            assert streams[0].reused == streams[1].reused
            text = [*text, *tokens]
            if number % 5 == 0:
                files = [tmp_path / name for name in ("plain", "trying")]
                for session, file in zip((plain, trying), files, strict=True):
                    session.save(file)
                assert files[0].read_bytes() == files[1].read_bytes()
    spec = model.manifest.generation
    assert spec is not None
    assert {tokens for tokens, _ in guesses.runs} >= set(range(2, spec.lookup + 1))
    assert any(kept == tokens for tokens, kept in guesses.runs)
    assert any(1 < kept < tokens for tokens, kept in guesses.runs)
    assert any(kept == 1 for _, kept in guesses.runs)


def test_a_text_goes_on_where_it_was_saved_or_interrupted(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses, run_rows, interrupted = Guesses(monkeypatch), ChunkRuns.run_rows, 0
    how: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "eos": ()}
    guesses.want = model.generate([3, 4, 5, 6], **how)

    def interrupt(runs: ChunkRuns, row: int, tokens: Any, wanted: Any = None) -> Any:
        rows = run_rows(runs, row, tokens, wanted)
        if len(tokens) == 1:
            return rows
        raise KeyboardInterrupt

    for count in range(1, TOKENS - 1):
        session = model.session()
        stream = session.stream([3, 4, 5, 6], lookup=True, **how)
        tokens = [next(stream) for _ in range(count)]
        stream.run()  # the logits of the next token wait
        session.save(tmp_path / "text")
        tokens.append(next(stream))
        with monkeypatch.context() as patch:
            patch.setattr(ChunkRuns, "run_rows", interrupt)
            try:
                tokens += [next(stream)]
            except KeyboardInterrupt:
                interrupted += 1
        assert [*tokens, *stream] == guesses.want
    assert interrupted
