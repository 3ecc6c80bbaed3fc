"""Compiles a robot's policy and drives an episode with it, next to LeRobot's own.

    python3 examples/robot_policy/run.py                        a small ACT with random weights
    python3 examples/robot_policy/run.py --checkpoint FOLDER    a checkpoint of yours

It needs edgecompile and lerobot, for SmolVLA lerobot[smolvla]. Only the bundle goes to the robot, where numpy suffices:
`open_bundle("policy.ecb").policy().select_action(observation)`.
"""

import argparse
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.processor import PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

import edgecompile
from edgecompile.runtime import open_bundle

_CLASSES = {"act": "ACTPolicy", "diffusion": "DiffusionPolicy", "smolvla": "SmolVLAPolicy"}
_TOKENS, _SEEN = "observation.language.tokens", "observation.language.attention_mask"


class LeRobot:
    """A checkpoint as LeRobot runs it, on the CPU; nothing is fetched."""

    def __init__(self, folder: str) -> None:
        text = (Path(folder) / "config.json").read_text(encoding="utf-8")
        self.kind = json.loads(text)["type"]
        module = importlib.import_module(f"lerobot.policies.{self.kind}.modeling_{self.kind}")
        config = PreTrainedConfig.from_pretrained(folder)
        config.device = "cpu"
        # The checkpoint has all weights: those that the backbone's training began with would be fetched for nothing.
        for key, value in (("pretrained_backbone_weights", None), ("load_vlm_weights", False)):
            if hasattr(config, key):
                setattr(config, key, value)
        self.policy = getattr(module, _CLASSES[self.kind]).from_pretrained(folder, config=config)
        self.before = _processor(folder, "policy_preprocessor.json")
        self.after = _processor(
            folder,
            "policy_postprocessor.json",
            to_transition=policy_action_to_transition,
            to_output=transition_to_policy_action,
        )
        self.shapes: Dict[str, Tuple[int, ...]] = {
            name: tuple(feature.shape)
            for name, feature in self.policy.config.input_features.items()
        }

    def observe(self, observation: Dict[str, Any], task: str) -> Dict[str, Any]:
        """What LeRobot's policy is given of an observation and, where it takes one, a task in words."""
        given: Dict[str, Any] = {
            name: torch.from_numpy(array) for name, array in observation.items()
        }
        if self.kind == "smolvla":
            given["task"] = [task] * len(next(iter(observation.values())))
        result: Dict[str, Any] = self.before(given)
        return result

    def encode(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        """The task in what ``observe`` gives, as observations for a bundle: tokens, as many as it takes."""
        if self.kind != "smolvla":
            return {}
        size = self.policy.config.tokenizer_max_length
        arrays = {name: batch[name].numpy() for name in (_TOKENS, _SEEN)}
        return {
            name: np.pad(array, ((0, 0), (0, size - array.shape[1])))
            for name, array in arrays.items()
        }

    def select_action(self, batch: Dict[str, Any], noise: Any) -> Any:
        """The action [robots, size] of an observation; ``noise`` is [robots, draws, horizon, size] or None."""
        options = {}
        if noise is not None:
            # A policy takes the first noise; one of diffusion draws the others in its steps.
            options["noise"] = torch.from_numpy(noise[:, 0])
        return self.after(self.policy.select_action(batch, **options)).numpy()


def _processor(folder: str, name: str, **converters: Any) -> Any:
    """The processor that a file of the folder describes, on the CPU."""
    steps = json.loads((Path(folder) / name).read_text(encoding="utf-8"))["steps"]
    device = "device_processor"
    listed = any(step.get("registry_name") == device for step in steps)
    overrides = {device: {"device": "cpu"}} if listed else {}
    return PolicyProcessorPipeline.from_pretrained(
        folder, config_filename=name, overrides=overrides, **converters
    )


def drive(folder: str, bundle: str, steps: int, robots: int) -> float:
    """The largest difference of an episode's actions, relative to the largest action."""
    random, own = np.random.RandomState(1), LeRobot(folder)
    worst = largest = 0.0
    with open_bundle(bundle) as model:
        policy = model.policy()
        inputs = {item.name: item for item in model.manifest.inputs}
        for step in range(steps):
            observation = {
                name: random.rand(robots, *shape).astype(np.float32)
                for name, shape in own.shapes.items()
            }
            noise = None
            if "noise" in inputs:
                torch.manual_seed(step)
                count, *rest = [int(size or 0) for size in inputs["noise"].shape[1:]]
                draws = [torch.randn(robots, *rest) for _ in range(count)]
                noise = torch.stack([draws[-1], *draws[:-1]], 1).numpy()
                torch.manual_seed(step)
            task = " ".join(f"w{word}" for word in random.randint(3, 60, random.randint(1, 6)))
            batch = own.observe(observation, task)
            given = {**observation, **own.encode(batch)}
            want = own.select_action(batch, noise)
            got = policy.select_action(given, noise=noise)
            worst = max(worst, float(np.abs(got - want).max()))
            largest = max(largest, float(np.abs(want).max()))
    return worst / largest


def main() -> None:
    """Builds and drives, as the arguments say."""
    parser = argparse.ArgumentParser(description="Compile a policy and drive an episode with it.")
    parser.add_argument("--checkpoint", help="folder that LeRobot wrote; default: a small one")
    parser.add_argument("--policy", choices=sorted(_CLASSES), default="act")
    parser.add_argument("--target", default="cpu-x86-64")
    parser.add_argument("--output", help="the bundle; default: in a temporary folder")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--robots", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = arguments.checkpoint
        if folder is None:
            from checkpoint import write_checkpoint

            folder = str(Path(work) / arguments.policy)
            write_checkpoint(Path(folder), arguments.policy)
        output = arguments.output or str(Path(work) / "policy.ecb")
        made = edgecompile.build(
            folder, target=arguments.target, batch=(1, max(4, arguments.robots)), output=output
        )
        print(made)
        difference = drive(folder, output, arguments.steps, arguments.robots)
    print(f"{arguments.steps} steps: at most {difference:.2e} from LeRobot's actions")


if __name__ == "__main__":
    main()
