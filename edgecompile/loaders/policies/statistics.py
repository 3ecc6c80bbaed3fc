"""The normalization of a policy's observations and actions, out of the processors that LeRobot writes beside it.

The files are read as plain JSON and safetensors: nothing that they name is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import read_object
from edgecompile.runtime.format.manifest.policy_schema import Scaling

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
ACTION = "action"
_HINT = (
    "save the processors beside the policy: preprocessor.save_pretrained(FOLDER), made with the data set's "
    "statistics; in a folder from before LeRobot 0.4 its script lerobot.processor.migrate_policy_normalization "
    "makes them"
)
_RENAME, _NORMALIZE, _RESTORE = (
    "rename_observations_processor",
    "normalizer_processor",
    "unnormalizer_processor",
)
#: Steps that change nothing here: arrays are on the CPU, a batch is added where one is missing, and tasks are tokens.
_PLAIN = (
    "to_batch_processor",
    "device_processor",
    "smolvla_new_line_processor",
    "tokenizer_processor",
)
#: By mode: the two statistics, the least value and the largest where they are a range.
_MODES: Mapping[str, tuple[str, str]] = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
_IDENTITY = "IDENTITY"
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Dtypes of statistics.
_NUMBERS = (*_FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_UNUSABLE = "is a policy whose normalization can't be used"


@dataclass(frozen=True)
class Normalizations:
    """The normalization of each observation and of actions; None: there is none.

    Attributes:
        observations: scalings by the policy's own names.
        action: scaling of actions, from the model's to the robot's.
        names: the robot's name of an observation by the policy's, where they differ.
    """

    observations: Mapping[str, Scaling | None]
    action: Scaling | None
    names: Mapping[str, str]


def read_normalizations(folder: Path, features: Sequence[str]) -> Normalizations:
    """The normalizations of a policy's folder.

    Args:
        folder: a folder that LeRobot wrote.
        features: names of the observations that the policy takes.

    Raises:
        ModelError: there are no statistics, some are missing, or a step of the processors isn't known;
            lists all of it.
    """
    for name in (PREPROCESSOR, POSTPROCESSOR):
        if not (folder / name).is_file():
            raise ModelError(
                f"'{folder}' is a policy without statistics: there is no {name}", hint=_HINT
            )
    problems: list[str] = []
    before = _steps(folder, PREPROCESSOR, (_RENAME, _NORMALIZE), problems)
    after = _steps(folder, POSTPROCESSOR, (_RESTORE,), problems)
    renamed = before.get(_RENAME, {}).get("rename_map", {})
    if not _are_names_by_key(renamed):
        problems.append(f"'rename_map' of {_RENAME} isn't an object of names")
    _refuse(folder, problems)
    observed = _Normalizer(folder, _NORMALIZE, before[_NORMALIZE], problems)
    performed = _Normalizer(folder, _RESTORE, after[_RESTORE], problems)
    scalings = {name: observed.observation(name) for name in features}
    action = performed.action()
    without = not (observed.statistics and performed.statistics)
    _refuse(folder, problems, "is a policy without statistics" if without else _UNUSABLE)
    return Normalizations(
        scalings, action, {new: old for old, new in renamed.items() if new in features}
    )


def _refuse(folder: Path, problems: Sequence[str], what: str = _UNUSABLE) -> None:
    if problems:
        raise ModelError(f"'{folder}' {what}: " + "; ".join(problems), hint=_HINT)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _steps(
    folder: Path, name: str, known: Sequence[str], problems: list[str]
) -> dict[str, Mapping[str, Any]]:
    """The settings of the known steps of a processor, each with its ``state_file``."""
    steps = read_object(folder / name, "the policy's processor").get("steps")
    found: dict[str, Mapping[str, Any]] = {}
    for step in steps if isinstance(steps, list) else []:
        kind = str(_object(step).get("registry_name") or _object(step).get("class"))
        if kind in known and kind not in found:
            found[kind] = {
                **_object(step.get("config")),
                "state_file": step.get("state_file"),
            }
        elif kind not in _PLAIN:
            problems.append(f"{name} has the step {kind!r}, which isn't known")
    wanted = known[-1]
    if wanted not in found:
        problems.append(f"{name} has no {wanted}")
    return found


def _is_number(value: Any) -> bool:
    """Whether it is a number of float32 that is finite."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= torch.finfo(torch.float32).max


def _are_names(value: Any) -> bool:
    """Whether it is a list of strings; None: there is none."""
    return value is None or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _are_names_by_key(value: Any) -> bool:
    return isinstance(value, Mapping) and _are_names(list(value.values()))


def _are_features(value: Any) -> bool:
    """Whether it is an object of features, each with the name of its type."""
    return isinstance(value, Mapping) and _are_names(
        [_object(feature).get("type") for feature in value.values()]
    )


class _Normalizer:
    """A step that normalizes, or that restores."""

    def __init__(
        self, folder: Path, step: str, config: Mapping[str, Any], problems: list[str]
    ) -> None:
        self.problems, self._step, self._config = problems, step, config
        self.features = self._setting("features", _are_features, "an object of features", {})
        self.modes = self._setting("norm_map", _are_names_by_key, "an object of modes' names", {})
        self.eps = np.float32(self._setting("eps", _is_number, "a finite number", 1e-8))
        keys = "a list of names"
        self.only = self._setting("normalize_observation_keys", _are_names, keys, None)
        self.statistics = self._read(folder, config.get("state_file"))

    def _setting(self, key: str, fits: Callable[[Any], bool], form: str, default: Any) -> Any:
        """A checked setting. Those that may be missing fit by their default."""
        value = self._config.get(key, default or None)
        if fits(value):
            return value
        self.problems.append(f"'{key}' of {self._step} isn't {form}")
        return default

    def _read(self, folder: Path, name: Any) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if name is None:
            return {}
        if not isinstance(name, str) or Path(name).name != name:
            self.problems.append(f"{name!r} isn't the name of a file of statistics")
            return {}
        try:
            return load_file(folder / name)
        except (OSError, SafetensorError) as error:
            self.problems.append(f"the statistics {name} can't be read: {error}")
            return {}

    def observation(self, name: str) -> Scaling | None:
        """The normalization of an observation; None: it isn't a feature, or isn't among the keys."""
        kind = _object(self.features.get(name)).get("type")
        listed = self.only is None or name in self.only
        return self._scaling(name, str(kind), divides=True) if kind and listed else None

    def action(self) -> Scaling | None:
        """The normalization of actions; LeRobot restores them whatever the features and keys are."""
        return self._scaling(ACTION, "ACTION", divides=False)

    def _scaling(self, name: str, kind: str, divides: bool) -> Scaling | None:
        """The normalization of a value of a kind of features; ``divides``: on the way to the model."""
        mode = self.modes.get(kind, _IDENTITY)
        if mode == _IDENTITY:
            return None
        if mode not in _MODES:
            self.problems.append(f"{name} is normalized by {mode!r}, which isn't known")
            return None
        values = [self._statistic(name, key) for key in _MODES[mode]]
        first, second = values
        if first is None or second is None:
            return None
        if first.size != second.size:
            self.problems.append(f"statistics of {name} have {first.size} and {second.size} values")
            return None
        if mode == "MEAN_STD":
            scale = second + self.eps if divides else second
            return _scaling(first, scale, 0.0)
        width = second - first
        return _scaling(first, np.where(width == 0, self.eps, width) / np.float32(2), 1.0)

    def _statistic(self, name: str, key: str) -> np.ndarray[Any, Any] | None:
        value = self.statistics.get(f"{name}.{key}")
        if value is None:
            self.problems.append(f"there is no statistic '{key}' of {name}")
            return None
        if value.dtype not in _NUMBERS or value.numel() not in (1, *value.shape[:1]):
            dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
            self.problems.append(f"the statistic '{key}' of {name} is {dtype} {shape}")
            return None
        numbers: np.ndarray[Any, Any] = value.float().reshape(-1).numpy()
        if not np.isfinite(numbers).all():
            self.problems.append(f"the statistic '{key}' of {name} isn't finite")
            return None
        return numbers


def _scaling(offset: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], shift: float) -> Scaling:
    return Scaling(tuple(offset.tolist()), tuple(scale.astype(np.float32).tolist()), shift)
