"""``edgecompile explain``: it names the real cause, with the line, of models that have one."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from edgecompile.backends.inductor.source import extern_calls, runtime_kernels
from edgecompile.cli import cli
from edgecompile.errors import ModelError, ToolchainError
from edgecompile.explanation.eager import check_eager
from edgecompile.explanation.explain import explain_load_failure, explain_model
from edgecompile.explanation.program import module_kind
from edgecompile.explanation.report import VERDICTS, Explanation
from edgecompile.explanation.request import ExplainRequest
from edgecompile.explanation.view import explain_page, explanation_tables, format_flops
from edgecompile.export.guards import fixed_size, readable_guard
from edgecompile.export.ladder import LADDER
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.source_lines import line_of_text, line_of_trace
from edgecompile.models.specs import AxisLimits
from edgecompile.targets.profile import load_target
from tests.factories import explained, tiny_models
from tests.factories.folders import write_model
from tests.report.svg import parse_drawing, read_words

DOCS = Path(__file__).resolve().parents[2] / "docs"


@cache
def load(name: str) -> LoadedModel:
    module = explained if hasattr(explained, name) else tiny_models
    return load_model(f"{module.__file__}:{name}")


@cache
def explain(name: str, code: bool = False, **more: Any) -> Explanation:
    return explain_model(load(name), ExplainRequest(load_target("cpu-x86-64"), code=code, **more))


def line_of(function: Any, code: str) -> str:
    """``file.py:12`` of the line of a function that has this code."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if code in line)
    return f"{Path(inspect.getfile(function)).name}:{first + number}"


def outcomes(found: Explanation) -> dict[str, str]:
    return {attempt.strategy: attempt.outcome for attempt in found.export.attempts}


UNNAMED = ("sizes", "ranges", "right", "wrong")


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """Every key of a document, with those around it, but for names of axes."""
    if isinstance(value, list):
        for item in value:
            yield from key_paths(item, path)
    elif isinstance(value, dict) and path.rpartition(".")[2] not in UNNAMED:
        for key, item in value.items():
            yield f"{path}.{key}".lstrip(".")
            yield from key_paths(item, f"{path}.{key}".lstrip("."))


# Causes


def test_a_guard_is_named_with_its_line() -> None:
    found = explain("sixteens")
    line = line_of(explained.Sixteens.forward, "% 16")
    first = found.export.attempts[0]
    assert first.outcome == "refused"
    assert [item.text for item in first.conditions] == ["length % 16 == 0"]
    assert first.place is not None and first.place.short == line
    assert outcomes(found)["deferred"] == "wrong"  # torch took it, and eager disagrees
    deferred = next(a for a in found.export.attempts if a.strategy == "deferred")
    assert "needs length % 16 == 0" in deferred.text
    assert all(sizes["length"] % 16 for sizes, _ in deferred.wrong)
    # 16 padded to more changes the formula, though most lengths can be padded.
    assert found.export.padding_safe is False and found.verdict == "ranges"
    # A program for each remainder: of 16, 32 in steps of 16, and 15 more.
    assert len(found.export.sides) == 16 and (16, 32, 16) in found.export.sides
    assert any(f.place is not None and f.place.short == line for f in found.causes)


def test_a_branch_on_values_is_refused_at_every_strategy_and_still_explained() -> None:
    found = explain("data_dependent")
    line = line_of(tiny_models.DataDependent.forward, "x.sum() > 0")
    assert found.verdict == "refused" and found.program.graph is None
    assert set(outcomes(found).values()) == {"refused"}
    assert [item.place.short for item in found.export.breaks if item.place] == [line]
    refusals = [item for item in found.causes if item.kind == "refused"]
    assert len(refusals) == 1 and "torch.where" in refusals[0].cure
    assert refusals[0].place is not None and refusals[0].place.short == line


def test_a_loop_over_positions_is_a_specialisation() -> None:
    found = explain("looping", max_length=8)
    line = line_of(tiny_models.Looping.forward, "range(x.shape[1])")
    assert [(s.axis, s.size) for s in found.export.fixed_axes] == [("length", 8)]
    special = found.export.fixed_axes[0]
    assert special.place is not None and special.place.short == line
    # Tracing at another size shows that any is fixed; more ways would be in vain.
    tried = ["dim", "deferred", "apart", "strict", "dim at length 7"]
    assert list(outcomes(found)) == [*tried, "static", "static-strict"]
    assert found.program.graph == "static"


def test_an_lstm_exports_one_length_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other ways fail alike, and take a while for it.
    monkeypatch.setattr("edgecompile.export.attempts.LADDER", LADDER[:1])
    request = ExplainRequest(load_target("cpu-x86-64"), code=False, max_length=6)
    found = explain_model(load("two_way_recurrence"), request)
    assert found.verdict == "ranges" and found.export.padding_safe is False
    assert found.export.sides == tuple((n, n) for n in range(1, 7))
    refused = dict.fromkeys(("dim", "dim at length 5"), "refused")
    others = dict.fromkeys(("static-recurrences", "static-strict"), "not tried")
    assert outcomes(found) == {**refused, "static": "accepted", **others}
    assert found.time.runs[-1].sizes["length"] == 6 and found.time.runs[-1].flops > 0


def test_a_graph_with_two_results_by_length_is_right_for_a_part() -> None:
    found = explain("branching")
    assert found.verdict == "ranges"
    cures = [cause.cure for cause in found.causes]
    shown = ", ".join(f"{lo}..{hi}" for lo, hi in found.export.sides)
    assert f"a build makes a program for each of these lengths: {shown}" in cures
    auto = next(a for a in found.export.attempts if a.strategy == "auto")
    assert (auto.outcome, auto.ranges["length"]) == ("narrower", (2, 20))
    assert auto.right and not auto.wrong
    assert found.time.runs[-1].sizes["length"] == 20
    assert any("lengths over 20 aren't served by this program" in note for note in found.notes)


def test_missing_kernels_are_named_with_the_module_that_calls_them() -> None:
    found = explain("inverse", code=True)
    assert found.verdict == "missing-kernels"
    kernels = {use.kernel: use for use in found.program.kernels}
    missing = kernels["aten.linalg_inv_ex"]
    assert missing.kind == "missing" and missing.modules == ("solve",)
    # torch checks its result by another call of the same node, which is no kernel of its own.
    assert [kernel.kernel for kernel in found.program.kernels if kernel.kind == "missing"] == [
        "aten.linalg_inv_ex"
    ]
    assert missing.places[0].short == line_of(explained.Solve.forward, "linalg.inv")
    assert kernels["ec_linear"].kind == "own" and kernels["ec_linear"].calls == 1
    assert kernels["ec_linear"].modules == ("linear",)
    cause = found.causes[0]
    assert cause.kind == "refused" and "the backend torch" in cause.cure


def test_a_program_that_no_code_can_be_generated_for_is_refused_with_the_line() -> None:
    found = explain("picked", code=True)
    assert outcomes(found)["dim"] == "accepted"
    assert found.verdict == "no-code" and "can't generate code" in found.summary
    cause = found.causes[0]
    line = line_of(explained.Picked.forward, "unfold")
    assert cause.kind == "refused" and "the value of u0" in cause.text
    assert cause.place is not None and cause.place.short == line
    assert "torch.where" in cause.cure and "`__cause__`" not in cause.cure
    document = json.loads(json.dumps(found.to_json()))
    assert document["program"]["generated"] is None
    assert document["program"]["code_failure"]["place"]["line"] == cause.place.line
    # Kernels that the lowering put in are still told, with a note that there may be more.
    assert any("aren't known" in note for note in found.notes)
    titles = [table.title for table in explanation_tables(found)]
    assert "Code generation fails" in titles
    page = explain_page(found)
    assert "Code generation fails" in page and "the value of u0" in page


def test_a_machine_without_a_compiler_says_nothing_about_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(arch: str) -> None:
        raise ToolchainError("there is no g++")

    monkeypatch.setattr("edgecompile.backends.inductor.compat.generation.find_toolchain", missing)
    found = explain_model(load("picked"), ExplainRequest(load_target("cpu-x86-64")))
    assert found.verdict == "dynamic" and found.program.code_failure is None
    assert "no code was generated: there is no g++" in found.notes


def test_a_model_of_one_size_has_one_row_of_figures() -> None:
    found = explain("stacked")
    assert found.verdict == "dynamic" and found.length_axis == "rows"
    assert [run.sizes for run in found.time.runs] == [{"rows": 6}]
    assert found.export.padding == "the model has one size, so nothing is padded"
    assert found.export.padding_safe is None
    assert not any("padding" in finding.text for finding in found.causes)
    kept = found.program.unlowered[0]
    assert kept.operator == "aten.matmul" and "(3, 32, 8)" in kept.reason
    assert kept.place is not None
    assert kept.place.short == line_of(explained.Stacked.forward, "@ self.stack")
    assert any(f.kind == "slow" and "not given to our kernels" in f.text for f in found.causes)


def test_what_tensorrt_does_not_take_is_named_with_its_line() -> None:
    line = line_of(explained.Averaged.forward, "roi_align")
    note = f"TensorRT takes no roi_align ({line}): build with the backend triton"
    for target, told in (("cuda-sm90", True), ("cpu-x86-64", False)):
        found = explain_model(load("averaged"), ExplainRequest(load_target(target), code=False))
        assert found.verdict == "dynamic" and (note in found.notes) == told, found.notes
        assert told or not any("TensorRT" in text for text in found.notes)


def test_eager_that_needs_multiples_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecompile.explanation.export.LADDER", LADDER[:2])
    request = ExplainRequest(load_target("cpu-x86-64"), code=False, max_length=32)
    found = explain_model(load("chunked"), request)
    assert found.eager.multiple == 4
    assert {item.sizes["length"] % 4 == 0 for item in found.eager.failures} == {False}
    assert any("multiples of 4 only" in item.text for item in found.causes)
    assert found.program.graph == "static" and found.eager.ranges is not None
    assert found.eager.ranges["length"] == (4, 32)
    assert [run.sizes["length"] for run in found.time.runs] == [16]  # the static graph's


def test_eager_that_fails_below_a_length_leaves_the_rest() -> None:
    loaded = load_model(f"{tiny_models.__file__}:frames")
    wide = replace(loaded, axes={**loaded.axes, "length": AxisLimits(1, 64)})
    check = check_eager(wide, {"batch": (1, 1), "length": (1, 64)}, {"batch": 1, "length": 16})
    assert check.ranges == {"batch": (1, 1), "length": (3, 64)}
    assert {failure.sizes["length"] for failure in check.failures} == {1, 2}
    assert all("Kernel size" in failure.text for failure in check.failures)


def test_a_model_that_fails_while_it_is_loaded_is_explained() -> None:
    request = ExplainRequest(load_target("cpu-x86-64"))
    with pytest.raises(ModelError) as failed:
        load_model(f"{tiny_models.__file__}:failing")
    found = explain_load_failure("failing", request, failed.value)
    assert found.verdict == "eager-fails"
    line = line_of(tiny_models.Failing.forward, "flux capacitor")
    assert found.eager.failures[0].calls[-1].short == line
    with pytest.raises(ModelError) as missing:
        load_model("no/such-model")
    with pytest.raises(ModelError, match="no model"):
        explain_load_failure("no/such-model", request, missing.value)


def test_randomness_and_state_are_no_function_of_the_inputs() -> None:
    found = explain("noisy")
    assert found.verdict == "unfit"
    assert any("other outputs each time" in note for note in found.notes)


# Texts


def test_conditions_are_written_as_in_python() -> None:
    names = {"s77": "length", "s3": "batch"}
    assert readable_guard("Eq(Mod(s77, 16), 0)", names) == "length % 16 == 0"
    assert readable_guard("Ne((s77//4), s3)", names) == "length // 4 != batch"
    assert readable_guard("s77 <= 20", names) == "length <= 20"
    assert readable_guard("not an expression (", names) == "not an expression ("
    assert fixed_size("Eq(s77, 16)", names) == ("length", 16)
    assert fixed_size("Eq(s9, 16)", names) is None


def test_places_are_read_from_traces_and_from_our_own_messages() -> None:
    torch_file = torch.nn.modules.conv.__file__
    trace = (
        'File "/home/me/model.py", line 7, in forward\n    y = self.conv(x)\n'
        f'  File "{torch_file}", line 385, in forward\n    return self._conv_forward(x)'
    )
    place = line_of_trace(trace)
    assert place is not None and str(place) == "/home/me/model.py:7 in forward: y = self.conv(x)"
    assert line_of_text(f"its code fixes length (at {place})") == place
    assert line_of_text("nothing of the kind") is None
    assert line_of_trace(None) is None


def test_like_modules_are_of_one_kind() -> None:
    assert module_kind("model.encoder.layer.11.output.dense") == "encoder.layer.*.output.dense"
    assert module_kind("model") == ""
    assert format_flops(6.04e9) == "6.04 GFLOP"


def test_calls_are_read_from_generated_code() -> None:
    wrapper = """
    extern AOTITorchError aoti_torch_cpu_ec_linear(AtenTensorHandle);
    // Topologically Sorted Source Nodes: [view, linear], Original ATen: [aten.view, aten.addmm]
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(buf0, arg0, 1L));
    // Topologically Sorted Source Nodes: [inv], Original ATen: [aten.linalg_inv_ex]
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_proxy_executor_call_function(proxy_executor, 0));
    // Topologically Sorted Source Nodes: [sums], Original ATen: [aten.scatter_reduce]
    aoti_torch_cpu_scatter_reduce_two_out(buf3, buf3,0,arg1,buf2, "sum",1);
    """
    calls = list(extern_calls(wrapper))
    assert [(c.name, c.nodes, c.native) for c in calls] == [
        ("addmm_out", ("view", "linear"), True),
        ("aten.linalg_inv_ex", ("inv",), False),
        ("scatter_reduce_two_out", ("sums",), True),
    ]
    assert {"aoti_torch_cpu_ec_linear", "aoti_torch_cpu_bmm_out"} <= runtime_kernels()


# Output


def test_the_document_is_json_and_every_key_is_documented() -> None:
    text = (DOCS / "explain.md").read_text(encoding="utf-8")
    for name in ("sixteens", "stacked", "data_dependent"):
        document = json.loads(json.dumps(explain(name).to_json(), allow_nan=False))
        assert document["version"] == 2
        assert document["verdict"] in VERDICTS
        for path in sorted(set(key_paths(document))):
            assert all(f"`{key}`" in text for key in path.split(".")), path
    for verdict in VERDICTS:
        assert f"`{verdict}`" in text


def test_the_page_shows_causes_tables_and_plots() -> None:
    found = explain("stacked")
    page = explain_page(found)
    assert page == explain_page(found)
    assert len(re.findall(r"<svg ", page)) == 1
    assert "not given to our kernels" in page
    for svg in re.findall(r"<svg .*?</svg>", page, flags=re.S):
        parse_drawing(svg)
        assert read_words(svg)
    bare = explain_page(explain("data_dependent"))
    assert "torch.where" in bare and "<h2>Export</h2>" in bare
    titles = {table.title for table in explanation_tables(found)}
    assert {"Export strategies", "Kernels", "Not given to our kernels", "One run"} <= titles


def test_the_command_writes_json_a_page_and_its_remarks_apart(tmp_path: Path) -> None:
    arguments = [
        *("explain", f"{tiny_models.__file__}:causal", "--no-code", "--max-length", "31"),
        *("--output", str(tmp_path / "why.html")),
    ]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["verdict"] == "dynamic"
    assert [run["sizes"]["length"] for run in document["time"]["runs"]] == [16, 31]
    assert "<svg" in (tmp_path / "why.html").read_text(encoding="utf-8")
    shown = CliRunner().invoke(cli, ["explain", f"{tiny_models.__file__}:failing"])
    assert shown.exit_code == 0 and "flux capacitor" in shown.stdout
    nothing = CliRunner().invoke(cli, ["explain", "no/such-model"])
    assert nothing.exit_code == ModelError.exit_code and not nothing.stdout


def test_a_folder_is_explained_for_the_task_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "gpt2", "gpt2", "LMHeadModel")
    done = CliRunner().invoke(
        cli, ["explain", str(folder), "--task", "logits", "--no-code", "--json"]
    )
    assert done.exit_code == 0, done.stderr
    # With a cache it would have an axis for that, too.
    assert set(json.loads(done.stdout)["eager"]["ranges"]) == {"batch", "length"}
