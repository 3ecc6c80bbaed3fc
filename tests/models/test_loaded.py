from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edgecompile.errors import ModelError
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.specs import AxisLimits, InputSpec, OutputSpec
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)


def load(name: str, **options: object) -> LoadedModel:
    return load_model(f"{TINY}:{name}", **options)  # type: ignore[arg-type]


def test_importing_the_module_loads_no_framework() -> None:
    code = "import sys, edgecompile.models.loaded; print('torch' in sys.modules, 'numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_a_loaded_model_describes_itself() -> None:
    model = load("masked_mlp")
    assert [spec.name for spec in model.inputs] == ["x", "attention_mask"]
    assert model.inputs[0].shape == ("batch", "length", 8)
    assert model.inputs[0].pad == 0.0 and model.inputs[0].bounds is None
    assert model.inputs[1].is_mask and not model.inputs[0].is_mask
    assert model.outputs == (OutputSpec("output", "float32", ("batch", 4)),)
    assert model.axes == {"batch": AxisLimits(1, 1), "length": AxisLimits(1, 64)}
    assert model.length_axis == "length" and model.has_mask and model.paddable
    assert not model.module.training


def test_output_shapes_tell_axes_from_sizes_that_vary_otherwise() -> None:
    assert load("token_mlp").outputs[0].shape == ("batch", "length", 4)
    assert load("frames").outputs[0].shape == ("batch", None, 8)
    assert load("cross_attention").outputs[0].shape == (1, "length", 8)
    assert load("causal").outputs == (OutputSpec("logits", "float32", ("batch", "length", 50)),)


def test_examples_are_valid_and_the_same_for_the_same_seed() -> None:
    model = load("causal")
    first = model.make_example({"batch": 3, "length": 7}, seed=4)
    assert first["ids"].shape == (3, 7) and first["ids"].dtype == torch.int64
    assert int(first["ids"].min()) >= 0 and int(first["ids"].max()) < tiny_models.VOCABULARY
    again = model.make_example({"batch": 3, "length": 7}, seed=4)
    other = model.make_example({"batch": 3, "length": 7}, seed=5)
    assert torch.equal(first["ids"], again["ids"]) and not torch.equal(first["ids"], other["ids"])
    assert model.run(first)["logits"].shape == (3, 7, tiny_models.VOCABULARY)


def test_padding_of_examples_fills_the_tail_and_clears_the_mask() -> None:
    model = load("masked_mlp", batch=(1, 2))
    example = model.make_example({"batch": 2, "length": 6}, seed=1, padding=[0, 4])
    assert example["attention_mask"].tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert torch.equal(example["x"][1, 2:], torch.zeros(4, 8))
    assert bool((example["x"][0] != 0).all())
    both = model.make_example({"batch": 2, "length": 6}, seed=1, padding=1)
    assert both["attention_mask"][:, -1].tolist() == [0, 0]


def test_examples_need_a_size_for_every_axis() -> None:
    with pytest.raises(ValueError, match=r"axis 'batch' of input 'ids'"):
        load("causal").make_example({"length": 3})


def test_specs_go_through_json() -> None:
    spec = InputSpec("ids", "int64", ("batch", "length"), 0, (0, 9), (1, 9))
    assert InputSpec.from_json(spec.to_json()) == spec
    bare = InputSpec("x", "float32", (1, "length"))
    assert InputSpec.from_json(bare.to_json()) == bare
    output = OutputSpec("y", "float32", ("batch", None, 4))
    assert OutputSpec.from_json(output.to_json()) == output


def test_a_failing_run_names_the_line_of_the_model() -> None:
    model = load("chunked")
    with pytest.raises(ModelError, match=r"tiny_models\.py:\d+ in forward: .*view") as failure:
        model.run(model.make_example({"batch": 1, "length": 3}))
    assert "x [1, 3, 8]" in failure.value.message


def test_a_loaded_model_is_passed_through() -> None:
    model = load("token_mlp")
    assert load_model(model) is model
