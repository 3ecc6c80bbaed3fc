"""finish and runs on TensorRT 8.6: the adapter, against a FAKE with 8.6's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fake_gpu.bundles import FOLDER
from tests.fake_gpu.rig import Rig
from tests.finish.outcome import check_served
from tests.runtime.recipes import OLDER

V8 = {"FAKE_TRT_VERSION": "8.6.0"}


@pytest.fixture
def rig8(rig: Rig) -> Rig:
    """A bundle for TensorRT 8.6 on a device that has it."""
    rig.bundle.recipe["tensorrt"] = {"least": "8.6", "below": "8.7"}
    rig.bundle.recipe.update(opset=17, strongly_typed=False, float32=["sum"])
    rig.bundle.set_opset(17)
    rig.environment.update(V8)
    return rig


def test_a_bundle_is_finished_and_served(rig8: Rig) -> None:
    report = rig8.finish().report
    assert report["state"] == "finished" and report["device"]["tensorrt"].startswith("8.6.0")
    assert set(report["selftest"]["modes"]) == {"planned", "default", "reduce-overhead"}
    assert rig8.calls("set_flag") == ["set_flag FP16"]
    assert rig8.calls("set_output_type") == []
    assert rig8.calls("set_preview_feature") == ["set_preview_feature PROFILE_SHARING_0806"]
    check_served(rig8, [3, 20], ("default", "reduce-overhead"))


def test_one_bundle_is_for_both_releases(rig: Rig) -> None:
    rig.bundle.recipe["also"] = [OLDER | {"onnx": "model-8.6.onnx"}]
    rig.bundle.recipe["tensorrt"] = {"least": "10.3", "below": "10.4"}
    rig.bundle.set_opset(17)
    rig.bundle.files[FOLDER + "model-8.6.onnx"] = rig.bundle.files[FOLDER + "model.onnx"]
    newer = rig.finish().report
    assert rig.calls("set_flag") == [] and newer["device"]["tensorrt"].startswith("10.3")
    check_served(rig, [3, 20], ("default",))
    rig.environment.update(V8)
    older = rig.finish().report
    assert older["state"] == "finished" and older["key"] != newer["key"]
    assert rig.calls("set_flag") == ["set_flag FP16"]
    assert any("model-8.6.onnx" in line for line in rig.calls("parse_from_file"))
    check_served(rig, [3, 20], ("default",))
    done = rig.finish(FAKE_TRT_VERSION="10.7.0")
    assert done.code == 61
    assert "for 10.3 and later, below 10.4, or for 8.6 and later, below 8.7" in done.stderr


def test_float16_that_is_wrong_is_built_again_with_pins(rig8: Rig) -> None:
    report = rig8.finish(FAKE_TRT_HALF="wrong").report
    assert [item["outcome"] for item in report["attempts"]] == ["built", "built"]
    assert report["built"]["pinned"] and len(report["notes"]) >= 1
    assert "some values pinned to float32: the engine doesn't reproduce" in "".join(report["notes"])
    assert rig8.calls("set_output_type") == ["set_output_type sum FLOAT"]
    assert "OBEY_PRECISION_CONSTRAINTS" in "".join(rig8.calls("set_flag"))
    check_served(rig8, [3, 20], ("default",))


def test_an_engine_that_tensorrt_can_t_open_is_built_again_with_fewer_profiles(rig8: Rig) -> None:
    counts = rig8.folder / "counts"
    counts.mkdir()
    report = rig8.finish(
        FAKE_TRT_FAIL="create_execution_context:1", FAKE_TRT_COUNTS=str(counts)
    ).report
    assert [item["profiles"] for item in report["attempts"]] == [2, 1]
    first, second = report["attempts"]
    assert first["workspace_bytes"] == second["workspace_bytes"] and report["profile_of"] == [0, 0]
    assert "at most 1 profile: " in "".join(report["notes"])
    check_served(rig8, [3, 40], ("default",))


def test_an_engine_that_never_opens_leaves_nothing(rig8: Rig) -> None:
    done = rig8.finish(FAKE_TRT_FAIL="create_execution_context:*")
    assert done.code == 29 and "No Myelin Error exists" in done.stderr
    assert rig8.names() == [] and list((rig8.cache / "timing").iterdir()) == []


def test_words_about_memory_that_don_t_say_so(rig8: Rig) -> None:
    """Only a prediction, and --force against it, makes smaller attempts of them."""
    short = {"FAKE_TRT_MEMORY": str(1 << 20)}
    done = rig8.finish(**short)
    assert done.code == 60 and "Cask (no further information)" in done.stderr
    assert "invalid resource handle" in done.stderr and "trying again" not in done.stderr
    rig8.bundle.recipe["predicted"]["scratch_bytes"][1] = 9 << 30
    rig8.bundle.write()
    done = rig8.finish("--force", **short)
    assert done.code == 62 and done.stderr.count("trying again") == 3
    assert rig8.names() == []


def test_too_small_a_workspace_is_told_in_tensorrt_s_words(rig8: Rig) -> None:
    least = {"FAKE_TRT_LEAST_WORKSPACE": str(1 << 20)}
    done = rig8.finish("--workspace", "65536", **least)
    assert done.code == 60 and "due to insufficient workspace" in done.stderr
    assert rig8.finish(**least).report["state"] == "finished"


@pytest.mark.parametrize(
    "data",
    [
        b'{"device": "another", "entries": []}',
        pytest.param(b"\0\1\2", marks=pytest.mark.slow),
    ],
)
def test_a_timing_cache_of_no_use_is_replaced(rig8: Rig, data: bytes) -> None:
    assert rig8.finish_before().code == 0
    (cache,) = (rig8.cache / "timing").iterdir()
    good = cache.read_bytes()
    cache.write_bytes(data)
    assert rig8.finish("--force").code == 0
    assert cache.read_bytes() == good


@pytest.mark.parametrize("pins", [[], pytest.param(["sum"], marks=pytest.mark.slow)])
def test_float16_that_several_profiles_spoil_is_built_again_with_fewer(
    rig8: Rig, pins: list[str]
) -> None:
    rig8.bundle.recipe["float32"] = pins
    report = rig8.finish(FAKE_TRT_HALF="profiles").report
    assert report["built"]["profiles"] == (
        2 if pins else 1
    )  # pins, where there are any, come first
    assert report["built"]["pinned"] == bool(pins)
    check_served(rig8, [3, 40], ("default",))


def test_int8_goes_without_float16(rig8: Rig) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(rig8.bundle.files[FOLDER + "model.onnx"])
    one = onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0])
    zero = onnx.helper.make_tensor("zero", onnx.TensorProto.INT8, [], [0])
    model.graph.initializer.extend([one, zero])
    node = next(item for item in model.graph.node if "kept" in item.input)
    node.input[0] = "whole"
    model.graph.node.insert(
        2, onnx.helper.make_node("QuantizeLinear", ["kept", "one", "zero"], ["q"], "quantize")
    )
    model.graph.node.insert(
        3, onnx.helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["whole"], "widen8")
    )
    rig8.bundle.files[FOLDER + "model.onnx"] = model.SerializeToString()
    assert rig8.finish().report["state"] == "finished"
    assert rig8.calls("set_flag") == ["set_flag INT8"]


def test_a_bundle_in_float32_leaves_the_builder_no_choice(rig8: Rig) -> None:
    del rig8.bundle.recipe["float32"]
    rig8.bundle.recipe["strongly_typed"] = True
    assert rig8.finish().report["state"] == "finished"
    assert rig8.calls("set_flag") == rig8.calls("set_output_type") == []


def test_buckets_that_share_a_profile_run_side_by_side(rig8: Rig) -> None:
    # Ended by the system: TensorRT's own words wouldn't tell that it is memory.
    short = {"FAKE_TRT_MEMORY": str((64 << 20) + (1 << 25) + (1 << 26)), "FAKE_TRT_OOM": "kill"}
    report = rig8.finish(**short).report
    assert set(report["profile_of"]) == {0}
    check_served(rig8, [3, 20], ("default",))


def test_the_parser_names_nodes_by_their_numbers(rig8: Rig) -> None:
    done = rig8.finish(FAKE_TRT_LACKS="Gather")
    assert done.code == 60
    assert "node 0 - (-): no importer registered for op: Gather" in done.stderr


def test_bundles_of_other_releases_are_refused_both_ways(rig: Rig) -> None:
    done = rig.finish(**V8)
    assert done.code == 61 and "TensorRT 8.6.0" in done.stderr and "10.3 and later" in done.stderr
    rig.bundle.recipe["tensorrt"] = {"least": "8.6", "below": "8.7"}
    rig.bundle.write()
    done = rig.finish()
    assert done.code == 61 and "for 8.6 and later, below 8.7" in done.stderr


@pytest.mark.parametrize(("value", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**40), False)])
def test_ids_beyond_int32_are_refused_and_never_wrapped(value: int, fits: bool) -> None:
    from edgecompile.runtime.base.errors import InputError
    from edgecompile.runtime.format.manifest.schema import TensorSpec
    from edgecompile.runtime.gpu.program import check_range, list_limits

    spec = TensorSpec("ids", "int64", (1, "length"))
    ((index, limits),) = list_limits([spec], {"ids": np.dtype("int32")})
    array: Any = np.array([[0, value]])
    assert index == 0
    if fits:
        check_range("bucket 0", spec, array, limits)
        return
    with pytest.raises(InputError, match=rf"ids has values from .*{value}.*int32, -2147483648 to"):
        check_range("bucket 0", spec, array, limits)


def test_ids_whose_bounds_fit_are_not_looked_at() -> None:
    from edgecompile.runtime.format.manifest.schema import TensorSpec
    from edgecompile.runtime.gpu.program import list_limits

    spec = TensorSpec("ids", "int64", (1, "length"), bounds=(0, 30521))
    assert list_limits([spec], {"ids": np.dtype("int32")}) == []
    assert list_limits([spec], {"ids": np.dtype("int64")}) == []
