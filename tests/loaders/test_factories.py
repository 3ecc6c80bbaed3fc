from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from edgecompile.errors import ModelError
from edgecompile.loaders.factory_specs import ModelSpec
from edgecompile.loaders.load import load_model
from edgecompile.models.specs import AxisLimits
from tests.factories import tiny_models

TINY = Path(tiny_models.__file__)


def tokens(**more: Any) -> dict[str, Any]:
    return {**tiny_models.token_mlp(), **more}


#: Integers in place of token_mlp's vectors.
IDS = {
    "inputs": {"x": torch.ones(1, 12, dtype=torch.int64)},
    "axes": {"x": {0: "batch", 1: "length"}},
}


def test_every_documented_form_gives_the_same_model() -> None:
    made = tiny_models.token_mlp()
    forms = [
        made,
        ModelSpec(**made),
        (made["module"], made["inputs"], made["axes"]),
        (made["module"], tuple(made["inputs"].values()), made["axes"]),
        {**made, "inputs": made["inputs"]["x"].numpy()},
    ]
    for form in forms:
        model = load_model(form)
        assert [(s.name, s.dtype, s.shape) for s in model.inputs] == [
            ("x", "float32", ("batch", "length", 8))
        ]
        assert model.outputs[0].shape == ("batch", "length", 4)


def test_a_factory_is_found_in_a_file_and_in_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_mine.py").write_text("WIDTH = 3\n")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom helper_of_mine import WIDTH\n"
        "def make():\n    return torch.nn.Linear(WIDTH, 2), (torch.ones(4, WIDTH),), "
        "{'input': {0: 'length'}}\n"
        "class Kept:\n    make = staticmethod(make)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for spec in (f"{tmp_path}/mine.py:make", "mine.py:make", "mine:make", "mine:Kept.make"):
        model = load_model(spec)
        assert model.inputs[0].shape == ("length", 3), spec
        assert model.outputs[0].shape == ("length", 2), spec
        assert model.source.kind == "factory" and model.source.spec == spec
    assert sys.path == before
    del sys.modules["mine"], sys.modules["helper_of_mine"]


def test_what_a_factory_prints_stays_off_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chatty.py").write_text(
        "print('importing')\n"
        "def make():\n    print('making')\n"
        "    from tests.factories import tiny_models\n    return tiny_models.token_mlp()\n"
    )
    load_model(f"{tmp_path}/chatty.py:make")
    captured = capsys.readouterr()
    assert captured.out == "" and "importing" in captured.err and "making" in captured.err


def test_limits_come_from_the_factory_and_are_narrowed_by_options() -> None:
    assert load_model(tokens()).axes["length"] == AxisLimits(1, 64)
    assert load_model(tokens(), max_length=20).axes["length"] == AxisLimits(1, 20)
    assert load_model(tokens(), batch=(2, 6)).axes["batch"] == AxisLimits(2, 6)
    free = load_model(tokens(max_length=None))
    assert free.axes["length"] == AxisLimits(1, None)
    declared = load_model(tokens(max_length=None, limits={"length": (4, 40), "batch": (1, 8)}))
    assert declared.axes == {"batch": AxisLimits(1, 8), "length": AxisLimits(4, 40)}
    with pytest.raises(ModelError, match=r"maximum length 65 is over the model's 64"):
        load_model(tokens(max_length=None, limits={"length": (1, 64)}), max_length=65)
    with pytest.raises(ModelError, match=r"batch 1\.\.9 isn't within 1\.\.8"):
        load_model(tokens(limits={"batch": (1, 8)}), batch=(1, 9))


def test_bounds_masks_and_output_names_are_taken_over() -> None:
    made = tiny_models.masked_mlp()
    model = load_model({**made, "masks": [], "bounds": {"x": (-9, 9)}, "outputs": ["pooled"]})
    assert not model.has_mask and model.inputs[1].pad is None
    assert model.inputs[0].bounds == (-9, 9)
    assert model.outputs[0].name == "pooled"
    example = model.make_example({"batch": 1, "length": 50})["x"]
    assert float(example.min()) < -3 and float(example.max()) > 3


def test_integers_without_bounds_are_drawn_from_the_range_of_the_example() -> None:
    made = tiny_models.causal()
    made["inputs"] = {"ids": torch.tensor([[3, 9, 4, 7]])}
    drawn = load_model(made).make_example({"batch": 1, "length": 48})["ids"]
    assert int(drawn.min()) >= 3 and int(drawn.max()) <= 9


def test_other_precisions_become_float32_without_touching_the_users_module() -> None:
    made = tiny_models.half_precision()
    made["inputs"] = {"x": np.ones((1, 5, 8), dtype=np.float64)}
    model = load_model(made)
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert {p.dtype for p in made["module"].parameters()} == {torch.bfloat16}
    assert model.inputs[0].dtype == "float32"
    assert any("bfloat16" in note for note in model.notes)
    assert any("float64" in note for note in model.notes)


def test_a_raising_factory_is_shown_with_the_users_lines() -> None:
    with pytest.raises(ModelError) as failure:
        load_model(f"{TINY}:raising")
    text = failure.value.message
    assert "FileNotFoundError: no weights at weights.bin" in text
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(lines) == 2 and all("tiny_models.py:" in line for line in lines)
    assert "_load_weights_that_do_not_exist" in lines[-1]
    assert isinstance(failure.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:\n", r"broken\.py:1: .*: def make\(:"),
        (
            "import no_such_package_here\n",
            r"No module named 'no_such_package_here'\n.*broken\.py:1",
        ),
        ("raise ValueError('at import')\n", r"ValueError: at import\n.*broken\.py:1"),
        ("raise SystemExit(3)\n", r"SystemExit: 3"),
        ("def make():\n    exit()\n", r"raised: SystemExit"),
        ("def make(size):\n    pass\n", r"missing 1 required positional argument: 'size'"),
        ("make = 5\n", r"isn't a function, but int"),
        ("def other():\n    pass\n", r"no function make"),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, code: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(code)
    with pytest.raises(ModelError, match=message):
        load_model(f"{path}:make")


def test_missing_files_and_modules_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        load_model(f"{tmp_path}/none.py:make")
    with pytest.raises(ModelError, match="there is no Python module 'no_such_module'"):
        load_model("no_such_module:make")
    with pytest.raises(ModelError, match="there is no function nothing") as failure:
        load_model(f"{TINY}:nothing")
    assert "as_tuple" in (failure.value.hint or "")


def test_all_mistakes_of_a_factory_are_listed_at_once() -> None:
    with pytest.raises(ModelError) as failure:
        load_model(f"{TINY}:full_of_mistakes")
    for part in (
        "forward takes no 'mask'",
        "no example input for attention_mask",
        "axes names dimension 5 of 'x', which has 3, the first one 0",
        "max_length is 0",
        "length is 12 in the example 'x' and 11 in 'mask'",
        "pad names inputs that don't exist: y",
        "bounds (2, 1) of 'mask'",
    ):
        assert part in failure.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": torch.nn.Linear}, "module is Linear, not a torch.nn.Module"),
        ({"module": torch.nn.Linear(8, 4, device="meta")}, "weights are on meta"),
        ({"inputs": {}}, "inputs is no dict"),
        ({"inputs": {"x": [1, 2]}}, "'x' is a list, not a tensor"),
        ({"inputs": {"x": torch.ones(1, 0, 8)}}, r"shape \[1, 0, 8\]"),
        ({"inputs": {"x": torch.ones(1, 3, 8, dtype=torch.complex64)}}, "complex64"),
        ({"inputs": (torch.ones(1, 3, 8), torch.ones(1))}, "2 example inputs, but forward takes x"),
        ({"axes": {"x": {1: "a/b"}}}, r"'a/b' is neither a name for an axis nor a sum such as"),
        ({"axes": {"x": {0: "2*length", 1: "length"}}}, "2*length is 1 in the example 'x', but"),
        ({"axes": {"x": {1: "5*length"}}}, r"5\*length is 12 in the examples, for no whole size"),
        (
            {"axes": {"x": {1: "3*length"}}, "limits": {"length": (5, 9)}},
            r"length is 4 in the examples, outside its limits 5\.\.9",
        ),
        ({"axes": {"x": {1: "rows+length"}}}, "rows.length gives no size of rows and length: all"),
        ({"axes": {"x": {0: "length-12", 1: "length"}}}, "length-12 is -11 at the least sizes"),
        ({**IDS, "bounds": {"x": (0, "width")}}, r"bounds \(0, 'width'\) of 'x' aren't"),
        ({"bounds": {"x": (0, "length")}}, r"bounds \(0, 'length'\) of 'x' aren't"),
        ({**IDS, "bounds": {"x": ("length", 99)}}, "outside its bounds length..99"),
        (
            {**IDS, "bounds": {"x": (0, "length-3")}},
            "0..length-3 of 'x' leave no value at some sizes",
        ),
        ({"bounds": {"x": (0, "width")}}, r"aren't \(lowest, highest\), numbers of float32\n"),
        ({"axes": {"x": {1: "a b"}}}, "'a b' is neither a name for an axis nor a sum such as"),
        ({"axes": {"x": {1: "a" * 101}}}, "a' is neither a name for an axis nor a sum such as"),
        (
            {
                "inputs": {"x": torch.ones(5, 12, 24), "y": torch.ones(25)},
                "axes": {"x": {1: "length", 2: "2 * length"}, "y": {0: "length+length"}},
            },
            r"2\*length is 25 in the example 'y', but follows as 24",
        ),
        ({"axes": ["x"]}, "axes isn't of the form"),
        ({"axes": {"y": {0: "length"}}}, "axes names the input 'y'"),
        ({"axes": {"x": {0: "rows", 1: "columns"}}}, "length_axis must say which of rows, columns"),
        ({"length_axis": "depth"}, "length_axis is 'depth'"),
        ({"limits": {"length": (0, 5)}}, r"limits of length are \(0, 5\)"),
        ({"limits": {"depth": (1, 5)}}, "limits names the axis 'depth'"),
        ({"limits": {"length": (20, 50)}}, r"length is 12 in the example 'x', outside its limits"),
        ({"pad": {"x": "zero"}}, "pad value 'zero' of 'x' isn't a float32"),
        ({"bounds": {"x": (5, 6)}}, "outside its bounds 5..6"),
        ({"colour": 3}, "unknown key 'colour'"),
    ],
)
def test_each_mistake_has_its_words(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(tokens(**change))


def test_a_task_other_than_the_factory_says_is_refused() -> None:
    made = {"module": torch.nn.Linear(2, 2), "task": "causal-lm"}
    with pytest.raises(
        ModelError, match="says the task 'causal-lm', and `task=\"seq2seq-lm\"` is"
    ) as f:
        load_model(made, task="seq2seq-lm")
    assert "leave `task` out" in (f.value.hint or "")
    # The same task twice is no contradiction: this is refused for what it is.
    with pytest.raises(ModelError, match="a Linear, not a transformers model"):
        load_model(made, task="causal-lm")


@pytest.mark.parametrize("value", [5, None, ("module",), torch.nn.Linear(2, 2), {}])
def test_other_things_are_no_models(value: object) -> None:
    with pytest.raises(ModelError) as failure:
        load_model(value)
    assert failure.value.hint


def test_a_module_that_fails_on_its_example_is_shown_with_its_line() -> None:
    with pytest.raises(ModelError, match=r"flux capacitor is empty \(at .*tiny_models\.py:\d+"):
        load_model(f"{TINY}:failing")


class _Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class _Returns(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> Any:
        return self.value(x)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (lambda x: (x, x.sum(1)), ["output_0", "output_1"]),
        (lambda x: {"a": x, "b": [x, None, x]}, ["a", "b_0", "b_2"]),
        (lambda x: _Pair(x, x), ["left", "right"]),
        (lambda x: torch.max(x, 1), ["output_0", "output_1"]),
    ],
)
def test_outputs_of_every_form_get_names(value: Any, names: list[str]) -> None:
    model = load_model((_Returns(value), {"x": torch.randn(1, 4, 8)}, {"x": {1: "length"}}))
    assert [spec.name for spec in model.outputs] == names


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: 5, "result is a int, not a tensor"),
        (lambda x: {"a": x, "b": "text"}, "output 'b' is a str"),
        (lambda x: None, "returns no tensor"),
        (lambda x: x.to(torch.complex64), "complex64"),
        (lambda x: x.bfloat16(), "bfloat16"),
    ],
)
def test_outputs_that_are_no_arrays_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model((_Returns(value), {"x": torch.randn(1, 4, 8)}, {"x": {1: "length"}}))


def test_a_cache_among_the_outputs_hints_at_generation() -> None:
    class TextCache:
        pass

    value = _Returns(lambda x: {"logits": x, "past": TextCache()})
    with pytest.raises(ModelError, match="output 'past' is a TextCache") as caught:
        load_model((value, {"x": torch.randn(1, 4, 8)}, {"x": {1: "length"}}))
    assert caught.value.hint is not None and '`task="causal-lm"` generates' in caught.value.hint
