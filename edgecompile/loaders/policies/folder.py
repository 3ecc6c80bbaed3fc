"""Loads robots' policies from folders that LeRobot writes: config.json, safetensors weights and processors."""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgecompile.errors import MissingDependencyError, ModelError, UsageError
from edgecompile.files import hash_tree
from edgecompile.loaders.folders.files import find_weights, plain_name, read_object
from edgecompile.loaders.folders.pretrained import OFFLINE
from edgecompile.loaders.input_specs import with_pads
from edgecompile.loaders.policies.denoising import MAX_STEPS, denoising_steps
from edgecompile.loaders.policies.networks import ActNetwork, DiffusionNetwork, SmolVlaNetwork
from edgecompile.loaders.policies.statistics import ACTION, read_normalizations
from edgecompile.models.examples import make_example
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import NamedModule, describe_error
from edgecompile.models.options import LoadOptions
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import BATCH, AxisLimits, InputSpec
from edgecompile.runtime.format.manifest.policy_schema import ObservationSpec, PolicySpec

NOISE = "noise"
#: LeRobot's class by the type in config.json.
_CLASSES = {"act": "ACTPolicy", "diffusion": "DiffusionPolicy", "smolvla": "SmolVLAPolicy"}
_STATE, _ENVIRONMENT, _IMAGES = (
    "observation.state",
    "observation.environment_state",
    "observation.images",
)
#: Observations of a task: its tokens, and which of them it has.
_TOKENS, _SEEN = "observation.language.tokens", "observation.language.attention_mask"
#: LeRobot's images for cameras that a robot lacks.
_EMPTY = f"{_IMAGES}.empty_camera_"
#: How far the network may be from LeRobot's own results, relative to their size.
_AGREEMENT = 1e-3
_SEED = 3


def load_policy(folder: Path, options: LoadOptions) -> LoadedModel:
    """Loads a policy's folder; see :func:`edgecompile.loaders.load.load_model`.

    The inputs are its normalized observations, float32 [batch, …], the tokens of a task, int64 and bool [batch, tokens],
    and the noise that it begins with, as far as the policy takes them. The output is a chunk of normalized actions
    [batch, actions, size].

    Raises:
        ModelError: the folder is incomplete, has no statistics, the policy can't be compiled, or a pad value is for
            no input of it.
        MissingDependencyError: LeRobot can't be imported.
        UsageError: a maximum length is asked for.
    """
    if options.max_length is not None:
        raise UsageError("`max_length` is for lengths, and a policy's inputs have one size")
    find_weights(folder)
    policy = _Policy(folder)
    with torch.no_grad(), redirect_stdout(sys.stderr):
        network = policy.network()
    inputs = with_pads(policy.inputs, options)
    module = NamedModule(network, [item.name for item in inputs], output_names=[ACTION])
    module.eval()
    name = plain_name(options.name or folder.resolve().name)
    axes = {BATCH: AxisLimits(*(options.batch or (1, 1)))}
    outputs, copied = probe_model(module, inputs, axes, name)
    policy.compare(module)
    return LoadedModel(
        name=name,
        module=module,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        length_axis=BATCH,
        source=ModelSource(
            "folder",
            str(folder),
            hash_tree(folder),
            {"architecture": type(policy.policy).__name__, "task": "policy"},
        ),
        notes=("inputs have one size: the traffic is the batch", *copied),
        load=options.to_json(),
        policy=policy.spec,
    )


class _Inputs(nn.Module):
    """Gives the inputs of a policy's network to it: numbers, then images, then the others."""

    def __init__(
        self, network: nn.Module, inputs: tuple[InputSpec, ...], numbers: int, observed: int
    ) -> None:
        super().__init__()
        self.network = network
        self.names = [item.name for item in inputs]
        self.numbers, self.observed = numbers, observed

    def forward(self, **inputs: torch.Tensor) -> Any:
        given = [inputs[name] for name in self.names]
        images = given[self.numbers : self.observed]
        return self.network(given[: self.numbers], images, *given[self.observed :])


class _Policy:
    """A policy of LeRobot, and what its program takes."""

    def __init__(self, folder: Path) -> None:
        self.policy = _load(folder)
        self.config = config = self.policy.config
        images = [name for name in config.image_features if not name.startswith(_EMPTY)]
        numbers = [name for name in (_STATE, _ENVIRONMENT) if name in config.input_features]
        self.names = (*numbers, *images)
        features = [name for name in config.input_features if not name.startswith(_EMPTY)]
        left = [name for name in features if name not in self.names]
        if left:
            raise ModelError(f"'{folder}': the policy's input {left[0]} isn't known")
        self.numbers = len(numbers)
        self.diffuses = config.type == "diffusion"
        self.steps = config.n_obs_steps if self.diffuses else 0
        before = (BATCH, self.steps) if self.steps else (BATCH,)
        inputs = [
            InputSpec(
                re.sub(r"\W", "_", name),
                "float32",
                (*before, *config.input_features[name].shape),
            )
            for name in self.names
        ]
        made = read_normalizations(folder, self.names)
        self.denoising: tuple[Any, ...] = ()
        if self.diffuses:
            model = self.policy.diffusion
            self.denoising = denoising_steps(model.noise_scheduler, model.num_inference_steps)
            draws = 1 + sum(step.draws for step in self.denoising)
            size = (draws, config.horizon, *config.action_feature.shape)
            inputs.append(InputSpec(NOISE, "float32", (BATCH, *size)))
        self.texts: tuple[str, ...] = ()
        if config.type == "smolvla":
            _check_smolvla(config, self.names)
            self.texts = _TOKENS, _SEEN
            words = self.policy.model.vlm_with_expert.config.text_config.vocab_size
            for name, dtype, bounds in ((_TOKENS, "int64", (0, words - 1)), (_SEEN, "bool", None)):
                shape = (BATCH, config.tokenizer_max_length)
                inputs.append(InputSpec(re.sub(r"\W", "_", name), dtype, shape, bounds=bounds))
            size = (1, config.chunk_size, config.max_action_dim)
            inputs.append(InputSpec(NOISE, "float32", (BATCH, *size)))
        self.inputs = tuple(inputs)
        self.spec = PolicySpec(
            observations={
                made.names.get(name, name): ObservationSpec(item.name, made.observations.get(name))
                for name, item in zip((*self.names, *self.texts), inputs, strict=False)
            },
            output=ACTION,
            scaling=made.action,
            action_steps=config.n_action_steps,
            steps=self.steps,
            ensemble=getattr(config, "temporal_ensemble_coeff", None),
            noise=NOISE if inputs[-1].name == NOISE else None,
        )

    def network(self) -> nn.Module:
        """The module from the inputs to a chunk of actions."""
        config = self.config
        network: nn.Module
        if self.diffuses:
            first = config.n_obs_steps - 1
            network = DiffusionNetwork(
                self.policy.diffusion, self.denoising, first, config.n_action_steps
            )
        elif self.texts:
            images, size = self.names[self.numbers :], config.action_feature.shape[0]
            network = SmolVlaNetwork(self.policy, images, _STATE, size)
        else:
            network = ActNetwork(
                self.policy.model,
                state=_STATE in self.names,
                environment=_ENVIRONMENT in self.names,
                images=[config.input_features[name].shape for name in self.names[self.numbers :]],
            )
        return _Inputs(network, self.inputs, self.numbers, len(self.names))

    def compare(self, module: nn.Module) -> None:
        """Compares a run with LeRobot's own, of the same observations and noise.

        Raises:
            ModelError: they differ, or LeRobot fails.
        """
        example = make_example(self.inputs, {BATCH: 2}, seed=_SEED)
        names = (*self.names, *self.texts)
        observed = [example[item.name] for item in self.inputs[: len(names)]]
        batch: dict[str, Any] = dict(zip(names, observed, strict=True))
        with torch.random.fork_rng([]), torch.no_grad(), redirect_stdout(sys.stderr):
            start = None
            if self.diffuses:
                start, *others = example[NOISE].unbind(1)
                torch.manual_seed(_SEED)  # so that LeRobot draws the same noise in its steps
                example[NOISE] = torch.stack([start, *map(torch.randn_like, others)], 1)
            got = module(**example)[ACTION]
            torch.manual_seed(_SEED)
            try:
                if self.diffuses:
                    images = [batch.pop(name) for name in self.names[self.numbers :]]
                    if images:
                        batch[_IMAGES] = torch.stack(images, dim=-4)
                    want = self.policy.diffusion.generate_actions(batch, noise=start)
                elif self.texts:
                    want = self.policy.predict_action_chunk(batch, noise=example[NOISE][:, 0])
                else:
                    want = self.policy.predict_action_chunk(batch)
            except Exception as error:
                raise ModelError(f"LeRobot's policy fails: {describe_error(error)}") from error
        far = float((got - want).norm() / want.norm().clamp_min(1e-12))
        if not far <= _AGREEMENT:
            raise ModelError(
                f"the network's actions differ from those of LeRobot's policy by {far:.2g} of their size",
                hint="this version of LeRobot isn't known; LeRobot 0.4 is",
            )


def _check_smolvla(config: Any, names: tuple[str, ...]) -> None:
    """Raises ModelError for settings of SmolVLA that aren't compiled."""
    rtc = getattr(config, "rtc_config", None)  # LeRobot 0.4.0 has none
    odd = {
        "adapt_to_pi_aloha": config.adapt_to_pi_aloha,
        "rtc_config": rtc is not None and rtc.enabled,
        "use_cache": not config.use_cache,
        "resize_imgs_with_padding": config.resize_imgs_with_padding is None,
    }
    problems = [f"its {key} isn't supported" for key, value in odd.items() if value]
    if config.num_steps > MAX_STEPS:
        problems.append(
            f"it takes {config.num_steps} denoising steps, at most {MAX_STEPS} are compiled"
        )
    if _STATE not in names or len(names) == 1:
        problems.append(f"it needs {_STATE} and a camera")
    if problems:
        raise ModelError("the policy can't be compiled: " + "; ".join(problems))


def _load(folder: Path) -> Any:
    """LeRobot's policy in eval mode, on the CPU; nothing is fetched.

    Raises:
        ModelError: LeRobot can't load it.
        MissingDependencyError: LeRobot can't be imported.
    """
    os.environ.update(OFFLINE)
    kind = read_object(folder / "config.json", "the policy's configuration")["type"]
    try:
        with redirect_stdout(sys.stderr):
            configs = importlib.import_module("lerobot.configs.policies")
            module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    except Exception as error:  # its packages raise others, where versions don't go together
        raise MissingDependencyError(
            f"policies need the Python package lerobot, which can't be imported here: {error}",
            hint="pip install lerobot, with the versions of other packages that it asks for",
        ) from error
    try:
        with redirect_stdout(sys.stderr):
            config = configs.PreTrainedConfig.from_pretrained(str(folder))
            config.device = "cpu"
            config.pretrained_backbone_weights = None  # else it is fetched, before all is replaced
            config.load_vlm_weights = False  # the same
            config.compile_model = False
            policy = getattr(module, _CLASSES[kind]).from_pretrained(
                str(folder), config=config, strict=True
            )
    except Exception as error:
        raise ModelError(
            f"'{folder}': LeRobot can't load the policy: {describe_error(error)}",
            hint="`__cause__` shows the traceback"
            + "; vlm_model_name has to be a folder, or in the Hub's cache" * (kind == "smolvla"),
        ) from error
    return policy.eval().float()
