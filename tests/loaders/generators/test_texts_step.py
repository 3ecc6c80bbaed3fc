"""A token of each of several texts, in eager: what the step that runs one text gives, over memory of anybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edgecompile.errors import ModelError  # noqa: E402
from edgecompile.lengths.distribution import LengthDistribution  # noqa: E402
from edgecompile.loaders.generators.storage import STORAGES  # noqa: E402
from edgecompile.loaders.generators.texts_step import CACHES, texts_model  # noqa: E402
from edgecompile.models.options import LoadOptions  # noqa: E402
from edgecompile.pipeline.build import build  # noqa: E402
from edgecompile.pipeline.request import BuildRequest  # noqa: E402
from edgecompile.planning.request import PlanRequest  # noqa: E402
from tests.zoo.generation_families import load_family, make_family  # noqa: E402

PLACES = [0, 5, 77, 127]


@pytest.mark.parametrize("cache", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(
    "family", ["llama", "gemma3", "gpt2", "lfm2", "falcon_h1", "granitemoehybrid", "qwen3_5"]
)
def test_each_text_gets_what_it_gets_alone(family: str, cache: str) -> None:
    loaded = load_family(family, cache_precision=cache)
    storage = STORAGES[cache]
    texts, step = texts_model(loaded, 4), loaded.module
    random = torch.Generator().manual_seed(1)
    context = loaded.generation.spec.max_context
    memory = [
        [
            storage.store(torch.randn(context, *item.shape, generator=random))
            if item.grows
            else torch.randn(item.shape, generator=random)
            for item in step.kept
        ]
        for _ in PLACES
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
    # The last bits of a product may decide to which side a row is rounded.
    whole = torch.stack(wanted)
    least = error_of(whole) if cache == "fp32" else 0.05
    torch.testing.assert_close(got["logits"], whole, rtol=1e-4, atol=least)
    for text, caches in enumerate(left):
        for item, mine, want in zip(step.kept, memory[text], caches, strict=True):
            rounded = item.grows and cache != "fp32"
            rtol, atol = (2**-7, 0.05) if rounded else (1e-4, 1e-3)
            found, wished = (storage.read(x, torch.float32) if rounded else x for x in (mine, want))
            torch.testing.assert_close(found, wished, rtol=rtol, atol=atol)


def error_of(logits: Any) -> float:
    """The greatest error of logits: another CPU's products add in another order."""
    return max(1e-3, 5e-4 * float(logits.abs().max()))


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_without_caches_a_token_sees_itself(family: str) -> None:
    loaded = load_family(family)
    texts, step = texts_model(loaded, 4), loaded.module
    ids = torch.tensor([[7, 9]])
    nothing = torch.zeros(len(step.kept), 2, dtype=torch.int64)
    with torch.no_grad():
        got = texts.module(input_ids=ids, position=torch.tensor([0, 3]), **{CACHES: nothing})
        caches = {item.name: torch.zeros(*[128] * item.grows, *item.shape) for item in step.kept}
        first = torch.tensor([0])
        want = step(input_ids=ids[:, :1], position=first, last=first, **caches)
    least = error_of(want["logits"])
    torch.testing.assert_close(got["logits"][:1], want["logits"], rtol=1e-4, atol=least)


@pytest.mark.parametrize("family", ["bloom", "gemma3n", "kimi_linear"])
def test_others_are_refused(family: str) -> None:
    with pytest.raises(ModelError, match="can't run several texts at once"):
        texts_model(load_family(family), 4)


@pytest.mark.parametrize("family", ["bloom", "t5"])
def test_a_build_refuses_them_before_any_work(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_family(family).save_pretrained(tmp_path / "model")
    request = BuildRequest(
        model=str(tmp_path / "model"),
        plan=PlanRequest(
            lengths=LengthDistribution.from_samples([3, 9]),
            max_length=16,
            quick=True,
            texts_at_once=2,
        ),
        target="cpu-x86-64-v3",
        output=tmp_path / "a.ecb",
        load=LoadOptions(max_context=32, task="seq2seq-lm" if family == "t5" else None),
    )

    def work(*given: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("edgecompile.pipeline.build._build_whole", work)
    monkeypatch.setattr("edgecompile.pipeline.seq2seq.build_seq2seq", work)
    with pytest.raises(ModelError, match="can't run several texts at once"):
        build(request)
    assert not (tmp_path / "a.ecb").exists()
