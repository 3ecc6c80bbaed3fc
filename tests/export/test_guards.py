from __future__ import annotations

import pytest

from edgecompile.export.guards import condition_holds, explain_failure, readable_guard
from edgecompile.models.specs import InputSpec

INPUTS = (
    InputSpec("ids", "int64", ("batch", "length")),
    InputSpec("x", "float32", (3, "frames", 8)),
)
HEAD = 'Constraints violated (length)! For more information, run with TORCH_LOGS="+dynamic".\n'


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        ("((-1) + length) != 1", "length - 1 != 1"),
        ("(1 + (((-3) + frames) // 2)) != 1", "1 + (frames - 3) // 2 != 1"),
        ("21 <= length and length <= 256", "21 <= length and length <= 256"),
        ("not python (", "not python ("),
    ],
)
def test_conditions_lose_needless_parentheses(text: str, tidied: str) -> None:
    assert readable_guard(text) == tidied


@pytest.mark.parametrize(
    ("size", "axis"),
    [
        ("L['ids'].size()[1]", "length"),
        ("L['x'].size()[1]", "frames"),
        ("L['args'][1].size()[1]", "frames"),
        ("L['flat_args'][0].size()[0]", "batch"),
        ("L['inputs']['x'].size()[1]", "frames"),
        ("L['x'].size()[0]", "x.shape[0]"),
    ],
)
def test_sizes_are_called_by_their_axis(size: str, axis: str) -> None:
    line = f"  - Not all values of a = {size} in the specified range a <= 9 satisfy the generated "
    reason = explain_failure(RuntimeError(f"{HEAD}{line}guard {size} % 16 == 0.\n"), INPUTS, "f:1")
    assert reason.kind == "guard"
    if "[" in axis:
        assert axis.partition("[")[0] in reason.text
    else:
        assert reason.guards == (f"{axis} % 16 == 0",)
        assert reason.text == f"its code needs {axis} % 16 == 0 (at f:1)"
    assert HEAD in reason.raw


def test_both_ways_of_saying_that_a_size_is_fixed() -> None:
    marked = "You marked length as dynamic but your code specialized it to be a constant (64). If"
    single = (
        "  - Not all values of length = L['ids'].size()[1] in the specified range length <= 256 "
        "satisfy the generated guard 64 <= L['ids'].size()[1] and L['ids'].size()[1] <= 64"
    )
    for message in (marked, HEAD + single):
        reason = explain_failure(RuntimeError(message), INPUTS)
        assert reason.kind == "specialised"
        assert "fixes length to 64" in reason.text


def test_other_errors_are_kept_as_they_are() -> None:
    reason = explain_failure(TypeError("unsupported thing\nsecond line"), INPUTS)
    assert (reason.kind, reason.text) == ("other", "TypeError: unsupported thing")
    assert reason.raw.endswith("second line")


@pytest.mark.parametrize(
    ("condition", "lengths"),
    [
        ("Ne(s77, 3)", {1, 2, 4, 5, 6}),
        ("Eq(Mod(s77, 2), 0)", {2, 4, 6}),
        ("Eq(((s77 + 1)//2), 2)", {3, 4}),
        ("(-1) + s77 > Max(1, s77 - 4)", {3, 4, 5, 6}),
        ("And(2 <= s77, s77 < 5)", {2, 3, 4}),
        ("2 <= s77 and not s77 == 5", {2, 3, 4, 6}),
        ("Eq(CeilToInt(IntTrueDiv(s77, 4)), 2)", {5, 6}),
    ],
)
def test_conditions_are_evaluated(condition: str, lengths: set[int]) -> None:
    assert {n for n in range(1, 7) if condition_holds(condition, {"s77": n})} == lengths


@pytest.mark.parametrize(
    "condition", ["s5 > 1", "Unknown(s77)", "s77 // 0 == 1", "not (", "s77.real > 1", "'a' == 'a'"]
)
def test_what_isn_t_known_of_a_condition_is_said_so(condition: str) -> None:
    assert condition_holds(condition, {"s77": 4}) is None
