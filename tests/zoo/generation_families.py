"""Tiny random causal language models of many families: what generation is tried on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "FAMILIES",
    "SOURCES",
    "Family",
    "load_family",
    "make_family",
]

VOCABULARY, POSITIONS = 97, 128
#: Tokens of the longest source, where they vary.
LONGEST_SOURCE = 40
#: Tokens of the longest run of a prompt; longer prompts come in pieces.
LONGEST_RUN = 24
TARGET = "cpu-x86-64-v3"

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_USUAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    **_TOKENS,
}
_SHARED = {**_USUAL, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": POSITIONS,
    **_TOKENS,
}
_MAMBA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    **_TOKENS,
}
_WITHOUT_MLP = {name: value for name, value in _USUAL.items() if name != "intermediate_size"}


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        model: transformers' class.
        config: of its configuration.
        settings: the configuration's.
        note: what is special about it.
        generation: settings of its generation configuration.
    """

    model: str
    config: str
    settings: Mapping[str, Any] = field(default_factory=lambda: _USUAL)
    note: str = ""
    generation: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _SHARED, "rotary, shared heads"),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", _SHARED, "biases in attention"),
    "qwen3": Family(
        "Qwen3ForCausalLM", "Qwen3Config", {**_SHARED, "head_dim": 16}, "normalised queries"
    ),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", _GPT2, "learned positions"),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", note="partly rotary, parallel"),
    "gemma": Family(
        "GemmaForCausalLM",
        "GemmaConfig",
        {**_USUAL, "num_key_value_heads": 1, "head_dim": 16},
        "one key head",
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**_SHARED, "head_dim": 16, "sliding_window": 8},
        "capped scores, every other layer slides",
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **_SHARED,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "two rotary bases",
    ),
    "phi": Family("PhiForCausalLM", "PhiConfig", note="partly rotary, biases"),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", note="one projection for all"),
    "mistral": Family(
        "MistralForCausalLM",
        "MistralConfig",
        {**_SHARED, "sliding_window": 8},
        "every layer slides",
    ),
    "opt": Family(
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": POSITIONS,
            "word_embed_proj_dim": 32,
            **_TOKENS,
        },
        "learned positions with an offset",
    ),
    "starcoder2": Family("Starcoder2ForCausalLM", "Starcoder2Config", _SHARED),
    "falcon": Family(
        "FalconForCausalLM",
        "FalconConfig",
        {**_WITHOUT_MLP, "multi_query": True, "alibi": False, "ffn_hidden_size": 64},
        "attention of its own, one key head",
    ),
    "falcon-alibi": Family(
        "FalconForCausalLM",
        "FalconConfig",
        {
            **_WITHOUT_MLP,
            "multi_query": False,
            "alibi": True,
            "new_decoder_architecture": False,
            "ffn_hidden_size": 64,
        },
        "ALiBi: a mask of numbers",
    ),
    "bloom": Family(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, **_TOKENS},
        "ALiBi",
    ),
    "gptj": Family("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 8}),
    "codegen": Family("CodeGenForCausalLM", "CodeGenConfig", {**_GPT2, "rotary_dim": 8}),
    "stablelm": Family("StableLmForCausalLM", "StableLmConfig", _SHARED),
    "cohere": Family("CohereForCausalLM", "CohereConfig", _SHARED),
    "olmo2": Family("Olmo2ForCausalLM", "Olmo2Config", _SHARED),
    "granite": Family("GraniteForCausalLM", "GraniteConfig", _SHARED),
    "smollm3": Family("SmolLM3ForCausalLM", "SmolLM3Config", _SHARED),
    "glm4": Family("Glm4ForCausalLM", "Glm4Config", {**_SHARED, "head_dim": 16}),
    "mixtral": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_SHARED, "num_local_experts": 4},
        "a mixture of experts",
    ),
    "xglm": Family(
        "XGLMForCausalLM",
        "XGLMConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "ffn_dim": 64,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": POSITIONS,
            **_TOKENS,
        },
        "computed positions",
    ),
    "gpt_neo": Family(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": POSITIONS,
            "intermediate_size": 64,
            **_TOKENS,
        },
        "counts positions from the cache's end",
    ),
    "mpt": Family(
        "MptForCausalLM",
        "MptConfig",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": VOCABULARY,
            "max_seq_len": POSITIONS,
            **_TOKENS,
        },
        "ALiBi, sized by what is in the cache",
    ),
    "lfm3": Family(
        "Lfm3ForCausalLM",
        "Lfm3Config",
        {
            **_SHARED,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
        },
        "short convolutions, layers that slide",
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**_SHARED, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        "a short convolution before attention",
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {**_MAMBA, "state_size": 8, "n_groups": 2, "num_heads": 8, "head_dim": 8, "chunk_size": 16},
        "states alone, no attention",
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        "FalconH1Config",
        {
            **_SHARED,
            "head_dim": 8,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 16,
        },
        "Mamba-2 beside attention in each layer",
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            **_SHARED,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 16,
        },
        "layers of Mamba-2, a mixture of experts",
    ),
    "qwen3_5": Family(
        "Qwen3_5ForCausalLM",
        "Qwen3_5TextConfig",
        {
            **_SHARED,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        "the gated delta rule before attention",
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_SHARED,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
        "the gated delta rule, a mixture of experts",
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            **_USUAL,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_heads": 4,
            "linear_head_dim": 8,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 2,
        },
        "the delta rule with a decay for each key, latent attention",
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {
            **_SHARED,
            "layers_block_type": ["mamba", "attention"],
            "head_dim": 8,
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "chunk_size": 16,
        },
        "Mamba-2, whose single steps differ from its prompts",
    ),
    "mamba": Family(
        "MambaForCausalLM",
        "MambaConfig",
        {**_MAMBA, "state_size": 8, "tie_word_embeddings": False},
        "Mamba-1 alone",
    ),
    "jamba": Family(
        "JambaForCausalLM",
        "JambaConfig",
        {
            **_SHARED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        "Mamba-1 before attention",
    ),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **_SHARED,
            "num_hidden_layers": 4,
            "intermediate_size": [64] * 4,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0],
        },
        "layers that read the keys of others, embeddings of each layer",
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **_SHARED,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        "head widths of each layer, layers that read the keys of others",
    ),
}


_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": POSITIONS,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 1,
    **_TOKENS,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}

#: Those that go on from a source, which an encoder reads.
SOURCES: Mapping[str, Family] = {
    "t5": Family("T5ForConditionalGeneration", "T5Config", _T5, "relative positions"),
    "mt5": Family(
        "MT5ForConditionalGeneration",
        "MT5Config",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "gated, a head of its own",
    ),
    "bart": Family("BartForConditionalGeneration", "BartConfig", _BART, "learned positions"),
    "mbart": Family(
        "MBartForConditionalGeneration",
        "MBartConfig",
        _BART,
        "a forced first token, norms first",
        {"forced_bos_token_id": 5},
    ),
    "marian": Family("MarianMTModel", "MarianConfig", _BART, "computed positions"),
    "pegasus": Family("PegasusForConditionalGeneration", "PegasusConfig", _BART),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
            "num_mel_bins": 8,
            "max_source_positions": 24,
            "max_target_positions": POSITIONS,
            "suppress_tokens": [5, 6],
            "begin_suppress_tokens": [7],
        },
        "sound of one size, tokens that are never chosen",
    ),
}


def make_family(name: str, *, calm: bool = False, vocabulary: int | None = None) -> Any:
    """A model of the family with random weights, the same ones every time.

    They are large enough that the likeliest token changes with the context; where it is ``calm``, small enough
    that rounding them changes little.
    """
    import torch
    import transformers

    from tests.factories.outliers import add_outliers

    family = {**FAMILIES, **SOURCES}[name]
    settings = {**family.settings, **({"vocab_size": vocabulary} if vocabulary else {})}
    config = getattr(transformers, family.config)(**settings)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = getattr(transformers, family.model)(config).eval().float()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.05 if calm else _spread(name, path))
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        if not calm:
            add_outliers(model)
    model.generation_config.update(**family.generation)
    return model


def _spread(name: str, path: str) -> float:
    """How far random weights are from 0.

    A decoder whose table of tokens is its head, too, says the last token again unless its layers
    are louder than that.
    """
    if name in FAMILIES:
        return 0.2
    return 0.05 if any(part in path for part in ("embed_tokens", "shared")) else 0.4


def load_family(
    name: str, *, calm: bool = False, vocabulary: int | None = None, **changes: Any
) -> Any:
    """The family's model, to generate with; ``changes`` are fields of ``LoadOptions``, the others of ``make_family``.

    Raises:
        ModelError: it can't.
    """
    from edgecompile.loaders.generators.makers import GeneratorMaker
    from edgecompile.models.loaded import ModelSource
    from edgecompile.models.options import LoadOptions

    options = LoadOptions(max_length=LONGEST_RUN, max_context=POSITIONS, task="causal-lm")
    if name in SOURCES:
        fixed = name == "whisper"
        options = LoadOptions(max_length=None if fixed else LONGEST_SOURCE, max_context=POSITIONS)
    options = replace(options, **changes)
    task, source = options.task or "seq2seq-lm", ModelSource("object", name)
    model = make_family(name, calm=calm, vocabulary=vocabulary)
    return GeneratorMaker(task, model, options, name=name, source=source).make()
