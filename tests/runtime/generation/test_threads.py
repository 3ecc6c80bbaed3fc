"""Texts on other numbers of threads, which change no bit of them."""

from __future__ import annotations

import numpy as np
import pytest

from edgecompile.runtime import open_bundle


@pytest.mark.parametrize("bundle", ["decoder_bundle", "hybrid_bundle"])
def test_no_bit_depends_on_the_threads(request: pytest.FixtureRequest, bundle: str) -> None:
    with open_bundle(request.getfixturevalue(bundle), threads=3, warmup=False) as model:
        prompts = [[3], [1 + i % 40 for i in range(30)]]
        for prompt in prompts:
            texts = [
                model.session().stream(prompt, max_new_tokens=60, eos=(), seed=1, temperature=2.0)
                for _ in range(3)
            ]
            for _ in range(60):
                for threads, text in enumerate(texts, 1):
                    while model.with_threads(threads, text.run):
                        pass
                logits = [text.logits for text in texts]
                for other in logits[1:]:
                    np.testing.assert_array_equal(logits[0], other)
                assert len({next(text) for text in texts}) == 1
