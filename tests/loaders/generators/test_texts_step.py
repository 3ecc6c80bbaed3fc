"""A token of each of several texts, in eager: what the step that runs one text gives, over memory of anybody's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edgecompile.errors import ModelError  # noqa: E402
from edgecompile.loaders.generators.texts_step import CACHES, texts_model  # noqa: E402
from tests.zoo.generation_families import load_family  # noqa: E402

PLACES = [0, 5, 77, 127]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_each_text_gets_what_it_gets_alone(family: str) -> None:
    loaded = load_family(family)
    texts, step = texts_model(loaded, 4), loaded.module
    random = torch.Generator().manual_seed(1)
    context = loaded.generation.spec.max_context
    memory = [
        [torch.randn(context, *item.shape, generator=random) for item in step.kept] for _ in PLACES
    ]
    ids = torch.randint(1, 50, (1, len(PLACES)), generator=random)
    places = torch.tensor(PLACES).clamp(max=context - 1)
    addresses = torch.tensor([[cache.data_ptr() for cache in text] for text in memory]).T
    wanted, left = [], [[cache.clone() for cache in text] for text in memory]
    with torch.no_grad():
        for text, caches in enumerate(left):
            place = {"position": places[text : text + 1], "last": torch.tensor([0])}
            inputs = dict(zip(step.caches, caches, strict=True))
            wanted.append(step(input_ids=ids[:, text : text + 1], **place, **inputs)["logits"][0])
        got = texts.module(input_ids=ids, position=places, **{CACHES: addresses.contiguous()})
    torch.testing.assert_close(got["logits"], torch.stack(wanted), rtol=1e-4, atol=1e-3)
    for text, caches in enumerate(left):
        for cache, want in zip(memory[text], caches, strict=True):
            torch.testing.assert_close(cache, want, rtol=1e-4, atol=1e-4)


def test_without_caches_a_token_sees_itself() -> None:
    loaded = load_family("llama")
    texts, step = texts_model(loaded, 4), loaded.module
    ids = torch.tensor([[7, 9]])
    nothing = torch.zeros(len(step.kept), 2, dtype=torch.int64)
    with torch.no_grad():
        got = texts.module(input_ids=ids, position=torch.tensor([0, 3]), **{CACHES: nothing})
        caches = {item.name: torch.zeros(128, *item.shape) for item in step.kept}
        first = torch.tensor([0])
        want = step(input_ids=ids[:, :1], position=first, last=first, **caches)
    torch.testing.assert_close(got["logits"][:1], want["logits"], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("family", ["qwen3_5", "mamba2", "bloom", "gemma3n"])
def test_others_are_refused(family: str) -> None:
    with pytest.raises(ModelError, match="can't run several texts at once"):
        texts_model(load_family(family), 4)
