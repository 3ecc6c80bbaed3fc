"""Loads model folders in Hugging Face layout, with the local copy of transformers and no network.

A folder holds config.json and safetensors weights; with a sentence-transformers ``modules.json``
pooling and normalization become part of the model.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgecompile.errors import MissingDependencyError, ModelError
from edgecompile.folder_files import find_weights, hash_files, optional_object, read_object
from edgecompile.models import AxisLimits, InputSpec, LoadedModel, LoadOptions, ModelSource
from edgecompile.named_module import NamedModule, describe_error
from edgecompile.position_limits import max_positions
from edgecompile.probing import probe_outputs
from edgecompile.sentence_modules import SentenceEncoder, SentencePipeline, read_pipeline
from edgecompile.tasks import choose_task, load_generative

# transformers reads these when it is imported. Nothing here may ever reach for a hub.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def load_folder(folder: Path, options: LoadOptions) -> LoadedModel:
    """Loads a folder in Hugging Face layout; see :func:`edgecompile.models.load_model`.

    Inputs are ``input_ids`` and ``attention_mask`` [batch, length] (``token_type_ids`` if asked
    for and known to the model), int64. Outputs are ``sentence_embedding`` for a pipeline, else
    what the architecture named in config.json returns.

    Raises:
        ModelError: the folder is incomplete, or the model isn't supported.
        MissingDependencyError: transformers isn't installed.
    """
    pipeline = read_pipeline(folder) if (folder / "modules.json").is_file() else None
    inner = pipeline.transformer if pipeline is not None else folder
    config = read_object(inner / "config.json", "the model's configuration")
    _check_config(inner, config)
    if _is_causal(config, options, pipeline is not None):
        load_causal_lm = load_generative()
        if load_causal_lm is not None:
            model: LoadedModel = load_causal_lm(folder, options)
            return model
    weights = find_weights(inner)
    transformer, notes = _load_transformer(inner, config, bare=pipeline is not None)
    inputs = _inputs(transformer, inner, config, options, pooled=pipeline is not None)
    names = [spec.name for spec in inputs]
    module = _assemble(transformer, pipeline, names)
    length = _length_limits(transformer, inner, options)
    lo, hi = options.batch or (1, 1)
    axes = {"batch": AxisLimits(lo, hi), "length": length}
    name = options.name or _plain_name(folder.resolve().name)
    tokenizer = next((p for d in (folder, inner) if (p := d / "tokenizer.json").is_file()), None)
    described = [inner / "config.json", *sorted(folder.glob("modules.json"))]
    return LoadedModel(
        name=name,
        module=module,
        inputs=inputs,
        outputs=probe_outputs(module, inputs, axes, name),
        axes=axes,
        length_axis="length",
        source=ModelSource(
            kind="folder",
            spec=str(folder),
            sha256=hash_files(folder, [*described, *weights]),
            details={
                "architecture": type(transformer).__name__,
                "model_type": str(config.get("model_type")),
                **({} if pipeline is None else {"pipeline": pipeline.description}),
            },
        ),
        tokenizer=tokenizer,
        notes=tuple(notes),
    )


def _is_causal(config: Mapping[str, Any], options: LoadOptions, pipeline: bool) -> bool:
    if options.task is not None:
        return options.task == "causal-lm"
    task = choose_task(config, None, main_input="input_ids", pipeline=pipeline)
    return task.name == "causal-lm"


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    problems = []
    if not isinstance(config.get("model_type"), str):
        problems.append("config.json has no model_type")
    if config.get("quantization_config"):
        problems.append("the weights are quantized already, which isn't supported")
    if problems:
        raise ModelError(
            f"'{folder}': " + "; ".join(problems),
            hint="give a folder written by save_pretrained, with plain float weights",
        )


def _load_transformer(
    folder: Path, config: Mapping[str, Any], *, bare: bool
) -> tuple[nn.Module, list[str]]:
    """The transformer in eval mode, float32; ``bare``: only its hidden states are wanted."""
    transformers = _import_transformers()
    loader, notes = _choose_class(transformers, config, bare)
    with _quiet(transformers):
        try:
            model, info = loader.from_pretrained(
                str(folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are reported instead, all of them
                output_loading_info=True,
            )
        except Exception as exc:
            raise ModelError(
                f"'{folder}' can't be loaded by transformers {transformers.__version__}: "
                + describe_error(exc),
                hint=_load_hint(config),
            ) from exc
    model = model.eval().float()
    _check_loading(folder, model, info)
    if model.main_input_name != "input_ids":
        raise ModelError(
            f"'{folder}': {type(model).__name__} takes {model.main_input_name}, not input_ids",
            hint="folders of text models are supported; for others write a factory "
            "(file.py:function) that returns the module with example inputs and its axes",
        )
    if model.config.is_encoder_decoder and not _has_task_head(config):
        model = model.get_encoder()
        notes.append("an encoder-decoder model: the encoder alone is compiled")
    pooler_missing = any("pooler" in key.split(".") for key in info["missing_keys"])
    if (bare or pooler_missing) and _drop_pooler(model) and pooler_missing:
        notes.append("the weights hold no pooler: there is no pooler_output")
    elif pooler_missing:
        raise ModelError(f"'{folder}': the weights of the pooler are missing")
    _prefer_exportable(model)
    return model, notes


def _import_transformers() -> Any:
    os.environ.update(_OFFLINE)
    try:
        import transformers
    except ImportError as exc:
        raise MissingDependencyError(
            "loading a model folder needs the Python package transformers",
            hint="pip install 'edgecompile[hf]'",
        ) from exc
    return transformers


def _choose_class(
    transformers: Any, config: Mapping[str, Any], bare: bool
) -> tuple[Any, list[str]]:
    names = config.get("architectures") or []
    name = str(names[0]) if names else ""
    found = getattr(transformers, name, None)
    if found is not None and found.config_class.model_type != config["model_type"]:
        found = None  # a name that means something else to whoever wrote the configuration
    if config.get("is_encoder_decoder") and (bare or not _has_task_head(config)):
        # T5 and its kin have a class for the encoder alone, whose weights may lie alone, too.
        found = getattr(transformers, re.sub(r"(For\w+|Model)$", "", name) + "EncoderModel", None)
        return found or transformers.AutoModel, []
    if bare or found is None or name.endswith("ForPreTraining"):
        return transformers.AutoModel, []
    return found, [f"config.json names {name}: its outputs are the model's"]


def _has_task_head(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or [""]
    return (
        re.search(r"For(Sequence|Token)Classification$|QuestionAnswering$", str(names[0]))
        is not None
    )


def _check_loading(folder: Path, model: Any, info: Mapping[str, Any]) -> None:
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
            hint="config.json and the weights must come from one save_pretrained",
        )


def _drop_pooler(model: Any) -> bool:
    """Removes a BERT-like pooler, whose output nobody wants; whether there was one."""
    base = getattr(model, "base_model", model)
    if not isinstance(getattr(base, "pooler", None), nn.Module):
        return False
    pooler, base.pooler = base.pooler, None
    try:
        with torch.no_grad():
            base(input_ids=torch.ones(1, 4, dtype=torch.int64))
    except Exception:  # a pooler that the model can't do without
        base.pooler = pooler
        return False
    return True


def _prefer_exportable(model: Any) -> None:
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


def _inputs(
    model: nn.Module,
    folder: Path,
    config: Mapping[str, Any],
    options: LoadOptions,
    *,
    pooled: bool,
) -> tuple[InputSpec, ...]:
    accepted = inspect.signature(model.forward).parameters
    shape = ("batch", "length")
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    vocabulary = int(embedding.weight.shape[0])
    pad = _pad_token(folder, config, vocabulary)
    specs = [InputSpec("input_ids", "int64", shape, pad, (0, vocabulary - 1))]
    if "attention_mask" in accepted or pooled:
        specs.append(InputSpec("attention_mask", "int64", shape, 0, (0, 1), (1, 1)))
    if options.token_type_ids:
        types = int(config.get("type_vocab_size") or 0)
        if "token_type_ids" not in accepted or types < 1:
            raise ModelError(f"'{folder}': {type(model).__name__} takes no token_type_ids")
        specs.append(InputSpec("token_type_ids", "int64", shape, 0, (0, types - 1)))
    unknown = sorted(set(options.pad) - {spec.name for spec in specs})
    if unknown:
        raise ModelError(f"pad values for inputs that don't exist: {', '.join(unknown)}")
    return tuple(
        InputSpec(s.name, s.dtype, s.shape, options.pad.get(s.name, s.pad), s.bounds, s.draw)
        for s in specs
    )


def _pad_token(folder: Path, config: Mapping[str, Any], vocabulary: int) -> int:
    tokenizer = optional_object(folder / "tokenizer.json", "the tokenizer").get("padding") or {}
    found = [config.get("pad_token_id"), tokenizer.get("pad_id"), config.get("eos_token_id")]
    for value in found:
        if isinstance(value, int) and 0 <= value < vocabulary:
            return value
    return 0


def _assemble(
    transformer: nn.Module, pipeline: SentencePipeline | None, names: list[str]
) -> NamedModule:
    accepted = inspect.signature(transformer.forward).parameters
    if pipeline is not None and pipeline.pooling is not None:
        masked = "attention_mask" in accepted
        encoder = SentenceEncoder(transformer, pipeline.pooling, pipeline.steps, masked)
        return NamedModule(encoder.eval(), names).eval()
    constants = {"use_cache": False, "return_dict": True}
    known = {key: value for key, value in constants.items() if key in accepted}
    return NamedModule(transformer, names, constants=known).eval()


def _length_limits(model: nn.Module, folder: Path, options: LoadOptions) -> AxisLimits:
    hard = max_positions(model)
    usual = optional_object(
        folder / "sentence_bert_config.json", "the sentence encoder's configuration"
    ).get("max_seq_length")
    wanted = options.max_length
    if wanted is not None and hard is not None and wanted > hard:
        raise ModelError(
            f"the maximum length {wanted} is over the model's {hard} positions",
            hint=f"give a maximum length of {hard} or less",
        )
    chosen = wanted or (usual if isinstance(usual, int) and usual >= 1 else None) or hard
    return AxisLimits(1, min(chosen, hard) if chosen and hard else chosen)


def _load_hint(config: Mapping[str, Any]) -> str:
    if config.get("auto_map"):
        return "the model brings its own code, which is never run from a folder; write a factory"
    return "does AutoModel.from_pretrained load the folder? A newer transformers may know the model"


def _plain_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip(".+-")[:100] or "model"


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
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
