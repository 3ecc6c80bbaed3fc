"""Policies of LeRobot: what is loaded agrees with LeRobot's own runs, and what can't be is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgecompile.errors import MissingDependencyError, ModelError, UsageError
from edgecompile.loaders.load import check_model, load_model
from edgecompile.loaders.policies.folder import _check_smolvla
from edgecompile.models.options import LoadOptions
from tests.needs import need_variable

ROOT = Path(__file__).parents[3]
#: Runs the script that the arguments name where transformers isn't installed.
_WITHOUT_TRANSFORMERS = """
import runpy, sys
sys.modules["transformers"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CONFIG = {"type": "act", "input_features": {}, "output_features": {}}


def run_with_lerobot(*arguments: str | Path, python: tuple[str, ...] = ()) -> str:
    packages = need_variable("EDGECOMPILE_LEROBOT")
    paths = [str(ROOT), packages, str(ROOT / "examples" / "robot_policy")]
    done = subprocess.run(
        [sys.executable, *python, ROOT / "tests" / "with_lerobot.py", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module", name="found")
def load_cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    script = Path(__file__).with_name("cases.py")
    return json.loads(run_with_lerobot(script, tmp_path_factory.mktemp("p")))


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_the_example_needs_transformers_for_smolvla_alone(tmp_path: Path, kind: str) -> None:
    script, hidden = ROOT / "examples" / "robot_policy" / "checkpoint.py", _WITHOUT_TRANSFORMERS
    run_with_lerobot(script, tmp_path / kind, kind, python=("-c", hidden))
    assert json.loads((tmp_path / kind / "config.json").read_text())["type"] == kind


def test_settings_of_smolvla_that_arent_compiled() -> None:
    settings = {"adapt_to_pi_aloha": False, "use_cache": True, "num_steps": 4}
    names = ("observation.state", "observation.images.top")

    def check(**others: Any) -> None:
        given = {**settings, "resize_imgs_with_padding": (32, 32), **others}
        _check_smolvla(SimpleNamespace(**given), names)

    check()  # as LeRobot 0.4.0 has them, without rtc_config
    check(rtc_config=None)
    check(rtc_config=SimpleNamespace(enabled=False))
    with pytest.raises(ModelError, match="its rtc_config isn't supported"):
        check(rtc_config=SimpleNamespace(enabled=True))


def test_inputs_and_outputs(found: Any) -> None:
    image = [3, 64, 96]
    shapes, outputs, policy = found["act"]
    assert shapes == {
        "observation_state": ["batch", 6],
        "observation_environment_state": ["batch", 4],
        "observation_images_top": ["batch", *image],
        "observation_images_wrist": ["batch", *image],
    }
    assert outputs == [["batch", 20, 6]]
    assert policy["action_steps"] == 10
    # LeRobot's default normalizes no environment.
    assert policy["observations"]["observation.environment_state"]["scaling"] is None
    assert policy["observations"]["observation.state"]["scaling"]["shift"] == 0
    assert found["act ensemble"][2]["ensemble"] == 0.01
    shapes, outputs, policy = found["ddim"]
    assert shapes["observation_images_wrist"] == ["batch", 2, *image]
    assert shapes["noise"] == ["batch", 1, 8, 6]
    assert outputs == [["batch", 4, 6]]
    assert (policy["steps"], policy["noise"], policy["action_steps"]) == (2, "noise", 4)
    assert policy["observations"]["observation.state"]["scaling"]["shift"] == 1
    # The last of the four steps draws no noise.
    assert found["ddpm"][0]["noise"] == ["batch", 4, 8, 6]
    assert found["ddpm"][0]["observation_state"] == ["batch", 1, 6]
    shapes, outputs, policy = found["smolvla"]
    assert shapes["observation_language_tokens"] == ["batch", 6]
    assert shapes["observation_language_attention_mask"] == ["batch", 6]
    assert shapes["noise"] == ["batch", 1, 8, 8] and outputs == [["batch", 8, 6]]
    assert (policy["noise"], policy["action_steps"]) == ("noise", 4)
    assert policy["observations"]["observation.language.tokens"]["scaling"] is None
    # The camera that a robot lacks is no input.
    assert len(found["smolvla of one kind of layers"][0]) == 5


def test_every_setting_agrees_with_lerobot(found: Any) -> None:
    refused = {name: item for name, item in found.items() if isinstance(item[0], str)}
    assert sorted(refused) == [
        "many steps",
        "no statistics",
        "other pad",
        "other weights",
        "smolvla of an arm",
    ]


def test_refusals(found: Any) -> None:
    kind, message, hint = found["many steps"]
    assert kind == "ModelError" and "takes 100 denoising steps, at most 32" in message
    assert '"num_inference_steps": 10' in hint
    kind, message, _ = found["smolvla of an arm"]
    assert kind == "ModelError" and "its adapt_to_pi_aloha isn't supported" in message
    assert "takes 40 denoising steps, at most 32" in message
    kind, message, _ = found["no statistics"]
    assert kind == "ModelError" and "is a policy without statistics: " in message
    assert "there is no statistic 'mean' of observation.state" in message
    kind, message, _ = found["other weights"]
    assert kind == "ModelError" and "LeRobot can't load the policy" in message


def test_pad_values_are_for_inputs(found: Any) -> None:
    assert found["pad"] == [0, None, None, None]
    text = "pad values for inputs that don't exist: observation.state"
    assert found["other pad"][:2] == ["ModelError", text]


def write(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    header = b"{}      "
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_types_of_policies_that_arent_read(tmp_path: Path) -> None:
    write(tmp_path, type="pi0")
    with pytest.raises(ModelError, match="is a policy of the type 'pi0'") as got:
        load_model(tmp_path)
    assert "act, diffusion" in str(got.value.hint)


def test_options_of_other_models_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UsageError, match="`softmax`: for folders in Hugging Face layout"):
        check_model(tmp_path, LoadOptions(softmax=True))
    with pytest.raises(UsageError, match="`max_length` is for lengths"):
        load_model(tmp_path, max_length=4)


def test_without_lerobot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(MissingDependencyError, match="policies need the Python package lerobot"):
        load_model(write(tmp_path))
