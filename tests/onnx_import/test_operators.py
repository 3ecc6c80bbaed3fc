"""Every operator that is taken, by ONNX's own tests of nodes."""

import fnmatch
import warnings

import numpy as np
import onnx
import pytest

from edgecompile.errors import ModelError
from edgecompile.onnx_import import table
from edgecompile.onnx_import.elements import read_tensor
from edgecompile.onnx_import.importer import import_onnx

_UNSIGNED = "torch has no arithmetic for uint16, uint32 and uint64"
_TYPES = "the element type isn't supported"
_RESIZE = "this way of resizing isn't supported"
_NARROW = (
    "add",
    "div",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "max",
    "min",
    "mod",
    "sub",
)
#: The tests that don't pass, by patterns of their names, and why. Each of them has to fail.
_NOT_TAKEN = {
    **{f"test_{name}_uint{bits}": _UNSIGNED for name in _NARROW for bits in (16, 32, 64)},
    "test_bitwise_not_3d": _UNSIGNED,
    "test_cast*FLOAT8*": _TYPES,
    "test_cast*FLOAT4*": _TYPES,
    "test_cast*INT[24]*": _TYPES,
    "test_*quantizelinear_*e[45]m*": _TYPES,
    "test_*quantizelinear_*int[24]": _TYPES,
    "test_*quantizelinear_float4*": _TYPES,
    "test_equal_string*": _TYPES,
    "test_identity_sequence": "a sequence is no tensor",
    "test_identity_opt": "an optional value is no tensor",
    "test_averagepool_*_dilations*": "torch's pools have no dilations",
    "test_lppool_2d_dilations": "torch's pools have no dilations",
    "test_batchnorm_*_training_mode": "a program doesn't train",
    "test_training_dropout*": "a program doesn't train",
    "test_maxpool_with_argmax_*": "indices count along all dimensions, which torch's don't",
    "test_reduce_m*_empty_set*": "torch refuses to reduce nothing",
    "test_resize_*tf_crop_and_resize*": _RESIZE,
    "test_resize_*_antialias": _RESIZE,
    "test_resize_*_not_larger": _RESIZE,
    "test_resize_*_not_smaller": _RESIZE,
    "test_resize_downsample_scales_*_align_corners": "ONNX Runtime rounds the size, as we do",
}
#: Tests of Loop and Scan that aren't tried: lists of tensors, a Scan of before opset 9, a number of rounds
#: that depends on values.
_ROUNDS_NOT_TAKEN = ("*seq*", "test_scan_sum", "test_range_*")
#: Operators for which no test of ONNX passes; tests/onnx_import/test_others.py has them.
_ELSEWHERE = ("SimplifiedLayerNormalization",)


def _tensor(value):
    if not isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.from_array(np.asarray(value))
    return read_tensor(value, "a value")


@pytest.fixture(scope="module")
def all_cases():
    """ONNX's tests of nodes."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.kind == "node"]


@pytest.fixture(scope="module")
def cases(all_cases):
    """The tests of one operator alone, by operator."""
    found = {}
    for case in all_cases:
        kinds = {(node.domain, node.op_type) for node in case.model.graph.node}
        if len(kinds) == 1 and not case.name.endswith("_expanded"):
            domain, name = next(iter(kinds))
            if domain == "":
                found.setdefault(name, []).append(case)
    return found


def _settle_sizes(model, values):
    """Makes constants of inputs that are sizes or axes: what they are at run time no program can follow."""
    there = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        places = {
            place for row in table._TABLE.get(("", node.op_type), ()) for place in row.numbers
        }
        places |= {"Pad": {2}, "Dropout": {2}, "Range": {0, 1, 2}, "Loop": {0, 1}}.get(
            node.op_type, set()
        )
        for place in places:
            if place < len(node.input) and node.input[place] in values.keys() - there:
                value = values[node.input[place]]
                array = value if isinstance(value, np.ndarray) else np.asarray(value)
                made = onnx.numpy_helper.from_array(array, node.input[place])
                model.graph.initializer.append(made)


def _check(case, path):
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    names = [value.name for value in model.graph.input]
    _settle_sizes(model, dict(zip(names, case.data_sets[0][0], strict=False)))
    for opset in model.opset_import:
        opset.version = max(opset.version, 7)
    path.write_bytes(model.SerializeToString())
    imported = import_onnx(path, plain=False)
    for inputs, outputs in case.data_sets:
        values = dict(zip(names, inputs, strict=False))
        got = imported.module(*(_tensor(values[value.name]) for value in imported.inputs))
        for given, wanted in zip(got, outputs, strict=True):
            expected = _tensor(wanted)
            assert (given.dtype, given.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(
                given.double().numpy(), expected.double().numpy(), rtol=case.rtol, atol=case.atol
            )


@pytest.mark.parametrize("name", table.names())
def test_passes_the_tests_of_onnx(name, cases, tmp_path):
    passed = 0
    for case in cases.get(name, ()):
        excluded = any(fnmatch.fnmatchcase(case.name, pattern) for pattern in _NOT_TAKEN)
        try:
            _check(case, tmp_path / "model.onnx")
        except (ModelError, AssertionError) as error:
            if not excluded:
                raise AssertionError(f"{case.name}: {error}") from error
        else:
            assert not excluded, f"{case.name} passes, and _NOT_TAKEN says it doesn't"
            passed += 1
    assert (passed == 0) == (name in _ELSEWHERE)


def test_passes_the_tests_of_rounds(all_cases, tmp_path):
    passed = []
    for case in all_cases:
        operators = {node.op_type for node in case.model.graph.node}
        if operators & {"Loop", "Scan"} and not any(
            fnmatch.fnmatchcase(case.name, pattern) for pattern in _ROUNDS_NOT_TAKEN
        ):
            _check(case, tmp_path / "model.onnx")
            passed.append(case.name)
    assert {"test_loop11", "test_scan9_multi_state"} < set(passed)
    assert sum(name.startswith("test_linear_attention") for name in passed) > 8
