"""prompts: what caches hold is what the model itself keeps of a text."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from edgecompile.models.prompts import draw_inputs, text_tokens  # noqa: E402
from tests.zoo.generation_families import load_family, make_family  # noqa: E402


def test_a_run_behind_drawn_caches_says_what_the_model_says_behind_the_text() -> None:
    model = load_family("llama")
    text, spec = text_tokens(model), model.generation.spec
    own = make_family("llama")  # attends in its own way
    for length, context, seed in ((1, 128, 3), (9, 64, 4), (5, 128, 5)):
        inputs = draw_inputs(model, {"length": length, "context": context}, seed)
        noise = model.make_example({"length": length, "context": context}, seed)
        rows, last = int(inputs[spec.position]), int(inputs[spec.last])
        ids = torch.cat([text[:, :rows], inputs[spec.input][:, : last + 1]], 1)
        with torch.no_grad():
            want = own(input_ids=ids, use_cache=False).logits[0, -1]
        got = model.run(inputs)[spec.logits][0]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
        for name in spec.caches:
            # Nothing may depend on these rows, so they hold anything.
            assert torch.equal(inputs[name][rows:], noise[name][rows:])
            assert rows == 0 or not torch.equal(inputs[name][:rows], noise[name][:rows])


def test_a_source_fills_the_caches_that_are_only_read() -> None:
    model = load_family("t5")
    spec, encoder = model.generation.spec, model.generation.encoder
    sizes = {axis: limits.lo for axis, limits in model.axes.items()}
    sizes.update(length=2, source=7)
    inputs = draw_inputs(model, sizes, 6)
    source = encoder.run(encoder.make_example({axis: 7 if axis == "length" else e.lo
                                               for axis, e in encoder.axes.items()}, 6))  # fmt: skip
    assert spec.cross and all(torch.equal(inputs[name], source[name]) for name in spec.cross)
    assert all(inputs[name].shape[0] == sizes["context"] for name in spec.caches)
    model.run(inputs)
