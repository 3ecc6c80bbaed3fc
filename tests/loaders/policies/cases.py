"""Loads policies of LeRobot with many settings: cases.py FOLDER, with the folder of checkpoint.py in PYTHONPATH.

Prints JSON: by case the input shapes and the entry of the manifest, or the refusal's class, message and hint.
Each loaded model has been compared with LeRobot's own run by the loader. Two of them are loaded by the example, too,
and nothing is fetched.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torchvision
from checkpoint import CAMERA, STATE, write_checkpoint
from run import LeRobot

from edgecompile.errors import EdgecompileError
from edgecompile.loaders.load import load_model

WORLD, WRIST = "observation.environment_state", "observation.images.wrist"
IMAGE = (3, 64, 96)
ALL = {STATE: (6,), WORLD: (4,), CAMERA: IMAGE, WRIST: IMAGE}
CASES = {
    "act": ("act", {"shapes": ALL}),
    "act of states": ("act", {"shapes": {STATE: (6,), WORLD: (4,)}, "use_vae": False}),
    "act ensemble": ("act", {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}),
    "act pre-norm": ("act", {"pre_norm": True, "n_decoder_layers": 2}),
    "ddim": ("diffusion", {"shapes": ALL}),
    "ddpm": ("diffusion", {"noise_scheduler_type": "DDPM", "n_obs_steps": 1}),
    "ddpm sample": (
        "diffusion",
        {"noise_scheduler_type": "DDPM", "prediction_type": "sample", "clip_sample": False},
    ),
    "ddim sample": (
        "diffusion",
        {"prediction_type": "sample", "shapes": ALL, "use_separate_rgb_encoder_per_camera": True},
    ),
    "ddim of states": ("diffusion", {"shapes": {STATE: (6,), WORLD: (4,)}, "crop_shape": None}),
    "smolvla": ("smolvla", {"shapes": {STATE: (6,), CAMERA: IMAGE, WRIST: IMAGE}}),
    "smolvla of one kind of layers": (
        "smolvla",
        {
            "attention_mode": "self_attn",
            "add_image_special_tokens": True,
            "empty_cameras": 1,
            "prefix_length": 40,
        },
    ),
    "smolvla of an arm": ("smolvla", {"adapt_to_pi_aloha": True, "num_steps": 40}),
    "many steps": ("diffusion", {"num_inference_steps": None}),
    "no statistics": ("act", {"statistics": False}),
}


def load_without_fetching(folder: Path) -> None:
    """Loads a checkpoint that names a GPU and the weights that its backbone's training began with."""
    for name in ("config.json", "policy_preprocessor.json"):
        file = folder / name
        document = json.loads(file.read_text())
        if name == "config.json":
            document |= {
                "device": "cuda",
                "pretrained_backbone_weights": "ResNet18_Weights.DEFAULT",
            }
        for step in document.get("steps", []):
            if step["registry_name"] == "device_processor":
                step["config"]["device"] = "cuda"
        file.write_text(json.dumps(document))

    def fetch(address: str, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"{address} is fetched")

    torchvision.models._api.load_state_dict_from_url = fetch
    load_model(folder)
    with redirect_stdout(sys.stderr):
        policy = LeRobot(str(folder))
    observation = {name: np.zeros((1, *shape), np.float32) for name, shape in policy.shapes.items()}
    assert policy.select_action(policy.observe(observation, ""), None).shape == (1, 6)


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for name, (kind, settings) in CASES.items():
        where = folder / name.replace(" ", "-")
        with redirect_stdout(sys.stderr):
            write_checkpoint(where, kind, **settings)
        try:
            model = load_model(where, batch=(1, 4))
        except EdgecompileError as error:
            found[name] = [type(error).__name__, error.message, error.hint]
            continue
        assert model.policy is not None
        shapes = {item.name: list(item.shape) for item in model.inputs}
        found[name] = [shapes, [list(item.shape) for item in model.outputs], model.policy.to_json()]
    for name in ("act", "ddim"):
        load_without_fetching(folder / name)
    found["pad"] = [
        item.pad for item in load_model(folder / "act", pad={"observation_state": 0}).inputs
    ]
    try:
        load_model(folder / "act", pad={"observation.state": 0})
    except EdgecompileError as error:
        found["other pad"] = [type(error).__name__, error.message, error.hint]
    cut = folder / "act"
    (cut / "model.safetensors").write_bytes((folder / "ddim" / "model.safetensors").read_bytes())
    try:
        load_model(cut)
    except EdgecompileError as error:
        found["other weights"] = [type(error).__name__, error.message, error.hint]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
