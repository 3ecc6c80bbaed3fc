"""Arguments refused before any work begins, with a hint."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgecompile
from edgecompile import BuildOptions, LoadOptions, PlanOptions
from edgecompile.api.models import kept_state, read_model_argument
from edgecompile.api.traffic_sources import find_sources
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import EdgecompileError, InputError, LengthsError, ModelError, UsageError
from edgecompile.loaders.load import load_model
from tests.api.tiny import AXES, EXAMPLE, Tiny, program

PLAN = BucketPlan("length", (Bucket("exact", (("length", AxisRange(1, 9, 3)),)),))
NO_MODULE: dict[str, Any] = {"example_inputs": None, "axes": None}
GIVEN: dict[str, Any] = {"example_inputs": EXAMPLE, "axes": AXES, "lengths": [3, 5]}


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Building anything fails the test; what is written lands in a folder of its own."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a build began")

    monkeypatch.setattr("edgecompile.pipeline.build.build", refuse)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (5, {}, "`model` is an int"),
        (None, {}, "`model` is a NoneType"),
        (Tiny, {}, "`model` is the class Tiny"),
        (Tiny(), {"example_inputs": None}, "without `example_inputs`"),
        (Tiny(), {"axes": None}, "no dimension of Tiny's inputs varies"),
        (Tiny(), {"axes": {}}, "no dimension of Tiny's inputs varies"),
        (Tiny(), {"axes": {"x": {}}}, "no dimension of Tiny's inputs varies"),
        (Tiny(), {"axes": {"y": {1: "length"}}}, "names the input 'y', which doesn't exist"),
        (
            Tiny(),
            {"axes": {"x": {3: "length"}}},
            "names dimension 3 of 'x', which has 3, the first",
        ),
        (Tiny(), {"axes": {"x": {1: 5}}}, "5 is neither a name for an axis nor a sum"),
        (Tiny(), {"axes": "length"}, "axes isn't of the form"),
        (Tiny(), {"example_inputs": 5}, "no dict of example tensors"),
        (Tiny(), {"example_inputs": {"x": 5}}, "'x' is a int, not a tensor"),
        (Tiny(), {"example_inputs": {"y": EXAMPLE["x"]}}, "forward takes no 'y'"),
        (Tiny().to("meta"), {}, "weights are on meta"),
        ("net.py:make", {}, "`example_inputs` and `axes`: for an nn.Module"),
        (Tiny(), {"texts": ["a"]}, "`lengths` and `texts` exclude each other"),
        (Tiny(), {"texts": ["a"], "lengths": None}, "`texts` need a `tokenizer`"),
        (Tiny(), {"texts": 5, "lengths": None, "tokenizer": "t.json"}, "`texts` is an int"),
        (Tiny(), {"texts": [5], "lengths": None, "tokenizer": "t.json"}, "`texts` holds an int"),
        (Tiny(), {"tokenizer": "t.json"}, "`tokenizer` goes with `texts`"),
        (Tiny(), {"stats": ["a.json"]}, "`lengths` and `stats` exclude each other"),
        (Tiny(), {"stats": 5, "lengths": None}, "`stats` is an int"),
        (Tiny(), {"stats": [5], "lengths": None}, "`stats` is 5"),
        (Tiny(), {"lengths": 5}, "`lengths` is an int"),
        (Tiny(), {"lengths": [(2, 3)]}, "pairs of batch and length, but Tiny has the axes length"),
        (Tiny(), {"target": 5}, "`target` is 5"),
        (Tiny(), {"output": 5}, "`output` is 5"),
        (Tiny(), {"batch": 0}, "`batch` is 0"),
        (Tiny(), {"batch": (4, 2)}, "`batch` is (4, 2)"),
        (Tiny(), {"batch": "8"}, "`batch` is '8'"),
        (torch.jit.script(Tiny()), {}, "module is TorchScript"),
        (Tiny(), {"batch": 4}, "batches of 4 are asked for, but none of its axes is 'batch'"),
        (Tiny(), {"axes": {}, "lengths": None, "batch": (1, 4)}, "batches of 1 to 4 are asked for"),
        (Tiny(), {"build_options": BuildOptions(profile="server")}, "batches of 1 to 32 are asked"),
        (Tiny(), {"max_length": 2**31}, "`max_length` is 2147483648"),
        (Tiny(), {"max_length": -1}, "`max_length` is -1"),
        (Tiny(), {"max_length": True}, "`max_length` is True"),
        (Tiny(), {"precision": "fp4"}, "`precision` is 'fp4'"),
        (Tiny(), {"precision": "fp16"}, "does not support `precision` fp16"),
        (Tiny(), {"quick": 1}, "`quick` is 1"),
        (Tiny(), {"plan": 5}, "`plan` is 5"),
        (Tiny(), {"quick": True, "plan": PLAN}, "`quick`: `plan` leaves nothing to choose"),
        (
            Tiny(),
            {"quick": True, "plan_options": PlanOptions(buckets=2)},
            "`buckets`: `quick` leaves",
        ),
        (Tiny(), {"load_options": LoadOptions(pooling="mean")}, "`pooling`: for folders"),
        (Tiny(), {"load_options": LoadOptions(max_context=9)}, "`max_context` is for language"),
        (
            "m:make",
            {**NO_MODULE, "load_options": LoadOptions(softmax=True)},
            "which 'm:make' isn't",
        ),
        (Tiny(), {"plan_options": {"buckets": 2}}, "`plan_options` is a dict"),
        (Tiny(), {"load_options": LoadOptions(max_length=5)}, "`load_options` has max_length"),
        (
            Tiny(),
            {"build_options": BuildOptions(max_error=0.1)},
            "`max_error` goes with `precision`",
        ),
        (Tiny(), {"build_options": BuildOptions(jetpack="6.2")}, "does not support `jetpack` 6.2"),
        (Tiny(), {"progress": 5}, "`progress` is an int"),
    ],
)
def test_arguments_that_make_no_sense(model: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        edgecompile.build(model, **{**GIVEN, **changes})
    assert message in caught.value.message
    assert caught.value.hint
    assert isinstance(caught.value, EdgecompileError)


def test_pairs_of_other_axes_than_batch_and_length() -> None:
    axes = {"x": {1: "length", 2: "width"}}
    with pytest.raises(UsageError, match="are pairs of batch and length") as caught:
        edgecompile.build(Tiny(), **{**GIVEN, "axes": axes, "lengths": [(2, 3)]})
    assert 'for length and width give {"axes": ["length", "width"], "sizes": [' in str(
        caught.value.hint
    )


def test_paths_that_are_none() -> None:
    """What no file system can have as a name."""
    for text in ("a\0b", "\ud800", ""):
        for name in ("lengths", "texts", "stats", "target", "output", "plan", "work_dir", "model"):
            given = {"model": Tiny(), **GIVEN, "lengths": None, name: text}
            given |= NO_MODULE if name == "model" else {}
            with pytest.raises(UsageError, match=f"`{name}` is {re.escape(repr(text))}"):
                edgecompile.build(**given)
        with pytest.raises(UsageError, match="`calibration` is"):
            PlanOptions(calibration=text)
        with pytest.raises(UsageError, match="`bundle` is"):
            edgecompile.verify(text)


def test_fields_of_a_specification_that_make_no_sense() -> None:
    for field, words in (
        ("pad", "a dict by"), ("bounds", "a dict by"), ("masks", "a list of"), ("outputs", "a list of"),
        ("length_axis", "the name of"), ("name", "a text"), ("tokenizer", "a path"),
    ):  # fmt: skip
        for value in (5, [5], np.array([1, 2])):
            spec = edgecompile.ModelSpec(Tiny(), EXAMPLE, AXES, **{field: value})
            with pytest.raises(UsageError, match=f"{field} is an? .*, not {words}"):
                edgecompile.build(spec, lengths=[3])
    with pytest.raises(UsageError, match="max_length is"):
        edgecompile.build(
            edgecompile.ModelSpec(Tiny(), EXAMPLE, AXES, max_length=2**31), lengths=[3]
        )


def test_an_exported_program_without_a_dynamic_dimension() -> None:
    with pytest.raises(UsageError, match="no dimension of model's inputs varies") as caught:
        edgecompile.build(program(dynamic=False), lengths=[3, 5])
    assert "dynamic_shapes" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="an ExportedProgram says itself"):
        edgecompile.build(program(), lengths=[3], axes=AXES)
    with pytest.raises(ModelError, match="batches of 4 are asked for"):
        load_model(program(), LoadOptions(batch=(4, 4)))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "no lengths"),
        ([-1], "start at 1"),
        ([3, float("nan")], "finite"),
        (np.array([1.5]), "whole number"),
        ({3: 0}, "counts start at 1"),
        ("missing.csv", "No such file"),
    ],
)
def test_lengths_that_are_none(lengths: Any, message: str) -> None:
    with pytest.raises(LengthsError, match=message) as caught:
        edgecompile.build(Tiny(), **{**GIVEN, "lengths": lengths})
    assert "--" not in (caught.value.hint or "")


def test_lengths_are_missing() -> None:
    with pytest.raises(UsageError, match="the lengths of the traffic are missing"):
        edgecompile.build(Tiny(), **{**GIVEN, "lengths": None})


def test_a_module_without_lengths_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build goes on with the model that was loaded to see whether lengths are missing."""
    requests: list[Any] = []
    monkeypatch.setattr(
        "edgecompile.pipeline.build.build", lambda request, progress: requests.append(request)
    )
    edgecompile.build(Tiny(), example_inputs=EXAMPLE, axes={"x": {0: "batch"}}, batch=(1, 4))
    (request,) = requests
    assert load_model(request.model, request.load) is request.model
    assert request.model.axes["batch"].hi == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlanOptions(buckets=0),
        lambda: PlanOptions(max_size="many"),
        lambda: PlanOptions(max_build_time=-1.0),
        lambda: PlanOptions(mode="padded"),
        lambda: PlanOptions(runs=0),
        lambda: PlanOptions(measure_again=1),  # type: ignore[arg-type]
        lambda: BuildOptions(threads=1.5),  # type: ignore[arg-type]
        lambda: BuildOptions(max_error=2),
        lambda: BuildOptions(seed=None),  # type: ignore[arg-type]
        lambda: BuildOptions(backend="onnx"),
        lambda: BuildOptions(jetpack=6.2),  # type: ignore[arg-type]
        lambda: PlanOptions(runs=10**400),
        lambda: PlanOptions(buckets=3, max_buckets=2),
        lambda: BuildOptions(alternatives=4),
        lambda: LoadOptions(batch=(4, 2)),
        lambda: LoadOptions(batch=np.array([1, 2])),  # type: ignore[arg-type]
        lambda: LoadOptions(max_length="9"),  # type: ignore[arg-type]
        lambda: LoadOptions(max_context=0),
        lambda: LoadOptions(name=5),  # type: ignore[arg-type]
        lambda: LoadOptions(name="a\0b"),
        lambda: LoadOptions(pad="x"),  # type: ignore[arg-type]
        lambda: LoadOptions(pad={"x": None}),  # type: ignore[dict-item]
        lambda: LoadOptions(pad={"x": float("nan")}),
        lambda: LoadOptions(pad={5: 0}),  # type: ignore[dict-item]
        lambda: LoadOptions(task="translate"),
        lambda: LoadOptions(pooling="x"),
        lambda: LoadOptions(normalize="x"),  # type: ignore[arg-type]
        lambda: LoadOptions(softmax=5),  # type: ignore[arg-type]
        lambda: LoadOptions(token_type_ids=5),  # type: ignore[arg-type]
        lambda: LoadOptions(image_size=5),  # type: ignore[arg-type]
        lambda: LoadOptions(image_size=((8, 4), (8, 8))),
    ],
)
def test_options_out_of_range(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.hint or ":" in caught.value.message


def test_quantities_may_have_units() -> None:
    fields = PlanOptions(max_size="120MB", max_build_time="10min")
    assert fields.max_size == 120_000_000 and fields.max_build_time == 600
    assert LoadOptions(image_size=(8, [4, 8])).image_size == ((8, 8), (4, 8))  # type: ignore[arg-type]
    assert type(PlanOptions(buckets=np.int64(3)).buckets) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [edgecompile.plan, edgecompile.explain])
def test_other_functions_check_the_same(function: Any) -> None:
    if function is edgecompile.plan:
        with pytest.raises(UsageError, match="exclude each other"):
            function(Tiny(), **GIVEN, texts=["a"])
    with pytest.raises(UsageError, match="without `example_inputs`"):
        function(Tiny())
    with pytest.raises(ModelError, match="no model"):
        function("./missing")


def test_verify_checks_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`bundle` is 5"):
        edgecompile.verify(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="go with `model`"):
        edgecompile.verify("a.ecb", axes=AXES)
    generates = Tiny()
    generates.generation_config = None
    # Whatever the bundle is, which isn't there.
    for model, changes, message in (
        (5, {}, "`model` is an int"),
        (Tiny(), {}, "without `example_inputs`"),
        (Tiny(), {"example_inputs": EXAMPLE, "axes": 5}, "axes isn't of the form"),
        (None, {"check": "x"}, "`check` is 'x'"),
        (None, {"seed": -1}, "`seed` is -1"),
    ):
        with pytest.raises(UsageError, match=message):
            edgecompile.verify(tmp_path / "missing.ecb", model, **changes)
    given = {"example_inputs": EXAMPLE, "axes": AXES}
    for model, changes in ((None, {}), (Tiny(), given), (generates, {})):
        with pytest.raises(edgecompile.errors.BundleError):
            edgecompile.verify(tmp_path / "missing.ecb", model, **changes)
    for value in (5, None, [], np.array([1, 2])):
        with pytest.raises(InputError, match="path is"):
            edgecompile.open_bundle(value)
        for name in ("verify", "mode", "fallback"):
            with pytest.raises(InputError, match=f"{name} is"):
                edgecompile.open_bundle("missing.ecb", **{name: [value]})
    with pytest.raises(UsageError, match="`precision` is 'auto'"):
        edgecompile.explain(Tiny(), example_inputs=EXAMPLE, axes=AXES, precision="auto")
    with pytest.raises(UsageError, match="`precision` bf16 is for CPUs"):
        edgecompile.explain(
            Tiny(), example_inputs=EXAMPLE, axes=AXES, precision="bf16", target="jetson-orin-nano"
        )


def test_every_kind_of_model_loads() -> None:
    specs = (
        (Tiny(), EXAMPLE, AXES, "Tiny"),
        (Tiny(), [EXAMPLE["x"]], AXES, "Tiny"),
        (program(), None, None, "model"),
        ({"module": Tiny(), "inputs": EXAMPLE, "axes": AXES, "name": "mine"}, None, None, "mine"),
        (edgecompile.ModelSpec(Tiny(), EXAMPLE, AXES), None, None, "model"),
    )
    for model, inputs, axes, name in specs:
        subject = read_model_argument(model, inputs, axes)
        subject.check(varying=True)
        assert subject.name == name and subject.in_memory
        loaded = load_model(subject.model, subject.options)
        assert loaded.length_axis == "length" and not loaded.source.lasting
        assert loaded.run({"x": torch.ones(1, 3, 8)})["output"].shape == (1, 3, 4)


def test_weights_of_an_exported_program_have_to_be_here() -> None:
    made = program()
    for name, tensor in made.state_dict.items():
        made.state_dict[name] = tensor.to("meta")
    with pytest.raises(ModelError, match="weights on meta"):
        load_model(made)


def test_a_module_stays_as_it_was() -> None:
    module = Tiny().train()
    module.drop.eval()
    module.first.weight.requires_grad_(False)
    with kept_state(read_model_argument(module, EXAMPLE, AXES).model):
        module.eval().requires_grad_(True)
        module.second.weight.requires_grad_(False)
    assert module.training and module.first.training and not module.drop.training
    assert not module.first.weight.requires_grad and module.second.weight.requires_grad


def test_half_precision_weights_stay_what_they_are() -> None:
    module = Tiny().half()
    subject = read_model_argument(module, EXAMPLE, AXES)
    assert load_model(subject.model).run({"x": torch.ones(1, 3, 8)})["output"].shape == (1, 3, 4)
    assert module.first.weight.dtype == torch.float16


def test_every_kind_of_lengths(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text(json.dumps({"3": 1, "5": 2}))
    for lengths in (
        [5, 3, 5], (5, 3, 5), np.array([5, 3, 5]), {3: 1, 5: 2}, iter([5, 3, 5]), range(3, 6, 2),
        "lengths.json", tmp_path / "lengths.json",
    ):  # fmt: skip
        with find_sources(lengths=lengths).read() as traffic:
            assert traffic.lengths.lengths == (3, 5) and traffic.texts is None


def test_texts_as_a_list_or_a_file(tiny_model: Path, tmp_path: Path) -> None:
    texts = ["the cat sat", "on\nthe mat", "the"]
    (tmp_path / "texts.txt").write_text("the cat sat\non the mat\nthe\n")
    found = []
    for given in (texts, tuple(texts), (text for text in texts), "texts.txt"):
        with find_sources(tiny_model, texts=given).read() as traffic:
            assert traffic.texts is not None and traffic.texts.file.is_file()
            found.append((traffic.lengths.lengths, traffic.lengths.counts))
    assert len(set(found)) == 1
    with find_sources(tiny_model, texts=texts).read() as traffic:
        file = traffic.texts.file  # type: ignore[union-attr]
        assert traffic.lengths.source == "texts (tokens)"
    assert not file.exists()
    with pytest.raises(LengthsError, match="no text"):
        find_sources(tiny_model, texts=["", " "])


@pytest.mark.parametrize(
    ("old", "backend", "found"),
    [
        ("torch", "auto", "torch"),
        ("torch", "torch", "torch"),
        ("native", "auto", "auto"),  # the default of every target, those with a GPU included
        ("native", "cpu", "cpu"),
    ],
)
def test_the_old_name_of_the_backend_is_understood(old: str, backend: str, found: str) -> None:
    with pytest.warns(DeprecationWarning, match='give `backend="(torch|cpu)"`') as caught:
        options = BuildOptions(runtime=old, backend=backend)
    assert caught[0].filename == __file__
    assert (options.backend, options.runtime) == (found, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert replace(options, seed=3).backend == found  # a copy is no further use of the name


@pytest.mark.parametrize(
    ("old", "backend"),
    [("torch", "cpu"), ("native", "torch"), ("torch", "triton"), ("native", "both")],
)
def test_two_names_of_the_backend_that_differ_are_refused(old: str, backend: str) -> None:
    with pytest.raises(UsageError, match=f"`runtime={old}` and `backend={backend}` contradict"):
        BuildOptions(runtime=old, backend=backend)
    with pytest.raises(UsageError, match="`runtime` is 'onnx'"):
        BuildOptions(runtime="onnx", backend=backend)
