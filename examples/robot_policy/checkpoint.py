"""Writes a small policy with random weights, as LeRobot saves one after training.

checkpoint.py FOLDER act|diffusion|smolvla
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, Tuple

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.act.processor_act import make_act_pre_post_processors
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

JOINTS = 6
STATE, CAMERA = "observation.state", "observation.images.top"
SHAPES: Dict[str, Tuple[int, ...]] = {STATE: (JOINTS,), CAMERA: (3, 64, 96)}
_KINDS = {"state": FeatureType.STATE, "images": FeatureType.VISUAL}
_KINDS["environment_state"] = FeatureType.ENV
_SMALL: Dict[str, Dict[str, Any]] = {
    "act": {
        "chunk_size": 20,
        "n_action_steps": 10,
        "dim_model": 32,
        "n_heads": 4,
        "dim_feedforward": 64,
        "n_encoder_layers": 2,
        "n_vae_encoder_layers": 1,
    },
    "diffusion": {
        "noise_scheduler_type": "DDIM",
        "num_inference_steps": 4,
        "horizon": 8,
        "n_action_steps": 4,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "kernel_size": 3,
        "n_groups": 4,
        "spatial_softmax_num_keypoints": 4,
        "crop_shape": (56, 84),
    },
    "smolvla": {
        "chunk_size": 8,
        "n_action_steps": 4,
        "num_steps": 4,
        "num_vlm_layers": 4,
        "max_state_dim": 8,
        "max_action_dim": 8,
        "resize_imgs_with_padding": (32, 32),
        "tokenizer_max_length": 6,
    },
}
_WORDS = 60


def write_checkpoint(
    folder: Path, kind: str, shapes: Any = None, statistics: bool = True, **settings: Any
) -> None:
    """Writes a policy's config.json, weights and processors.

    Args:
        folder: where to write.
        kind: act, diffusion or smolvla.
        shapes: the shape of each observation by its name; None: joints and one camera.
        statistics: whether the processors have statistics of a data set.
        settings: settings of the policy's configuration, over the small ones here.
    """
    shapes = shapes or SHAPES
    torch.manual_seed(0)
    features = {
        name: PolicyFeature(_KINDS[name.split(".")[1]], shape) for name, shape in shapes.items()
    }
    action = PolicyFeature(FeatureType.ACTION, (JOINTS,))
    config: Any = DiffusionConfig
    policy: Any = DiffusionPolicy
    processors: Any = make_diffusion_pre_post_processors
    if kind == "act":
        config, policy, processors = ACTConfig, ACTPolicy, make_act_pre_post_processors
    if kind == "smolvla":
        # It needs transformers, which the others run without.
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
        from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

        config, policy, processors = SmolVLAConfig, SmolVLAPolicy, make_smolvla_pre_post_processors
        settings = {"vlm_model_name": str(folder / "vlm"), **settings}
        _write_vlm(folder / "vlm")
    else:
        settings = {"pretrained_backbone_weights": None, **settings}
    made = config(
        input_features=features,
        output_features={"action": action},
        device="cpu",
        **{**_SMALL[kind], **settings},
    )
    sizes = {**shapes, "action": (JOINTS,)}
    numbers = {name: _statistics(size) for name, size in sizes.items()} if statistics else None
    policy(made).save_pretrained(folder)
    for processor in processors(made, numbers):
        processor.save_pretrained(folder)


def _write_vlm(folder: Path) -> None:
    """Writes the configuration and the processor of a small model of images and words; LeRobot reads no weights here."""
    from transformers import SmolVLMConfig

    text = {"model_type": "llama", "vocab_size": _WORDS + 4, "hidden_size": 32, "head_dim": 8}
    text.update(intermediate_size=48, num_hidden_layers=4, num_attention_heads=4)
    text.update(num_key_value_heads=2, pad_token_id=2)
    image = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "patch_size": 8}
    image.update(num_attention_heads=2, image_size=32)
    SmolVLMConfig(
        text_config=text, vision_config=image, scale_factor=2, pad_token_id=2, image_token_id=_WORDS
    ).save_pretrained(folder)
    special = {
        "image_token": "<image>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "end_of_utterance_token": "<end_of_utterance>",
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": _WORDS + at, "content": token, "special": True, **plain}
        for at, token in enumerate(special.values())
    ]
    words = {"type": "WordLevel", "vocab": {f"w{n}": n for n in range(_WORDS)}, "unk_token": "w0"}
    splits = {"type": "WhitespaceSplit"}
    # This processor differs for videos alone, and needs one package less.
    processor = "Idefics3Processor"
    documents: Dict[str, Dict[str, Any]] = {
        "tokenizer.json": {"added_tokens": added, "pre_tokenizer": splits, "model": words},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "w2",
            "extra_special_tokens": special,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": processor,
        },
        "processor_config.json": {"processor_class": processor, "image_seq_len": 4},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")


def _statistics(shape: Tuple[int, ...]) -> Dict[str, torch.Tensor]:
    """Statistics of a data set's joints in degrees, or of its images by channel."""
    size = (shape[0], 1, 1) if len(shape) == 3 else shape
    low, width = torch.rand(size) - 1, torch.rand(size) + 0.5
    if len(shape) == 1:
        low, width = 90 * low, 90 * width
    high = low + width
    return {
        "min": low,
        "max": high,
        "mean": (low + high) / 2,
        "std": width / 4,
        "q01": low + width / 50,
        "q99": high - width / 50,
        "q10": low + width / 10,
        "q90": high - width / 10,
    }


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), sys.argv[2])
