"""Loads policies of LeRobot with many settings: cases.py FOLDER, with the folder of checkpoint.py in PYTHONPATH.

Prints JSON: by case the input shapes and the entry of the manifest, or the refusal's class, message and hint.
Each loaded model has been compared with LeRobot's own run by the loader.
"""

import json
import sys
from pathlib import Path
from typing import Any

from checkpoint import CAMERA, STATE, write_checkpoint

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
    "many steps": ("diffusion", {"num_inference_steps": None}),
    "no statistics": ("act", {"statistics": False}),
}


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for name, (kind, settings) in CASES.items():
        where = folder / name.replace(" ", "-")
        write_checkpoint(where, kind, **settings)
        try:
            model = load_model(where, batch=(1, 4))
        except EdgecompileError as error:
            found[name] = [type(error).__name__, error.message, error.hint]
            continue
        assert model.policy is not None
        shapes = {item.name: list(item.shape) for item in model.inputs}
        found[name] = [shapes, [list(item.shape) for item in model.outputs], model.policy.to_json()]
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
