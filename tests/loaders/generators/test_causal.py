"""Generation in torch: the step over caches from outside against transformers' own generate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from edgecompile.buckets.plan import BucketPlan
from edgecompile.bundle.generation import golden_texts
from edgecompile.errors import ModelError, PlanError
from edgecompile.export.export import export_model
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.generators.cache import find_kept
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.prompts import draw_inputs, text_tokens
from edgecompile.planning.generation_plan import (
    prompt_lengths,
    refused_prompts,
    require_generation,
)
from edgecompile.planning.planning import plan_model
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import make_subject
from edgecompile.runtime.format.sums import size_of
from edgecompile.targets.profile import load_target
from tests.zoo.generation_families import (
    FAMILIES,
    LONGEST_RUN,
    POSITIONS,
    load_family,
    make_family,
)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_family("llama")


def caches_of(model: LoadedModel, rows: int) -> dict[str, torch.Tensor]:
    """Buffers full of noise: what nobody wrote must not matter."""
    generator = torch.Generator().manual_seed(3)
    return {
        spec.name: torch.randn(
            [size_of(n, {"context": rows}) for n in spec.shape], generator=generator
        )
        for spec in model.inputs
        if spec.in_place
    }


def step(model: LoadedModel, tokens: list[int], position: int, last: int, caches: Any) -> Any:
    inputs = {
        "input_ids": torch.tensor([tokens]),
        "position": torch.tensor([position]),
        "last": torch.tensor([last]),
    }
    with torch.no_grad():
        return model.module(**inputs, **caches)["logits"][0]


def generate(model: LoadedModel, prompt: list[int], most: int) -> list[int]:
    """A plain greedy loop in pieces of a few tokens, each padded by two."""
    caches = caches_of(model, 64)
    for start in range(0, len(prompt), 10):
        part = prompt[start : start + 10]
        logits = step(model, [*part, 0, 0], start, len(part) - 1, caches)
    tokens: list[int] = []
    while len(tokens) < most:
        tokens.append(int(logits.argmax()))
        if tokens[-1] in model.generation.spec.eos:  # type: ignore[union-attr]
            break
        logits = step(model, tokens[-1:], len(prompt) + len(tokens) - 1, 0, caches)
    return tokens


@pytest.mark.parametrize(
    ("family", "way"),
    [
        ("llama", "edgecompile"),
        ("gpt2", "edgecompile"),
        ("gpt_neox", "edgecompile"),
        ("gemma2", "edgecompile"),
        ("gemma3", "edgecompile"),
        ("mistral", "edgecompile"),
        ("phi", "edgecompile"),
        ("qwen3", "edgecompile"),
        ("falcon-alibi", "edgecompile_masked"),
        ("lfm2", "edgecompile"),
        ("mamba2", "edgecompile"),
        ("falcon_h1", "edgecompile"),
        ("granitemoehybrid", "edgecompile"),
        ("qwen3_5", "edgecompile"),
        ("kimi_linear", "edgecompile"),
        ("nemotron_h", "edgecompile"),
        ("mamba", "edgecompile"),
        ("gemma3n", "edgecompile"),
        ("gemma4", "edgecompile"),
    ],
)
def test_tokens_are_those_of_transformers(family: str, way: str) -> None:
    model = load_family(family)
    assert model.module.way.attention == way
    assert model.generation is not None
    generator = torch.Generator().manual_seed(1)
    for length in (1, 13, 33):
        prompt = torch.randint(3, 97, (length,), generator=generator).tolist()
        want = model.generation.greedy(prompt, 12)
        assert 1 <= len(want) <= 12
        assert generate(model, prompt, 12) == want


def test_what_it_takes_and_gives(llama: LoadedModel) -> None:
    names = [spec.name for spec in llama.inputs]
    assert names[:3] == ["input_ids", "position", "last"]
    assert names[3:] == ["cache_0_key", "cache_0_value", "cache_1_key", "cache_1_value"]
    assert {spec.shape for spec in llama.inputs[3:]} == {("context", 2, 8)}
    assert [spec.shape for spec in llama.outputs] == [(1, 97)]
    assert str(llama.axes["length"]) == f"1..{LONGEST_RUN}"
    assert str(llama.axes["context"]) == f"64..{POSITIONS}"
    assert llama.generation is not None
    spec = llama.generation.spec
    assert (spec.eos, spec.bos, spec.pad) == ((2,), 1, 0)
    assert (spec.max_context, spec.caches) == (POSITIONS, tuple(names[3:]))


def test_examples_are_valid_at_any_sizes(llama: LoadedModel) -> None:
    seen = set()
    for seed in range(40):
        example = llama.make_example({"length": 24, "context": 64}, seed=seed)
        assert 0 <= int(example["position"]) <= 40 and 0 <= int(example["last"]) <= 23
        seen.add(int(example["position"]))
    assert len(seen) > 10


def test_a_run_is_a_copy_and_a_step_is_not(llama: LoadedModel) -> None:
    example = llama.make_example({"length": 3, "context": 64}, seed=1)
    before = example["cache_0_key"].clone()
    llama.run(example)
    assert torch.equal(example["cache_0_key"], before)
    with torch.no_grad():
        llama.module(**example)
    changed = (example["cache_0_key"] != before).flatten(1).any(1).nonzero()[:, 0].tolist()
    first, last = int(example["position"]), int(example["last"])
    assert changed == list(range(first, first + last + 1))


@pytest.mark.parametrize("family", ["llama", "lfm2", "falcon_h1", "qwen3_5", "mamba"])
def test_padding_writes_what_the_last_token_writes(family: str) -> None:
    model = load_family(family)
    one, other = caches_of(model, 64), caches_of(model, 64)
    short = step(model, [5, 6, 7], 9, 2, one)
    padded = step(model, [5, 6, 7, 0, 0, 0], 9, 2, other)
    pairs = [(padded, short), *((other[name], one[name]) for name in one)]
    for got, want in pairs:
        # Its large channels leave fewer digits than float32 has.
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize("length", [1, 4])
def test_a_text_that_begins_takes_states_as_zeros(length: int) -> None:
    model = load_family("qwen3_5")
    noise, zeros = caches_of(model, 64), caches_of(model, 64)
    states = {name for name in zeros if name.endswith(("conv", "recurrent"))}
    assert len(states) == 2
    for name in states:
        zeros[name].zero_()
        noise[name][...] = float("nan")
    tokens, last = [5, 6, 7, 8][:length], length - 1
    assert torch.equal(step(model, tokens, 0, last, noise), step(model, tokens, 0, last, zeros))
    for name in states:
        assert torch.equal(noise[name], zeros[name]) and zeros[name].any()


def test_what_hybrids_take() -> None:
    specs = {spec.name: spec.shape for spec in load_family("qwen3_5").inputs if spec.in_place}
    # Three projections of 16, 16 and 32 channels, four heads of 8 by 8, and two heads of keys.
    assert specs == {
        "cache_0_conv": (64, 4),
        "cache_0_recurrent": (4, 8, 8),
        "cache_1_key": ("context", 2, 16),
        "cache_1_value": ("context", 2, 16),
    }
    shared = [spec for spec in load_family("gemma4").inputs if spec.in_place]
    # Of four layers two read the keys of the others, whose heads differ in width.
    assert [spec.shape[2] for spec in shared] == [16, 16, 32, 32]
    alone = load_family("mamba2")
    assert set(alone.axes) == {"length"} and alone.generation is not None
    assert alone.generation.spec.context_axis is None
    assert alone.generation.spec.max_context == POSITIONS
    assert str(alone.with_longest(9).axes["length"]) == "1..9"


def test_drawn_inputs_have_the_states_of_a_text() -> None:
    model = load_family("lfm2")
    sizes = {"length": 3, "context": 64}
    seed = next(n for n in range(99) if int(model.make_example(sizes, seed=n)["position"]) > 5)
    drawn = draw_inputs(model, sizes, seed)
    rows = int(drawn["position"])
    caches = caches_of(model, 64)
    step(model, text_tokens(model)[0, :rows].tolist(), 0, rows - 1, caches)
    torch.testing.assert_close(drawn["cache_0_conv"], caches["cache_0_conv"])
    torch.testing.assert_close(drawn["cache_1_key"][:rows], caches["cache_1_key"][:rows])


@pytest.mark.parametrize(("length", "position", "last"), [(1, 99, 5), (6, 63, 5), (6, 10**6, 99)])
def test_nothing_is_written_outside(
    llama: LoadedModel, length: int, position: int, last: int
) -> None:
    """Native code must not leave a cache whatever it is told: places are cut to what there is."""
    logits = step(llama, [4] * length, position, last, caches_of(llama, 64))
    assert torch.isfinite(logits).all()


def test_an_export_that_forgot_to_write_would_be_found(llama: LoadedModel) -> None:
    from edgecompile.export.checks import ExportScope, check_program

    sizes = {"length": (2, 24), "context": (64, 128)}
    exported = export_model(llama, sizes)
    assert exported.strategy == "dim" and exported.max_error < 1e-5
    scope = ExportScope(llama, sizes, {"length": 16, "context": 64})
    assert check_program(exported.program, scope).ok
    graph = exported.program.graph_module
    writes = [n for n in graph.graph.nodes if "index_copy" in str(n.target)]
    assert len(writes) == 4
    # The same result, on a copy: the logits are right, and the cache is never written.
    writes[0].target = torch.ops.aten.index_copy.default
    graph.recompile()
    result = check_program(exported.program, scope)
    assert not result.passed and all("differs from eager" in why for _, why in result.failed)


def test_longer_runs_need_more_context(llama: LoadedModel) -> None:
    longer = llama.with_longest(100)
    assert str(longer.axes["length"]) == "1..100"
    assert str(longer.axes["context"]) == "128..128"
    assert llama.with_longest(None) is llama
    for length in (1, POSITIONS + 1):
        with pytest.raises(ModelError, match=f"can't have {length} tokens"):
            llama.with_longest(length)


def test_long_prompts_are_planned_in_pieces() -> None:
    prompts = LengthDistribution.from_counts({1: 3, 7: 2, 50: 4})
    planned = prompt_lengths(prompts, 24)
    assert dict(zip(planned.lengths, planned.counts, strict=True)) == {2: 7, 7: 2, 24: 8}


def test_what_cant_be_planned_is_said(llama: LoadedModel, tmp_path: Path) -> None:
    room = llama.generation.spec.max_context - 1  # type: ignore[union-attr]
    lengths = LengthDistribution.from_counts({4: 3, room: 1, room + 1: 1, 5000: 3}, "test")
    (note,) = refused_prompts(llama, PlanRequest(lengths))
    assert note.startswith(f"50.0 % of the prompts are longer than {room} tokens")
    short = PlanRequest(LengthDistribution.from_counts({4: 3}, "test"))
    assert refused_prompts(llama, short) == []
    with pytest.raises(ModelError, match="mamba2 keeps states of a fixed size, which no backend"):
        require_generation(load_family("mamba2"), "triton")
    exports = ExportStore(llama, tmp_path)
    with pytest.raises(ModelError, match="which TensorRT can't run") as caught:
        make_subject(exports, load_target("jetson-orin-nano"), short, tmp_path)
    assert '`backend="triton"`' in (caught.value.hint or "")
    make_subject(exports, load_target("cuda-sm90"), replace(short, backend="triton"), tmp_path)
    with pytest.raises(ModelError, match='which `backend="torch"` can\'t run'):
        make_subject(exports, load_target("cpu-x86-64"), replace(short, backend="torch"), tmp_path)

    def plan(request: PlanRequest) -> BucketPlan:
        return plan_model(make_subject(exports, load_target("cpu-x86-64"), request, tmp_path)).plan

    quick = plan(replace(short, quick=True))
    given = replace(short, plan=quick)
    assert plan(given) == quick
    without = replace(short, plan=BucketPlan(quick.length_axis, quick.buckets[1:]))
    with pytest.raises(PlanError, match="no program for single tokens"):
        plan(without)


def test_golden_texts_cover_pieces(llama: LoadedModel) -> None:
    import json

    cases = json.loads(golden_texts(llama))["cases"]
    assert [len(case["prompt"]) for case in cases] == [1, 7, LONGEST_RUN, LONGEST_RUN + 5]
    assert golden_texts(llama) == golden_texts(llama) != golden_texts(llama, seed=1)
    assert all(1 <= len(case["tokens"]) <= 24 for case in cases)


def test_a_folder_generates_by_default(tmp_path: Path) -> None:
    from tests.factories.folders import write_model

    folder = write_model(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    model = load_model(folder)
    assert model.generation is not None and model.generation.spec.max_context == 40
    assert model.source.kind == "folder"
    assert load_model(folder, task="logits").generation is None
    assert load_model(folder, max_context=32).generation.spec.max_context == 32  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="41 tokens was asked for, but the model has 40"):
        load_model(folder, max_context=41)
    with pytest.raises(ModelError, match=r"a batch of 1\.\.2"):
        load_model(folder, batch=(1, 2))
    with pytest.raises(ModelError, match=r"`pooling`, `softmax`, .* for mask: not for generation"):
        load_model(folder, pooling="mean", softmax=True, pad={"mask": 0})
    with pytest.raises(ModelError, match=r"`pooling`: not .*; a batch of 1\.\.2") as both:
        load_model(folder, pooling="mean", batch=(1, 2))
    assert both.value.hint is not None and '`task="logits"`; leave `batch` out' in both.value.hint
    with pytest.raises(ModelError, match=r"`max_context`: for language models that generate"):
        load_model(folder, task="logits", max_context=32)
    with pytest.raises(ModelError, match=r"`cache_precision`: for language models that generate"):
        load_model(folder, task="logits", cache_precision="bf16")


def test_what_is_asked_for_and_not_done_is_said() -> None:
    module = make_family("gpt2")
    plain = load_model({"module": module, "task": "causal-lm"})
    assert not [note for note in plain.notes if "isn't done" in note]
    asked = {
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [5, 6],
        "min_new_tokens": 5,
        "min_p": 0.1,
        "max_length": 50,
        "num_beams": 1,  # asks for nothing
        "typical_p": 1.0,
    }
    for name, value in asked.items():
        setattr(module.generation_config, name, value)
    loaded = load_model({"module": module, "task": "causal-lm"})
    said = next(note for note in loaded.notes if "isn't done" in note)
    for name in ("no_repeat_ngram_size 2", "suppress_tokens [5, 6]", "min_p 0.1", "max_length 50"):
        assert name in said
    assert "num_beams" not in said and "typical_p" not in said
    assert loaded.generation is not None and "max_new_tokens" not in loaded.generation.spec.defaults


def test_a_factory_generates_if_it_says_so() -> None:
    module = make_family("gpt2")
    said = load_model({"module": module, "task": "causal-lm", "name": "mine"}, max_length=16)
    assert said.generation is not None and said.name == "mine"
    asked = load_model(module, LoadOptions(task="causal-lm", max_length=16))
    assert asked.generation is not None
    with pytest.raises(ModelError, match=r"no tokenizer 'away/tokenizer\.json'"):
        load_model({"module": module, "task": "causal-lm", "tokenizer": "away/tokenizer.json"})
    with pytest.raises(ModelError, match="'axes', which generation settles"):
        load_model({"module": module, "task": "causal-lm", "axes": {}})
    with pytest.raises(ModelError, match="a Linear, not a transformers model"):
        load_model({"module": torch.nn.Linear(2, 2), "task": "causal-lm"})


def test_states_outside_of_a_cache_are_refused() -> None:
    import transformers

    config = transformers.RwkvConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, context_length=64
    )
    module = transformers.RwkvForCausalLM(config).eval()
    with pytest.raises(ModelError, match="RwkvForCausalLM can't generate over a cache") as caught:
        load_model({"module": module, "task": "causal-lm"})
    assert "states of a fixed size" in str(caught.value.hint)


def test_layers_that_keep_more_are_refused() -> None:
    from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer

    layer, other = DynamicLayer(), DynamicIndexedLayer()
    for each in (layer, other):
        each.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5))
    kept = find_kept([layer], 3)
    assert [(item.name, item.shape) for item in kept] == [
        ("cache_0_key", (2, 4)),
        ("cache_0_value", (2, 5)),
    ]
    with pytest.raises(ValueError, match=r"keys or values of \[1, 2, 3, 4\] for 4 tokens"):
        find_kept([layer], 4)
    other.update_indexer(torch.zeros(1, 3, 6))
    with pytest.raises(ValueError, match=r"a DynamicIndexedLayer with .*indexer"):
        find_kept([layer, other], 3)
    with pytest.raises(ValueError, match="no layer keeps anything"):
        find_kept([], 3)


def test_of_a_model_of_images_and_text_the_text_is_taken() -> None:
    import transformers

    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8,
    }  # fmt: skip
    text = dict(FAMILIES["gemma4"].settings)
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None)
    torch.manual_seed(3)
    module = transformers.Gemma4ForConditionalGeneration(config).eval()
    prompt = [5, 6, 7, 8, 9]
    with torch.no_grad():
        made = module.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=[2]
        )
    model = load_model({"module": module, "task": "causal-lm"}, max_length=16, max_context=64)
    assert "Gemma4ForConditionalGeneration: its text part alone is compiled" in model.notes
    own, whole = ({id(p) for p in part.parameters()} for part in (model.module, module))
    assert own < whole and "vision" not in " ".join(n for n, _ in model.module.named_parameters())
    assert generate(model, prompt, 8) == made[0, len(prompt) :].tolist()


def test_chunks_that_attend_to_themselves_alone_are_kept() -> None:
    import transformers

    # The chunks are longer than what a model is tried with when it is loaded.
    config = transformers.Llama4TextConfig(
        vocab_size=60, hidden_size=32, intermediate_size=32, intermediate_size_mlp=32,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_local_experts=2, num_experts_per_tok=1, moe_layers=[1], attention_chunk_size=32,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    module = transformers.Llama4ForCausalLM(config).eval()
    tokens = torch.randint(0, 60, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = module(input_ids=tokens, use_cache=False).logits[0]
    model = load_model({"module": module, "task": "causal-lm"}, max_length=16)
    assert config.attention_chunk_size == 32
    caches = [s for s in model.inputs if s.in_place]
    memory = {s.name: torch.zeros(128, *s.shape[1:]) for s in caches}  # type: ignore[arg-type]
    for place in range(40):
        step = {
            "input_ids": tokens[:, place : place + 1],
            "position": torch.tensor([place]),
            "last": torch.tensor([0]),
        }
        with torch.no_grad():
            logits = model.module(**step, **memory)["logits"]
        torch.testing.assert_close(logits[0], want[place], rtol=1e-4, atol=1e-4)


def test_a_model_that_disagrees_with_itself_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"GPTNeoForCausalLM can't generate .* differ by"
    ) as caught:
        load_family("gpt_neo")
    assert '`task="logits"`' in str(caught.value.hint)
