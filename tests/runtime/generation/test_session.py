"""Generation with a real bundle: the decoder of tests/factories/decoder.py, against plain torch."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import (
    ContextLengthError,
    GenerationError,
    InputError,
    Model,
    ModelClosedError,
    OutsideBucketsError,
    open_bundle,
)
from edgecompile.runtime.call.inputs import make_inputs
from edgecompile.runtime.generation import chunk_runs
from edgecompile.runtime.generation.options import Options
from tests.generative import EOS
from tests.runtime.test_run_overhead import count_opcodes

pytest.importorskip("torch")
from edgecompile.models.double import InFloat64
from edgecompile.models.rounding import FACTOR
from tests.factories import decoder as d

MOST = d.MAX_CONTEXT
#: Lengths around every edge: of buckets, of chunks, of the context's views.
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 127, 129, 160, 190)


@pytest.fixture(scope="module")
def module() -> Any:
    return d.decoder()["module"].eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.RandomState(seed).randint(1, d.VOCABULARY, length).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_tokens_are_those_of_a_plain_loop(model: Model, module: Any, length: int) -> None:
    new = min(20, MOST - length)
    for seed in range(2):
        ids = prompt(length, seed)
        want = d.generate(module, ids, new)
        assert model.generate(ids, max_new_tokens=new, eos=()) == want


def test_the_whole_context_can_be_filled(model: Model, module: Any) -> None:
    got = model.generate([5, 9], max_new_tokens=MOST - 2, eos=())
    assert got == d.generate(module, [5, 9], MOST - 2)


def test_logits_of_each_step_are_eagers(model: Model, module: Any) -> None:
    session = model.session()
    stream = session.stream(prompt(20), max_new_tokens=100, eos=())
    text = stream.prompt
    while stream.run():
        pass
    logits = stream._logits
    for step in range(100):
        with InFloat64():
            want = d.logits_of(module, text).numpy()
        assert want.dtype == np.float64
        own = np.abs(d.logits_of(module, text).numpy() - want).max()  # a few channels are large
        allowed = 1e-5 * np.abs(want).max() + FACTOR * own
        np.testing.assert_allclose(logits, want, atol=allowed, err_msg=str(step))
        text.append(step % 50 + 1)
        with session.lent(stream) as held:
            logits = held.advance(text[-1])


def test_streams_and_callbacks_give_tokens_as_they_are_made(model: Model) -> None:
    want = model.generate([3, 4], max_new_tokens=9, eos=())
    before = model.stats["runs"]
    stream = model.stream([3, 4], max_new_tokens=9, eos=())
    assert model.stats["runs"] == before, "nothing runs before the first token is asked for"
    assert next(stream) == want[0] and stream.tokens == want[:1]
    assert model.stats["runs"] == before + 1
    assert list(stream) == want[1:]
    assert stream.finish_reason == "length" and list(stream) == []
    seen: list[int] = []
    assert model.generate([3, 4], max_new_tokens=9, eos=(), on_token=seen.append) == want == seen
    ended = model.generate([3, 4], max_new_tokens=9, eos=(), on_token=lambda token: False)
    assert ended == want[:1]


def test_eos_and_stops_end_a_text_and_belong_to_it(model: Model) -> None:
    want = model.generate([3, 4], max_new_tokens=40, eos=())
    for number in (0, 5, 11):
        token, first = want[number], want.index(want[number])
        assert model.generate([3, 4], max_new_tokens=40, eos=token) == want[: first + 1]
        assert (
            model.generate([3, 4], max_new_tokens=40, eos=(), stop=[60, token])
            == (want[: first + 1])
        )
    stream = model.stream([3, 4], max_new_tokens=40, eos=(), stop=[want[4:7], [want[6], 60]])
    assert list(stream) == want[:7] and stream.finish_reason == "stop"
    # A stop isn't found in the prompt, nor across its end.
    assert len(model.generate([3, *want[:3]], max_new_tokens=2, eos=(), stop=[want[2:4]])) >= 1
    stream = model.stream([3, 4], max_new_tokens=40, eos=[want[2]])
    assert list(stream)[-1] == want[2] and stream.finish_reason == "eos"


def test_defaults_are_the_bundles(model: Model) -> None:
    spec = model.info["generation"]
    assert spec["max_context"] == MOST and spec["eos"] == [EOS] and spec["caches"] == d.CACHES
    assert len(model.generate([1, 2], eos=())) == spec["defaults"]["max_new_tokens"] == 30
    # Where the context has less room than the default, that is what is made.
    assert len(model.generate(prompt(MOST - 4), eos=())) == 4


def test_sampling_repeats_with_its_seed(model: Model) -> None:
    def run(**options: Any) -> list[int]:
        return model.generate([1, 2, 3], max_new_tokens=25, eos=(), **options)

    greedy = run()
    assert run(temperature=1.5, seed=3) == run(temperature=1.5, seed=3)
    assert run(temperature=1.5, seed=3) != run(temperature=1.5, seed=4)
    assert run(do_sample=True) != run(do_sample=True)
    assert run(temperature=0) == run(temperature=2.0, top_k=1) == run(top_p=1e-6) == greedy
    assert run(repetition_penalty=1e6) != greedy
    assert len(set(run(repetition_penalty=1e6)) | {1, 2, 3}) == 28, "no token comes twice"


def test_what_does_not_fit_is_refused_before_anything_runs(model: Model) -> None:
    before = model.stats["runs"]
    with pytest.raises(ContextLengthError) as caught:
        model.stream(prompt(150), max_new_tokens=43)
    assert "150 tokens of the prompt and 43 new ones don't fit into the context of 192" in (
        caught.value.message
    )
    assert caught.value.exit_code == 16 and "at most 42 new tokens" in str(caught.value.hint)
    assert "prompt to at most 149 tokens" in str(caught.value.hint)
    with pytest.raises(ContextLengthError) as caught:
        model.stream(prompt(10), max_new_tokens=MOST + 1)
    assert "at most 182 new tokens" in str(caught.value.hint)
    assert "cut the prompt" not in str(caught.value.hint)
    for length in (MOST, MOST + 100):
        with pytest.raises(ContextLengthError, match=f"{length} tokens of the prompt and 1 new"):
            model.generate(prompt(length))
    assert model.stats["runs"] == before


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "input_ids: is empty"),
    ([[1], [2]], {}, "has shape [2, 1], must be that of one text"),
    ([1.0], {}, "has dtype float64, must be integers"),
    ([1, 61, -1], {}, "2 of 3 values lie outside 0..60, the first is 61 at [1]"),
    (["a"], {}, "must be integers"),
    ([True, False], {}, "has dtype bool, must be integers"),
    ([1, True], {}, "has dtype bool, must be integers"),
    ([[1, True]], {}, "has dtype bool, must be integers"),
    ([[1], [2, 3]], {}, "input_ids: isn't an array"),
    ([1], {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ([1], {"max_new_tokens": 2.0}, "max_new_tokens is 2.0"),
    ([1], {"temperature": -1}, "temperature is -1, must be a number from 0 on"),
    ([1], {"temperature": float("nan")}, "temperature is nan"),
    ([1], {"temperature": 10**400}, "0, must be a number from 0 on"),
    ([1], {"top_k": 1.5}, "top_k is 1.5, must be an integer from 0 on"),
    ([1], {"top_p": 0}, "top_p is 0, must be a number over 0, at most 1"),
    ([1], {"repetition_penalty": "1"}, "repetition_penalty is '1'"),
    ([1], {"do_sample": 1}, "do_sample is 1, must be True or False"),
    ([1], {"seed": -1}, "seed is -1, must be an integer from 0 to 4294967295"),
    ([1], {"eos": "x"}, "eos is 'x', must be token ids"),
    ([1], {"stop": "x"}, "stop must be a list"),
    ([1], {"stop": [[]]}, "stop has [], must have token ids"),
    ([1], {"stop": ["x"]}, "stop has 'x', must have token ids"),
    ([1], {"eos": 61}, "eos is 61, must be token ids, 0..60"),
    ([1], {"eos": [3, 61]}, "eos is [3, 61], must be token ids, 0..60"),
    ([1], {"stop": 61}, "stop has 61, must have token ids, 0..60"),
    ([1], {"stop": [60, [3, 61]]}, "stop has [3, 61], must have token ids, 0..60"),
    ([1], {"constraint": object()}, "constraint is a object, must have methods mask and accept"),
    ([1], {"lookup": 1}, "lookup is 1, must be True or False"),
    ([1], {"on_token": 3}, "on_token is a int, must be a function"),
]


@pytest.mark.parametrize(("ids", "options", "text"), BAD, ids=[item[2][:24] for item in BAD])
def test_bad_arguments_are_refused(
    model: Model, ids: Any, options: dict[str, Any], text: str
) -> None:
    before = model.stats["runs"]
    with pytest.raises(InputError) as caught:
        model.generate(ids, **options)
    assert text in caught.value.message and model.stats["runs"] == before


def test_all_that_is_wrong_is_told(model: Model) -> None:
    with pytest.raises(InputError) as caught:
        model.generate([99], top_k=-1, seed="x", max_new_tokens=0)
    assert caught.value.message.count("\n  ") == 4


def test_all_tokens_of_made_inputs_count(model: Model) -> None:
    """Else a measured run would leave most of a prompt out of its recurrences."""
    spec, sizes = model.manifest.generation, {a: e.hi for a, e in model.manifest.axes.items()}
    assert spec is not None
    for seed in (None, 1):
        made = make_inputs(model.manifest, sizes, seed)
        assert made[spec.last].tolist() == [sizes[spec.length_axis] - 1]
        assert made[spec.position].tolist() == [0]


def test_options_are_named_in_the_signature(model: Model) -> None:
    for maker in (model, model.session()):
        names = set(inspect.signature(maker.generate).parameters)
        assert {*Options._fields, "input_ids", "decoder_input_ids"} <= names
        assert maker.stream([1], **Options(max_new_tokens=1)._asdict(), decoder_input_ids=None)
        for method in (maker.generate, maker.stream):
            with pytest.raises(TypeError, match="num_beams"):
                method([1], num_beams=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("given", ["What is a list?", b"bytes"])
def test_a_text_is_refused_with_the_way_to_its_ids(model: Model, given: Any) -> None:
    with pytest.raises(InputError, match="a text was given") as caught:
        model.generate(given)
    assert caught.value.hint is not None and "open_tokenizer(model)" in caught.value.hint


def test_masked_ids_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="mask would be lost"):
        model.generate(np.ma.masked_equal([1, 2, 0], 0))


def test_any_form_of_ids_will_do(model: Model) -> None:
    want = model.generate([1, 2, 3], max_new_tokens=4)
    for ids in ((1, 2, 3), np.array([1, 2, 3], np.int32), np.array([[1, 2, 3]], np.uint8)):
        assert model.generate(ids, max_new_tokens=4) == want


# --- Sessions
def test_a_session_runs_only_what_is_new(model: Model, module: Any) -> None:
    session, text = model.session(), prompt(40)
    for turn in range(3):
        stream = session.stream(text, max_new_tokens=6, eos=())
        got = list(stream)
        assert got == d.generate(module, text, 6)
        assert stream.reused == (0 if turn == 0 else len(text) - 4)
        text += [*got, *prompt(3, seed=turn)]
    # The end of the last text isn't this one's, and what it left in the caches isn't seen.
    other = [*text[:30], 9, 9]
    stream = session.stream(other, max_new_tokens=12, eos=())
    assert list(stream) == d.generate(module, other, 12) and stream.reused == 30
    assert session.tokens[:32] == other
    # The very same text again: its last token is run once more, for its logits.
    stream = session.stream(other, max_new_tokens=12, eos=())
    assert list(stream) == d.generate(module, other, 12) and stream.reused == 31


def test_a_new_text_of_a_session_ends_the_one_before(model: Model) -> None:
    session = model.session()
    first = session.stream([1, 2], max_new_tokens=9, eos=())
    next(first)
    want = model.generate([1, 3], max_new_tokens=9, eos=())
    assert session.generate([1, 3], max_new_tokens=9, eos=()) == want
    with pytest.raises(InputError, match="another generation of this session began"):
        next(first)


def test_no_token_is_taken_from_the_logits_of_another_text(model: Model) -> None:
    """A run of another thread, between a run and the choice of its token, writes new logits."""
    session = model.session()
    for made in (0, 2):
        stream = session.stream([1, 2], max_new_tokens=made + 1, eos=())
        choose = stream._choose

        def late(logits: Any, stream: Any = stream, choose: Any = choose, made: int = made) -> int:
            if len(stream.tokens) == made:
                session.generate([1, 3], max_new_tokens=2, eos=())
            return choose(logits)  # type: ignore[no-any-return]

        stream._choose = late
        with pytest.raises(InputError, match="another generation of this session began"):
            list(stream)
        assert len(stream.tokens) == made and stream.finish_reason == "closed"


def test_threads_generate_at_once(model: Model) -> None:
    prompts = [prompt(length, seed=9) for length in (1, 7, 20, 33, 50, 64)]
    want = [model.generate(ids, max_new_tokens=30, eos=()) for ids in prompts]
    got: dict[int, list[int]] = {}

    def run(index: int) -> None:
        got[index] = model.generate(prompts[index], max_new_tokens=30, eos=())

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(len(prompts))] == want


def test_a_closed_model_refuses_the_next_token(decoder_bundle: Path) -> None:
    model = open_bundle(decoder_bundle, threads=1, warmup=False)
    stream = model.stream([1, 2], max_new_tokens=9)
    next(stream)
    model.close()
    with pytest.raises(ModelClosedError):
        next(stream)
    with pytest.raises(ModelClosedError):
        model.generate([1, 2])


def test_other_models_generate_nothing(tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle, warmup=False) as model:
        assert model.info["generation"] is None
        with pytest.raises(GenerationError, match="is not a language model"):
            model.generate([1])


@pytest.mark.parametrize(
    ("backend", "text"), [("tensorrt", "runs on a GPU"), ("torch", "is run by torch")]
)
def test_only_the_native_runtime_generates(
    decoder_bundle: Path, monkeypatch: pytest.MonkeyPatch, backend: str, text: str
) -> None:
    with open_bundle(decoder_bundle, warmup=False) as model:
        other = model._variant._replace(backend=backend)
        monkeypatch.setattr(model, "_variant", other)
        with pytest.raises(GenerationError, match=text):
            model.generate([1])


# --- What a token costs
def test_a_token_takes_little_python(model: Model) -> None:
    """It takes 486 (CPython 3.11), a quarter of a call of Model.run."""
    stream = model.stream(prompt(66), max_new_tokens=100, eos=())
    costs = [count_opcodes(lambda: next(stream)) for _ in range(50)]
    assert max(costs[2:]) < 500
    # From one token to the next nothing is described, checked or allocated anew.
    assert len(set(costs[2:])) == 1


def test_nothing_is_left_of_a_generation(model: Model) -> None:
    runtime = model._runtime
    assert runtime is not None
    model.generate([1, 2], max_new_tokens=70, eos=())
    gc.collect()
    before = runtime.live_tensors, runtime.buffer_bytes[0]
    for _ in range(5):
        model.generate([1, 2], max_new_tokens=70, eos=())
    gc.collect()
    assert (runtime.live_tensors, runtime.buffer_bytes[0]) == before


@pytest.mark.parametrize(
    ("limits", "given"),
    [
        ({}, False),
        ({"_KEPT_BYTES": 0}, False),
        ({"_KEPT_BYTES": 0, "_LONG": 32}, True),
        ({"_LONG": 32}, False),
    ],
)
def test_buffers_of_a_long_prompt_are_given_back(
    model: Model, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], given: bool
) -> None:
    runtime = model._runtime
    assert runtime is not None
    want = model.generate(prompt(37), max_new_tokens=9, eos=())
    for name, limit in limits.items():
        monkeypatch.setattr(chunk_runs, name, limit)
    stream = model.stream(prompt(37), max_new_tokens=9, eos=())
    tokens = [next(stream)]
    assert (runtime.buffer_bytes[1] == 0) == given
    assert [*tokens, *stream] == want


def test_buffers_of_a_prompt_that_is_left_are_given_back(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = model._runtime
    assert runtime is not None
    monkeypatch.setattr(chunk_runs, "_KEPT_BYTES", 0)
    monkeypatch.setattr(chunk_runs, "_LONG", 32)
    stream = model.stream(prompt(70), max_new_tokens=9, eos=())
    assert stream.run() and runtime.buffer_bytes[1] > 0
    del stream
    assert runtime.buffer_bytes[1] == 0


def test_a_prompt_may_be_left_behind_a_closed_model(
    decoder_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", failed.append)
    monkeypatch.setattr(chunk_runs, "_LONG", 32)
    with open_bundle(decoder_bundle, threads=1, warmup=False) as model:
        stream = model.stream(prompt(70), max_new_tokens=9, eos=())
        assert stream.run()
    del stream
    assert not failed


def test_statistics_count_prompts_and_steps(decoder_bundle: Path) -> None:
    with open_bundle(decoder_bundle, threads=1) as model:
        model.generate(prompt(37), max_new_tokens=10, eos=())
        assert model.stats["lengths"] == {"1": 9, "5": 1, "32": 1}


# --- Model.run of such a bundle
def run_inputs(rows: int = 64, length: int = 3, **changes: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "input_ids": np.ones((1, length), np.int64),
        "position": np.array([0]),
        "last": np.array([length - 1]),
    }
    for name in d.CACHES:
        inputs[name] = np.zeros((rows, d.KV_HEADS, d.HEAD_DIM), np.float32)
    return {**inputs, **changes}


def test_run_changes_the_callers_caches(model: Model, module: Any) -> None:
    inputs = run_inputs(position=np.array([7]))
    want = d.make_caches(64)
    import torch

    with torch.no_grad():
        logits = module(
            *(torch.from_numpy(inputs[k]) for k in ("input_ids", "position", "last")), *want
        )["logits"]
    got = model.run(inputs)["logits"]
    np.testing.assert_allclose(got, logits.numpy(), atol=1e-5)
    for name, rows in zip(d.CACHES, want, strict=True):
        # The bucket pads to 16 tokens, and so writes 16 rows; of the others none.
        np.testing.assert_allclose(inputs[name][7:10], rows[7:10].numpy(), atol=1e-5)
        assert inputs[name][10:23].any() and not inputs[name][:7].any()
        assert not inputs[name][23:].any()


def read_only() -> Any:
    array = np.zeros((64, d.KV_HEADS, d.HEAD_DIM), np.float32)
    array.flags.writeable = False
    return array


SHARED = np.zeros((100, d.KV_HEADS, d.HEAD_DIM), np.float32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cache_0_key": read_only()}, "cache_0_key: is read-only; the model changes it in place"),
    ({"cache_0_key": np.zeros((64, 2, 8))}, "cache_0_key: has dtype float64, must be float32"),
    ({"cache_0_key": np.zeros((64, 2, 8), ">f4")}, "cache_0_key: has dtype >f4"),
    ({"cache_0_key": np.zeros((64, 2, 8), np.int8)}, "has dtype int8, must be float32"),
    ({"cache_0_key": np.zeros((64, 8, 2), np.float32).transpose(0, 2, 1)}, "isn't contiguous"),
    ({"cache_0_key": SHARED[1::2][:50]}, "isn't contiguous"),
    ({"cache_0_key": np.zeros((64, 2, 8), np.float32).tolist()}, "is a list, must be an array"),
    ({"cache_0_key": SHARED[:64], "cache_1_value": SHARED[36:]}, "overlaps another input"),
    ({"position": np.array([-1])}, "position: -1 with 3 tokens (padded to 16)"),
    ({"position": np.array([49])}, "49 with 3 tokens (padded to 16) doesn't lie within the 64"),
    ({"position": np.array([2**62])}, "doesn't lie within the 64 rows"),
    ({"last": np.array([3])}, "last: 3 isn't one of the 3 tokens, 0..2"),
    ({"last": np.array([-1])}, "last: -1 isn't one"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[item[1][:30] for item in WRONG])
def test_run_refuses_what_native_code_cannot_take(
    model: Model, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError) as caught:
        model.run(run_inputs(**changes))
    assert text in caught.value.message
    model.run(run_inputs(position=np.array([48])))


def test_run_refuses_more_rows_than_the_context(model: Model) -> None:
    with pytest.raises(OutsideBucketsError):
        model.run(run_inputs(rows=MOST + 1))
