"""The generation settings of a transformers model: limits, special tokens, sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgecompile.errors import ModelError
from edgecompile.loaders.generators.step import INPUT, LAST, POSITION, GenerationStep
from edgecompile.loaders.generators.storage import Storage
from edgecompile.models.options import FOR_GENERATION, LoadOptions
from edgecompile.models.specs import InputSpec

LENGTH, CONTEXT = "length", "context"

#: Rows of the context where nobody says otherwise: memory grows with them.
DEFAULT_CONTEXT = 2048


#: What transformers can be asked for that isn't done, with the values that ask for nothing. None does
#: always. What there is beside is honoured, or is about beams.
_UNHEEDED: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "top_h": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "stop_strings": ([],),
}


def refuse_unused(options: LoadOptions, served: str, *, without: str) -> None:
    """Refuses what says how other models are loaded (it would be passed over), and batches.

    Args:
        options: the options that were given.
        served: the inputs that are served one after another, in words.
        without: the task that compiles the model without a cache.

    Raises:
        ModelError: lists all of them.
    """
    names = [name for name in options.to_json() if name not in ("task", *FOR_GENERATION)]
    problems = [f"`{name}`" for name in names if getattr(options, name)]
    problems += [f"a pad value for {name}" for name in options.pad if name != INPUT]
    wrong, hints = [], []
    if problems:
        wrong.append(
            f"{', '.join(problems)}: not for generation, whose inputs and outputs are settled"
        )
        hints.append(f'leave it out, or compile the model without a cache: `task="{without}"`')
    lo, hi = options.batch or (1, 1)
    if (lo, hi) != (1, 1):
        wrong.append(f"a batch of {lo}..{hi} was asked for, but generation has a batch of 1")
        hints.append(f"leave `batch` out: {served} are served one after another")
    if wrong:
        raise ModelError("; ".join(wrong), hint="; ".join(hints))


def refuse_storage(storage: Storage, problem: str) -> ModelError:
    """The error for a model whose caches can't be stored so."""
    return ModelError(
        f'`cache_precision="{storage.precision}"` is for the keys and values of a decoder alone: {problem}',
        hint="leave it out",
    )


def context_limit(own: int | None, max_context: int | None, notes: list[str]) -> int:
    """Rows of the context: as many as are asked for, else what the model has, up to a default.

    Args:
        own: the model's positions; None: any number.
        max_context: the requested value.
        notes: a list that gets remarks for the user.

    Raises:
        ModelError: more are asked for than there are.
    """
    if max_context is not None and own is not None and max_context > own:
        raise ModelError(
            f"a context of {max_context} tokens was asked for, but the model has {own} positions",
            hint=f"`max_context` may be {own} or less",
        )
    if max_context is None and (own is None or own > DEFAULT_CONTEXT):
        allowed = "any length" if own is None else f"{own} tokens"
        notes.append(
            f"the context is {DEFAULT_CONTEXT} tokens, as none is asked for; the model allows {allowed}"
        )
    return max_context or min(own or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def step_inputs(
    vocabulary: int,
    pad: int,
    max_context: int,
    longest: int,
    step: GenerationStep,
) -> tuple[InputSpec, ...]:
    """The inputs of a step, but for those of a source, by what it keeps.

    Runs have at most ``longest`` tokens.
    """
    return (
        InputSpec(INPUT, "int64", (1, LENGTH), pad, (0, vocabulary - 1)),
        InputSpec(
            POSITION,
            "int64",
            (1,),
            bounds=(0, max_context - 1),
            draw=(0, f"{CONTEXT if step.has_rows else max_context}-{LENGTH}"),
        ),
        InputSpec(LAST, "int64", (1,), bounds=(0, longest - 1), draw=(0, f"{LENGTH}-1")),
        *(
            InputSpec(
                item.name,
                step.storage.dtype if item.grows else "float32",
                (CONTEXT, *item.shape[:-1], step.storage.size(item.shape[-1]))
                if item.grows
                else item.shape,
                in_place=True,
            )
            for item in step.kept
        ),
    )


def generation_setting(model: Any, name: str) -> Any:
    """The setting of the generation configuration, else the model's."""
    value = getattr(getattr(model, "generation_config", None), name, None)
    return getattr(model.config, name, None) if value is None else value


def unheeded_settings(model: Any, also: Sequence[str] = ()) -> list[str]:
    """A note for people if the model's files ask for an unsupported setting.

    Args:
        model: a transformers model.
        also: further settings that aren't honoured, whatever their value.
    """
    texts = [
        f"{name} {value}"
        for name, nothing in {**_UNHEEDED, **{name: ([],) for name in also}}.items()
        if (value := generation_setting(model, name)) is not None and value not in nothing
    ]
    return [f"what generation_config.json says isn't done: {', '.join(texts)}"] if texts else []


def token_or_none(value: Any, vocabulary: int) -> int | None:
    """``value`` if it is a token, else None."""
    return value if isinstance(value, int) and 0 <= value < vocabulary else None


def tokens_of(model: Any, name: str, vocabulary: int) -> tuple[int, ...]:
    """The tokens of a setting, which may be one or a list; () where it has none."""
    value = generation_setting(model, name)
    items = value if isinstance(value, (list, tuple)) else [value]
    tokens = [token_or_none(item, vocabulary) for item in items]
    return tuple(dict.fromkeys(token for token in tokens if token is not None))


def pad_token(model: Any, options: LoadOptions, vocabulary: int) -> int:
    """The token that pads a run: as asked for, else the model's own, else one that ends a text."""
    asked = options.pad.get(INPUT)
    value = asked if asked is not None else generation_setting(model, "pad_token_id")
    token = token_or_none(value, vocabulary)
    return (
        token if token is not None else next(iter(tokens_of(model, "eos_token_id", vocabulary)), 0)
    )


def sampling_defaults(model: Any) -> Mapping[str, Any]:
    """The author's settings for sampling, as far as transformers' files have them and they are sane."""
    config = getattr(model, "generation_config", None)
    checks: Mapping[str, Callable[[Any], bool]] = {
        "do_sample": lambda v: isinstance(v, bool),
        "temperature": lambda v: v >= 0,
        "top_k": lambda v: v >= 0 and v == int(v),
        "top_p": lambda v: 0 < v <= 1,
        "repetition_penalty": lambda v: v > 0,
        "max_new_tokens": lambda v: v >= 1,
    }
    result: dict[str, Any] = {}
    for name, good in checks.items():
        value = getattr(config, name, None)
        if isinstance(value, (bool, int, float)) and good(value):
            result[name] = value
    return result
