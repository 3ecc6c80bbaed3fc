"""Tiny configurations of transformers' families: every size that has a usual name is made small.

A family's own defaults stay where nothing is said, so that what makes it special (its norms, its
rotary embeddings, its windows) is what transformers ships.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["tiny_config"]

#: Whole numbers by the name that configurations give them. A list of a default keeps its form.
_SIZES: Mapping[str, int] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "emb_dim": 32,
    "dim": 32,
    "embed_dim": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "embed_size": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "ffn_hidden_size": 64,
    "hidden_dim": 64,
    "ffn_dim": 64,
    "dim_ff": 64,
    "dff": 64,
    "d_ff": 64,
    "d_inner": 64,
    "d_kv": 8,
    "dim_head": 8,
    "d_head": 8,
    "head_dim": 8,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_dim": 32,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "max_source_positions": 128,
    "max_target_positions": 128,
    "n_ctx": 128,
    "n_inner": 64,
    "type_vocab_size": 2,
    "image_size": 32,
    "patch_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "state_size": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "time_step_rank": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "num_mel_bins": 16,
    "conv_depthwise_kernel_size": 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "adapter_kernel_size": 3,
}


def tiny_config(model_type: str, changes: Mapping[str, Any]) -> Any:
    """The family's configuration in tiny.

    Args:
        model_type: as transformers calls the family.
        changes: settings that the family needs beside or instead of the usual ones.
    """
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    default = kind()
    settings = {*default.to_dict(), *getattr(kind, "attribute_map", {})}
    small = {
        name: size
        for name, size in _SIZES.items()
        if name in settings and _is_size(getattr(default, name, None))
    }
    return kind(**{**small, **changes})


def _is_size(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
