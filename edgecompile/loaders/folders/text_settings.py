"""The text settings of a bundle: the tokenizer that travels along, and the inputs that it feeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.lengths.texts import wants_lower_case
from edgecompile.loaders.folders.files import optional_object, read_object
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import TOKENIZER_PARTS
from edgecompile.runtime.format.manifest.schema import Extent, TextSpec
from edgecompile.runtime.format.manifest.text import MAX_PROMPTS, MAX_TOKENIZER_BYTES

#: Where the tokenizer is in a bundle.
TOKENIZER_PATH = "tokenizer/tokenizer.json"


def describe_texts(
    model: LoadedModel, axes: Mapping[str, Extent]
) -> tuple[TextSpec | None, tuple[str, ...]]:
    """The text settings for the manifest, and notes for people.

    Args:
        model: the model to pack.
        axes: the sizes that the bundle serves.

    Returns:
        None for a model without a tokenizer, or none of whose inputs is called as token ids are.

    Raises:
        ModelError: its tokenizer.json isn't JSON, or is too large for a bundle.
    """
    if model.tokenizer is None:
        return None, ()
    checked_tokenizer(model.tokenizer)
    inputs = {
        spec.name: TOKENIZER_PARTS[spec.name]
        for spec in model.inputs
        if spec.name in TOKENIZER_PARTS and spec.dtype.startswith("int") and len(spec.shape) == 2
    }
    ids = next((spec for spec in model.inputs if inputs.get(spec.name) == "ids"), None)
    shapes = {spec.shape for spec in model.inputs if spec.name in inputs}
    sizes = () if ids is None else ids.shape
    tied = any(isinstance(size, str) and size not in axes for size in sizes)
    if ids is None or tied or len(shapes) > 1 or len(set(inputs.values())) < len(inputs):
        return None, ("the tokenizer is left out: the model has no input that texts could feed",)
    dim = ids.shape[1]
    prompts, prompt, notes = _prompts(model.tokenizer.parent)
    spec = TextSpec(
        TOKENIZER_PATH,
        max_length=dim if isinstance(dim, int) else axes[dim].hi,
        pad_id=int(ids.pad or 0),
        inputs=inputs,
        prepare=_steps(model.tokenizer.parent),
        prompts=prompts,
        default_prompt=prompt,
    )
    return spec, notes


def checked_tokenizer(path: Path) -> Path:
    """The path of a tokenizer.json that a bundle can hold.

    Raises:
        ModelError: it isn't JSON, or is too large for a bundle.
    """
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise ModelError(
            f"'{path}' has {size} bytes, a bundle takes a tokenizer of {MAX_TOKENIZER_BYTES} at most",
            hint="`keep_tokenizer=False` leaves it out",
        )
    if not isinstance(read_object(path, "the tokenizer").get("model"), dict):
        raise ModelError(
            f"'{path}' is no tokenizer: it has no model",
            hint="AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes one; or "
            "leave it out: `keep_tokenizer=False`",
        )
    return path


def _steps(folder: Path) -> tuple[str, ...]:
    """The changes of sentence-transformers to a text before tokenizing; none for others."""
    if not (folder / "sentence_bert_config.json").is_file():
        return ()
    return ("strip", "lower") if wants_lower_case(folder) else ("strip",)


def _marks(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The tokens by which a model of late interaction tells queries from documents, as prompts."""
    tokenizer = read_object(folder / "tokenizer.json", "the tokenizer")
    added = tokenizer.get("added_tokens")
    tokens = (
        [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    )
    known = [token.get("content") for token in tokens]
    marks = {name: settings.get(f"{name}_prefix") for name in ("query", "document")}
    return {name: mark for name, mark in marks.items() if isinstance(mark, str) and mark in known}


def _prompts(folder: Path) -> tuple[dict[str, str], str | None, tuple[str, ...]]:
    """The prompts of a sentence-transformers pipeline, which one is the default, and notes."""
    settings = optional_object(
        folder / "config_sentence_transformers.json", "the sentence encoder's configuration"
    )
    entries: Any = settings.get("prompts")
    prompts = {
        **_marks(folder, settings),
        **{
            name: text
            for name, text in (entries.items() if isinstance(entries, dict) else ())
            if isinstance(name, str) and isinstance(text, str)
        },
    }
    default = settings.get("default_prompt_name")
    if not prompts:
        return {}, None, ()
    pooled = [optional_object(p, "a module") for p in sorted(folder.glob("*Pooling/config.json"))]
    if any(config.get("include_prompt") is False for config in pooled):
        return {}, None, ("prompts are left out: the pipeline's pooling passes over their tokens",)
    if len(prompts) > MAX_PROMPTS:
        return {}, None, (f"prompts are left out: there are {len(prompts)} of them",)
    return prompts, default if isinstance(default, str) and default in prompts else None, ()
