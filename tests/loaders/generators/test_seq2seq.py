"""Encoder-decoder models in two parts, in torch: against transformers' own generate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from edgecompile.bundle.generation import golden_texts
from edgecompile.errors import LengthsError, ModelError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import ENCODER, LoadedModel
from edgecompile.planning.generation_plan import decoder_buckets, refuse_sources
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.scope import plan_scope
from edgecompile.runtime.format.manifest.schema import SEQ2SEQ
from edgecompile.runtime.generation.request import begin_text
from tests.zoo.generation_families import LONGEST_SOURCE, POSITIONS, load_family, make_family


def generate(
    model: LoadedModel, source: dict[str, torch.Tensor], prompt: list[int], most: int
) -> list[int]:
    """A plain greedy loop in pieces of a few tokens, over caches full of noise."""
    made = model.generation
    assert made is not None and made.encoder is not None
    noise = torch.Generator().manual_seed(3)
    caches = {
        spec.name: torch.randn((64, *spec.shape[1:]), generator=noise)  # type: ignore[arg-type]
        for spec in model.inputs
        if spec.in_place
    }
    cross = made.encoder.run(source)

    def step(tokens: list[int], position: int, last: int) -> torch.Tensor:
        inputs = {
            "input_ids": torch.tensor([tokens]),
            "position": torch.tensor([position]),
            "last": torch.tensor([last]),
        }
        with torch.no_grad():
            logits: torch.Tensor = model.module(**inputs, **caches, **cross)["logits"][0]
        return logits

    for start in range(0, len(prompt), 5):
        part = prompt[start : start + 5]
        logits = step([*part, 0, 0], start, len(part) - 1)
    tokens: list[int] = []
    while len(tokens) < most:
        never = [*made.spec.suppress, *(() if tokens else made.spec.suppress_first)]
        logits[never] = -torch.inf
        tokens.append(int(logits.argmax()))
        if tokens[-1] in made.spec.eos:
            break
        logits = step(tokens[-1:], len(prompt) + len(tokens) - 1, 0)
    return tokens


@pytest.mark.parametrize(
    ("family", "way"),
    [
        ("t5", "edgecompile_masked"),
        ("bart", "edgecompile"),
        ("mbart", "edgecompile"),
        ("whisper", "edgecompile"),
    ],
)
def test_tokens_are_those_of_transformers(family: str, way: str) -> None:
    model = load_family(family)
    assert model.module.way.attention == way
    made = model.generation
    seen = set()
    for number, length in enumerate((1, 7, LONGEST_SOURCE)):
        sizes = {axis: length if axis == "length" else 1 for axis in made.encoder.axes}
        source = made.encoder.make_example(sizes, seed=number)
        for prompt in (list(made.spec.start), [*made.spec.start, 9, 8, 7, 6, 5, 4, 3]):
            want = made.greedy(prompt, 10, source)
            assert generate(model, source, prompt, 10) == want
            seen.add(tuple(want))
    assert len(seen) > 3, "the texts depend on the source and on what they begin with"


@pytest.fixture(scope="module")
def bart() -> LoadedModel:
    return load_family("bart")  # type: ignore[no-any-return]


def test_what_the_parts_take_and_give(bart: LoadedModel) -> None:
    made = bart.generation
    assert made is not None and made.encoder is not None
    assert [spec.name for spec in made.encoder.inputs] == ["input_ids", "attention_mask"]
    assert [spec.name for spec in made.encoder.outputs] == list(made.spec.cross)
    assert {spec.shape for spec in made.encoder.outputs} == {("length", 4, 8)}
    names = [spec.name for spec in bart.inputs]
    assert names[3:] == [*made.spec.caches, *made.spec.cross]
    assert {spec.shape for spec in bart.inputs if spec.name in made.spec.cross} == {
        ("source", 4, 8)
    }
    assert not any(spec.in_place for spec in bart.inputs if spec.name in made.spec.cross)
    assert str(bart.axes["source"]) == f"1..{LONGEST_SOURCE}"
    spec = made.spec
    assert (spec.kind, spec.encoder, spec.source) == (SEQ2SEQ, ENCODER, "input_ids")
    assert (spec.start, spec.eos, spec.max_context) == ((1,), (2,), POSITIONS)


def test_neither_part_has_the_others_weights(bart: LoadedModel) -> None:
    assert bart.generation is not None and bart.generation.encoder is not None
    decoder = {name for name, _ in bart.module.named_parameters()}
    encoder = {name for name, _ in bart.generation.encoder.module.named_parameters()}
    assert not [name for name in decoder if ".encoder." in name]
    assert not [name for name in decoder if "encoder_attn.k_proj" in name]
    assert any("encoder_attn.q_proj" in name for name in decoder)
    assert {name.split(".")[0] for name in encoder} == {"encoder", "projections"}


def test_padding_a_source_changes_nothing(bart: LoadedModel) -> None:
    assert bart.generation is not None and bart.generation.encoder is not None
    encoder = bart.generation.encoder
    source = encoder.make_example({"length": 6}, seed=1)
    padded = {
        name: torch.cat([t, torch.full((1, 3), 0 if "mask" in name else 1)], 1)
        for name, t in source.items()
    }
    want, got = encoder.run(source), encoder.run(padded)
    for name, tensor in want.items():
        scale = float(tensor.abs().max())
        torch.testing.assert_close(got[name][:6], tensor, atol=1e-4 * scale, rtol=0)


def test_a_narrower_range_of_sources(bart: LoadedModel) -> None:
    fewer = bart.with_sources(2, 9)
    assert fewer.generation is not None and fewer.generation.encoder is not None
    assert str(fewer.axes["source"]) == str(fewer.generation.encoder.axes["length"]) == "2..9"
    assert bart.with_longest(7) is bart
    plan = decoder_buckets(fewer)
    assert [(bucket.lo, bucket.hi) for bucket in plan.buckets] == [(1, 1), (2, 16)]
    with pytest.raises(ModelError, match="an encoder and a decoder"):
        refuse_sources(bart)


def test_golden_texts_have_their_sources() -> None:
    import base64
    import json

    for family in ("bart", "whisper"):
        model = load_family(family)
        cases = json.loads(golden_texts(model))["cases"]
        assert [len(case["prompt"]) for case in cases] == [1, 4, 1, 20]
        for case in cases:
            if family == "bart":
                assert 2 <= len(case["source"]) <= LONGEST_SOURCE
            else:
                assert case["source"]["shape"] == [1, 8, 48]
                assert len(base64.b64decode(case["source"]["float32"])) == 4 * 8 * 48


def test_a_folder_and_a_factory(tmp_path: Path) -> None:
    model = make_family("t5")
    model.generation_config.num_beams = 4
    model.generation_config.no_repeat_ngram_size = 3
    model.save_pretrained(tmp_path / "t5")
    plain = load_model(tmp_path / "t5")
    assert plain.generation is None and plain.source.details["task"] == "seq2seq-encoder"
    loaded = load_model(tmp_path / "t5", task="seq2seq-lm", max_context=32)
    assert loaded.generation is not None and loaded.generation.spec.max_context == 32
    said = next(note for note in loaded.notes if "isn't done" in note)
    assert "num_beams 4" in said and "no_repeat_ngram_size 3" in said
    made = load_model({"module": model, "task": "seq2seq-lm", "name": "mine"}, max_context=32)
    assert made.generation is not None and made.name == "mine"
    assert load_family("mbart").generation.spec.start == (1, 5)


def test_an_encoder_of_one_size_has_no_longest_length() -> None:
    made = load_family("whisper").generation
    assert made is not None and made.encoder is not None
    request = PlanRequest(LengthDistribution.from_samples([1]), max_length=3)
    with pytest.raises(LengthsError, match="takes inputs of one size only") as caught:
        plan_scope(made.encoder, request)
    assert caught.value.hint == "leave `max_length` out"


def test_a_text_begins_as_in_transformers() -> None:
    """The forced token is for texts that have nothing but the start; it gives way to another."""
    module = make_family("bart")
    start, forced, other, source = 1, 5, 60, [11, 12, 13, 2]
    module.generation_config.forced_bos_token_id = forced
    loaded = load_model({"module": module, "task": "seq2seq-lm"}, max_context=32)
    assert loaded.generation is not None and loaded.generation.spec.start == (start, forced)
    ids = torch.tensor([source])
    for given in (None, [start], [start, other], [other], [forced], [start, forced, other]):
        begun = begin_text(loaded.generation.spec, given)
        kept = {} if given is None else {"decoder_input_ids": torch.tensor([given])}
        with torch.no_grad():
            wanted = module.generate(
                ids, **kept, max_new_tokens=4, do_sample=False, num_beams=1, eos_token_id=None
            )[0].tolist()
        assert wanted[: len(begun)] == begun


def test_what_is_refused() -> None:
    with pytest.raises(ModelError, match="has no encoder of its own"):
        load_model({"module": make_family("gpt2"), "task": "seq2seq-lm"})
    silent = make_family("bart")
    for config in (silent.config, silent.generation_config):
        config.decoder_start_token_id = config.bos_token_id = None
    with pytest.raises(ModelError, match="nothing says with which token a text begins"):
        load_model({"module": silent, "task": "seq2seq-lm"})


def test_a_batch_is_refused() -> None:
    with pytest.raises(ModelError, match=r"a batch of 1\.\.2"):
        load_model({"module": make_family("t5"), "task": "seq2seq-lm"}, batch=(1, 2))
