"""Loads what ``save_pretrained`` wrote, with the local copy of transformers and no network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from edgecompile.errors import MissingDependencyError, ModelError
from edgecompile.models.mapped import widen
from edgecompile.models.modules import describe_error
from edgecompile.models.tasks import SEQ2SEQ_LM, Task, architecture_of

if TYPE_CHECKING:
    from edgecompile.loaders.checkpoints.packed_folder import PackedFolder

#: Variables that transformers and LeRobot read when they are imported. Nothing here may ever reach for a hub.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_ENCODER_HEADS = r"For(Sequence|Token|Audio)Classification$|ForQuestionAnswering$"


def import_transformers() -> Any:
    """The package, told to stay offline.

    Raises:
        MissingDependencyError: it isn't installed.
    """
    os.environ.update(OFFLINE)
    try:
        import transformers
    except ImportError as exc:
        raise MissingDependencyError(
            "loading a model folder needs the Python package transformers",
            hint="pip install 'edgecompile[hf]'",
        ) from exc
    return transformers


def main_input(config: Mapping[str, Any]) -> str:
    """The main input of the model that config.json describes, such as ``pixel_values``."""
    transformers = import_transformers()
    model_class = _named_class(transformers, config)
    if model_class is None:
        names = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
        name = names.get(config.get("model_type"), "")
        model_class = getattr(transformers, name if isinstance(name, str) else name[0], None)
    return str(getattr(model_class, "main_input_name", "input_ids"))


def load_pretrained(
    folder: Path, config: Mapping[str, Any], task: Task, packed: PackedFolder | None = None
) -> tuple[Any, tuple[str, ...]]:
    """The model of a folder for a task.

    Args:
        folder: holds config.json and the weights, both looked at before.
        config: the parsed config.json.
        task: its task; a bare one leaves heads and the pooler of BERT's kin out.
        packed: its weights, where they are packed.

    Returns:
        The model in eval mode, float32, as torch.export can trace it: the whole of it, or the encoder
        of an encoder-decoder model. And choices that a person may want to know.

    Raises:
        ModelError: transformers can't load it, or its weights don't fit the task's class.
        MissingDependencyError: transformers isn't installed.
    """
    transformers = import_transformers()
    loader, notes = _choose_class(transformers, config, task)
    state = None if packed is None else packed.state()
    with quiet(transformers):
        try:
            described = {} if state is None else _plain_config(transformers, folder, state)
            model, info = loader.from_pretrained(
                None if described else str(folder),
                **described,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are reported instead, all of them
                output_loading_info=True,
            )
            if packed is not None and (folder / "generation_config.json").is_file():
                settings = transformers.GenerationConfig.from_pretrained(str(folder))
                model.generation_config = settings
        except Exception as exc:
            raise _load_error(folder, config, transformers.__version__, exc) from exc
    widen(model.eval())
    check_loading(folder, model, info, task)
    generates = task.name == SEQ2SEQ_LM
    if model.config.is_encoder_decoder and not (
        generates or _has_encoder_head(type(model).__name__)
    ):
        model = model.get_encoder()
        notes.append("an encoder-decoder model: the encoder alone is compiled")
    pooler_missing = any("pooler" in key.split(".") for key in info["missing_keys"])
    if pooler_missing:
        if not drop_pooler(model):
            raise ModelError(f"'{folder}': the weights of the pooler are missing")
        notes.append("the weights hold no pooler: there is no pooler_output")
    prefer_exportable(model)
    return model, tuple(notes)


def _plain_config(transformers: Any, folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by which transformers makes a model of floats, whatever its folder says of them."""
    config = transformers.AutoConfig.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return {"config": config, "state_dict": state, **in_float32(transformers)}


def in_float32(transformers: Any) -> dict[str, Any]:
    """The argument by which from_pretrained leaves float32 weights as they are."""
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    return {"dtype" if version >= (4, 56) else "torch_dtype": torch.float32}


def drop_pooler(model: Any) -> bool:
    """Removes a BERT-like pooler, whose output nobody wants; whether there was one."""
    base = getattr(model, "base_model", model)
    if not isinstance(getattr(base, "pooler", None), nn.Module):
        return False
    pooler, base.pooler = base.pooler, None
    if base.main_input_name != "input_ids":
        return True
    try:
        with torch.no_grad():
            base(input_ids=torch.ones(1, 4, dtype=torch.int64))
    except Exception:  # a pooler that the model can't do without
        base.pooler = pooler
        return False
    return True


def _named_class(transformers: Any, config: Mapping[str, Any]) -> Any:
    """The class that config.json names; None where it means something else or isn't there."""
    model_class = getattr(transformers, architecture_of(config), None)
    kind = getattr(getattr(model_class, "config_class", None), "model_type", None)
    return model_class if kind is not None and kind == config.get("model_type") else None


def _choose_class(
    transformers: Any, config: Mapping[str, Any], task: Task
) -> tuple[Any, list[str]]:
    name = architecture_of(config)
    model_class = _named_class(transformers, config)
    headed = re.search(r"For[A-Z]\w*$|LMHead\w*$", name) is not None
    if config.get("is_encoder_decoder") and not (task.auto or _has_encoder_head(name)):
        # T5 and its kin have a class for the encoder alone, whose weights may lie alone, too.
        short = re.sub(r"(For\w+|Model)$", "", name) + "EncoderModel"
        return getattr(transformers, short, None) or transformers.AutoModel, []
    if task.name == SEQ2SEQ_LM:
        # Those that read sound have an automatic class of their own; each names itself.
        generates = model_class is not None and model_class.can_generate()
        return (model_class, []) if generates else (getattr(transformers, task.auto), [])
    if task.auto and not task.names_head(name):
        return getattr(transformers, task.auto), [
            f"{name or 'the model'} is loaded for {task.name}"
        ]
    if model_class is None or name.endswith("ForPreTraining") or (task.bare and headed):
        return transformers.AutoModel, []
    return model_class, [f"Task: {task.name} (from config.json: {name})."]


def _has_encoder_head(name: str) -> bool:
    """Whether a class of an encoder-decoder model classifies, and so needs its decoder, too."""
    return re.search(_ENCODER_HEADS, name) is not None


def check_loading(folder: Path, model: Any, info: Mapping[str, Any], task: Task) -> None:
    """Refuses weights that are missing or have another shape, all of them, by transformers' report."""
    missing = sorted(k for k in info["missing_keys"] if "pooler" not in k.split("."))
    mismatched = sorted(str(item[0]) for item in info["mismatched_keys"])
    problems = []
    if missing:
        problems.append(f"{len(missing)} weights are missing: " + ", ".join(missing[:8]))
    if mismatched:
        problems.append(f"{len(mismatched)} have another shape: " + ", ".join(mismatched[:8]))
    if info.get("error_msgs"):
        problems.extend(str(text) for text in info["error_msgs"])
    if problems:
        raise ModelError(
            f"'{folder}': the weights don't fit {type(model).__name__}: " + "; ".join(problems),
            hint="config.json and the weights must come from one save_pretrained"
            + (f", of a model that was trained for {task.name}" if task.auto else ""),
        )


def prefer_exportable(model: Any) -> None:
    """Chooses implementations that torch.export can trace, where a model has several."""
    config = model.config
    for flag in ("use_cache", "output_attentions", "output_hidden_states"):
        if getattr(config, flag, False):
            setattr(config, flag, False)
    if getattr(config, "_attn_implementation", "sdpa") not in ("sdpa", "eager", None):
        model.set_attn_implementation("eager")
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        # The default goes through a grouped product that only Python can call.
        setter = getattr(model, "set_experts_implementation", None)
        if setter is not None:
            setter("batched_mm")


def _load_error(
    folder: Path, config: Mapping[str, Any], version: str, exc: Exception
) -> ModelError:
    if config.get("auto_map") and "trust_remote_code" in str(exc):
        # What transformers says is about that option, which edgecompile doesn't have.
        return ModelError(
            f"'{folder}': the model brings its own code (auto_map in config.json), which is never "
            "run from a folder",
            hint="write a factory (file.py:function) that builds the module with code of yours; "
            "`__cause__` shows what transformers says",
        )
    return ModelError(
        f"'{folder}' can't be loaded by transformers {version}: {describe_error(exc)}",
        hint="does AutoModel.from_pretrained load the folder? A newer transformers may know the "
        "model",
    )


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keeps transformers from printing while weights are loaded."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
