"""The normalization of observations and actions, read from the files of LeRobot's processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from edgecompile.errors import ModelError
from edgecompile.loaders.policies.statistics import (
    POSTPROCESSOR,
    PREPROCESSOR,
    Normalizations,
    read_normalizations,
)
from edgecompile.runtime.model.policy import normalize, restore

STATE, CAMERA, WORLD = "observation.state", "observation.image", "observation.environment_state"
NAMES = (STATE, CAMERA, WORLD)
FEATURES = {
    STATE: {"type": "STATE", "shape": [3]},
    CAMERA: {"type": "VISUAL", "shape": [3, 2, 2]},
    WORLD: {"type": "ENV", "shape": [2]},
    "action": {"type": "ACTION", "shape": [3]},
}
LOW = np.array([-3, 1, 5], np.float32)
HIGH = np.array([4, 1, 9], np.float32)  # the second never moves


def statistics(key: str, value: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    image = value.reshape(3, 1, 1)
    return {f"{STATE}.{key}": value, f"{CAMERA}.{key}": image, f"action.{key}": value}


def write(
    folder: Path, mode: str, keys: tuple[str, str], before: Any = (), **settings: Any
) -> None:
    """The processors of a policy whose values are normalized by one mode."""
    values = {**statistics(keys[0], LOW), **statistics(keys[1], HIGH)}
    config = {
        "eps": 1e-8,
        "features": FEATURES,
        "norm_map": dict.fromkeys(("STATE", "VISUAL", "ACTION"), mode),
        **settings,
    }
    for file, kind in (
        (PREPROCESSOR, "normalizer_processor"),
        (POSTPROCESSOR, "unnormalizer_processor"),
    ):
        save_file(values, folder / f"{kind}.safetensors")
        step = {
            "registry_name": kind,
            "config": config,
            "state_file": f"{kind}.safetensors",
        }
        steps = [{"registry_name": "device_processor", "config": {}}, step]
        if file == PREPROCESSOR:
            steps = [*before, *steps]
        (folder / file).write_text(json.dumps({"name": file, "steps": steps}))


def change(folder: Path, file: str, path: tuple[Any, ...], value: Any) -> None:
    document = json.loads((folder / file).read_text())
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    (folder / file).write_text(json.dumps(document))


def read(folder: Path) -> Normalizations:
    return read_normalizations(folder, NAMES)


@pytest.mark.parametrize(
    ("mode", "keys"),
    [("MIN_MAX", ("min", "max")), ("QUANTILES", ("q01", "q99")), ("QUANTILE10", ("q10", "q90"))],
)
def test_ranges(tmp_path: Path, mode: str, keys: tuple[str, str]) -> None:
    write(tmp_path, mode, keys)
    made = read(tmp_path)
    ends = np.stack([LOW, HIGH])
    got = normalize(ends.copy(), made.observations[STATE])
    np.testing.assert_array_equal(got[:, [0, 2]], [[-1, -1], [1, 1]])
    np.testing.assert_array_equal(got[:, 1], [-1, -1])  # not divided by 0
    np.testing.assert_allclose(restore(got, made.action), ends, rtol=1e-6)
    image = np.broadcast_to(HIGH.reshape(1, 3, 1, 1), (1, 3, 2, 2)).copy()
    got = normalize(image, made.observations[CAMERA])
    np.testing.assert_array_equal(got[0, [0, 2]], np.ones((2, 2, 2)))


def test_mean_and_spread(tmp_path: Path) -> None:
    write(tmp_path, "MEAN_STD", ("mean", "std"), eps=0.5)
    made = read(tmp_path)
    x = np.float32([[1, 2, 3]])
    got = normalize(x.copy(), made.observations[STATE])
    np.testing.assert_array_equal(got, (x - LOW) / (HIGH + np.float32(0.5)))
    np.testing.assert_array_equal(restore(x, made.action), x * HIGH + LOW)  # without eps


@pytest.mark.parametrize(
    "settings",
    [
        {"normalize_observation_keys": [CAMERA]},
        {"normalize_observation_keys": []},
        {"features": {STATE: FEATURES[STATE]}},
        {"features": {**FEATURES, "action": FEATURES[STATE]}, "norm_map": {"ACTION": "MEAN_STD"}},
    ],
)
def test_actions_are_restored_whatever_is_observed(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    write(tmp_path, "MEAN_STD", ("mean", "std"), **settings)
    x = np.float32([[1, 2, 3]])
    np.testing.assert_array_equal(restore(x, read(tmp_path).action), x * HIGH + LOW)


def test_what_isnt_normalized(tmp_path: Path) -> None:
    write(tmp_path, "MEAN_STD", ("mean", "std"), normalize_observation_keys=[CAMERA])
    made = read(tmp_path)
    # One isn't in the list, one of a type without a mode.
    assert made.observations[STATE] is None
    assert made.observations[WORLD] is None
    assert made.observations[CAMERA] is not None
    assert made.action is not None
    write(tmp_path, "IDENTITY", ("mean", "std"))
    assert read(tmp_path) == Normalizations(dict.fromkeys(NAMES), None, {})


def test_names_of_the_robot(tmp_path: Path) -> None:
    renames = {"joints": STATE, "other": "observation.other"}
    step = {"registry_name": "rename_observations_processor", "config": {"rename_map": renames}}
    write(tmp_path, "MIN_MAX", ("min", "max"), before=[step])
    assert read(tmp_path).names == {STATE: "joints"}


@pytest.mark.parametrize("file", [PREPROCESSOR, POSTPROCESSOR])
def test_a_policy_without_processors(tmp_path: Path, file: str) -> None:
    write(tmp_path, "MIN_MAX", ("min", "max"))
    (tmp_path / file).unlink()
    with pytest.raises(ModelError, match=f"policy without statistics: there is no {file}") as got:
        read(tmp_path)
    assert "migrate_policy_normalization" in str(got.value.hint)


def test_a_policy_without_statistics_names_all_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path, "MEAN_STD", ("min", "max"))
    with pytest.raises(ModelError) as got:
        read(tmp_path)
    for name in (STATE, CAMERA, "action"):
        for key in ("mean", "std"):
            assert f"there is no statistic '{key}' of {name}" in got.value.message


@pytest.mark.parametrize(
    ("file", "path", "value", "text"),
    [
        (PREPROCESSOR, ("steps", 1, "state_file"), None, "there is no statistic 'min'"),
        (PREPROCESSOR, ("steps", 1, "state_file"), "../x", "isn't the name of a file"),
        (PREPROCESSOR, ("steps", 1, "state_file"), "none", "the statistics none can't be read"),
        (PREPROCESSOR, ("steps", 0, "registry_name"), "tokenizer", "the step 'tokenizer', which"),
        (PREPROCESSOR, ("steps",), [], "has no normalizer_processor"),
        (POSTPROCESSOR, ("steps",), {}, "has no unnormalizer_processor"),
        (
            POSTPROCESSOR,
            ("steps", 1, "config", "norm_map", "ACTION"),
            "LOG",
            "action is normalized by 'LOG'",
        ),
    ],
)
def test_processors_that_cant_be_used(
    tmp_path: Path, file: str, path: tuple[Any, ...], value: Any, text: str
) -> None:
    write(tmp_path, "MIN_MAX", ("min", "max"))
    change(tmp_path, file, path, value)
    with pytest.raises(ModelError, match=text):
        read(tmp_path)


@pytest.mark.parametrize("file", [PREPROCESSOR, POSTPROCESSOR])
@pytest.mark.parametrize(
    ("key", "value", "form"),
    [
        ("eps", "x", "a finite number"),
        ("eps", None, "a finite number"),
        ("eps", True, "a finite number"),
        ("eps", float("nan"), "a finite number"),
        ("eps", 10**400, "a finite number"),
        ("norm_map", [], "an object of modes' names"),
        ("norm_map", None, "an object of modes' names"),
        ("norm_map", {"ACTION": ["MIN_MAX"]}, "an object of modes' names"),
        ("features", [STATE], "an object of features"),
        ("features", {STATE: "STATE"}, "an object of features"),
        ("features", {STATE: {"type": ["STATE"]}}, "an object of features"),
        ("normalize_observation_keys", 3, "a list of names"),
        ("normalize_observation_keys", STATE, "a list of names"),
        ("normalize_observation_keys", [[STATE]], "a list of names"),
    ],
)
def test_settings_of_another_type(
    tmp_path: Path, file: str, key: str, value: Any, form: str
) -> None:
    write(tmp_path, "MIN_MAX", ("min", "max"))
    change(tmp_path, file, ("steps", 1, "config", key), value)
    step = "normalizer_processor" if file == PREPROCESSOR else "unnormalizer_processor"
    with pytest.raises(ModelError, match=f"'{key}' of {step} isn't {form}"):
        read(tmp_path)


@pytest.mark.parametrize("renames", [[], {"joints": [STATE]}, None])
def test_new_names_of_another_type(tmp_path: Path, renames: Any) -> None:
    step = {"registry_name": "rename_observations_processor", "config": {"rename_map": renames}}
    write(tmp_path, "MIN_MAX", ("min", "max"), before=[step])
    with pytest.raises(
        ModelError, match="'rename_map' of rename_observations_processor isn't an object of names"
    ):
        read(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_statistics_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    write(tmp_path, "MIN_MAX", ("min", "max"))
    wanted = read(tmp_path)
    values = {**statistics("min", LOW), **statistics("max", HIGH)}
    for kind in ("normalizer_processor", "unnormalizer_processor"):
        cast = {name: torch.from_numpy(value).to(dtype) for name, value in values.items()}
        save_tensors(cast, tmp_path / f"{kind}.safetensors")
    assert read(tmp_path) == wanted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32([1, np.nan, 2]), "isn't finite"),
        (np.float32([1, 2]), "have 3 and 2 values"),
        (np.ones((3, 2), np.float32), r"is float32 \(3, 2\)"),
        (np.ones(3, bool), "is bool"),
        (np.ones(3, np.complex64), "is complex64"),
    ],
)
def test_statistics_that_cant_be_used(
    tmp_path: Path, value: np.ndarray[Any, Any], text: str
) -> None:
    write(tmp_path, "MIN_MAX", ("min", "max"))
    values = {**statistics("min", LOW), **statistics("max", HIGH), f"{STATE}.max": value}
    save_file(values, tmp_path / "normalizer_processor.safetensors")
    with pytest.raises(ModelError, match=text):
        read(tmp_path)
