"""The zoo's families of transformers, as its own lists name them: settings beside the usual tiny ones.

Left out are families that read several kinds of input at once, and those whose code needs packages
that the tests' environment lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["AUDIO", "DECODERS", "ENCODERS", "SERIES", "TEXT", "VISION", "Settings"]

Settings = Mapping[str, Mapping[str, Any]]

_NONE: Mapping[str, Any] = {}


def _plain(names: str) -> dict[str, Mapping[str, Any]]:
    return dict.fromkeys(names.split(), _NONE)


#: Encoders of text with the head for masked tokens; input_ids and attention_mask.
TEXT: Settings = {
    **_plain(
        "albert bert camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie "
        "esm eurobert flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm megatron-bert "
        "mobilebert modernbert mpnet mra nomic_bert nystromformer rembert roberta "
        "roberta-prelayernorm roformer squeezebert tapas ultrabert xlm xlm-roberta "
        "xlm-roberta-xl yoso"
    ),
    "big_bird": {"attention_type": "original_full"},
    "longformer": {"attention_window": [8, 8]},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 16},
    "neomme": {"head_dim": 16},
    "roc_bert": {"shape_vocab_size": 20, "pronunciation_vocab_size": 20},
    "xmod": {"default_language": "en_XX"},
    "reformer": {
        "axial_pos_embds_dim": [8, 24],
        "axial_pos_shape": [8, 16],
        "attn_layers": ["local", "local"],
        "is_decoder": False,
        "local_attn_chunk_length": 8,
    },
    "perceiver": {
        "num_latents": 8,
        "d_latents": 32,
        "num_blocks": 1,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "max_position_embeddings": 64,
    },
}

_LATENT = {"num_key_value_heads": 4}

#: Causal language models run without a cache: prefill. ``mask`` False: the family takes none.
DECODERS: Settings = {
    **_plain(
        "afmoe apertus arcee bailing_hybrid bamba biogpt bitnet bloom cohere cohere2 ctrl "
        "diffllama doge ernie4_5 ernie4_5_moe exaone4 falcon falcon_mamba gemma gemma2 "
        "gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss granite granitemoe "
        "granitemoehybrid helium hunyuan_v1_dense jamba jetmoe kimi_linear lfm2 llama llama4_text "
        "mamba minimax mistral mixtral modernbert-decoder mpt nanochat nemotron nemotron_h olmo "
        "olmo2 olmo_hybrid olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 "
        "qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2 xglm"
    ),
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 2, "chunk_size": 16},
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 16},
    "rwkv": {"mask": False, "attention_hidden_size": 32, "context_length": 64},
    "xlnet": {},
    "xlstm": {"mask": False, "qk_dim_factor": 0.5, "v_dim_factor": 1.0},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
}

#: The encoders of encoder-decoder models.
ENCODERS: Settings = {
    **_plain(
        "bart bigbird_pegasus blenderbot blenderbot-small longt5 m2m_100 marian mbart mt5 mvp "
        "pegasus pegasus_x plbart prophetnet switch_transformers t5 umt5"
    ),
    "bigbird_pegasus": {"attention_type": "original_full"},
    "fsmt": {"src_vocab_size": 99, "tgt_vocab_size": 99, "langs": ["en", "de"]},
    "led": {"attention_window": [8, 8], "max_encoder_position_embeddings": 128},
    "nllb-moe": {"encoder_sparse_step": 1},
}

_STEPS = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}

#: Classifiers of images of 32 by 32 unless said otherwise; what varies is how many there are.
VISION: Settings = {
    **_plain("beit data2vec-vision dinov2 dinov2_with_registers ijepa vit vit_msn"),
    "aimv2_vision_model": {"auto": "AutoModel"},
    "bit": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4},
    "clip_vision_model": {"auto": "AutoModel"},
    "convnext": {**_STEPS, "num_hidden_layers": 4, "num_stages": 4, "side": 64},
    "convnextv2": {**_STEPS, "num_hidden_layers": 4, "num_stages": 4, "side": 64},
    "deit": {"auto": "AutoModel"},
    "dinov3_convnext": {**_STEPS, "auto": "AutoModel", "side": 64},
    "dinov3_vit": {"auto": "AutoModel"},
    "donut-swin": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 2,
        "patch_size": 4,
        "hidden_size": 32,
    },
    "efficientnet": {
        "width_coefficient": 0.25,
        "depth_coefficient": 0.25,
        "hidden_dim": 320,
        "dropout_rate": 0.0,
    },
    "focalnet": {
        "embed_dim": 16,
        "depths": [1, 1],
        "hidden_sizes": [16, 32],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
        "patch_size": 4,
    },
    "glpn": {
        "auto": "AutoModel",
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "decoder_hidden_size": 16,
        "num_attention_heads": [1, 2, 3, 4],
    },
    "hgnet_v2": {
        "embedding_size": 16,
        "hidden_sizes": [16, 24, 32, 48],
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 24, 32],
        "stage_mid_channels": [8, 8, 16, 16],
        "stage_out_channels": [16, 24, 32, 48],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [2, 2, 2, 2],
    },
    "hiera": {
        "image_size": [32, 32],
        "embed_dim": 16,
        "patch_stride": [4, 4],
        "patch_size": [7, 7],
        "depths": [1, 1],
        "num_heads": [1, 2],
        "num_query_pool": 1,
        "masked_unit_size": [4, 4],
        "query_stride": [2, 2],
    },
    "levit": {
        "auto": "AutoModel",
        "side": 64,
        "image_size": 64,
        "hidden_sizes": [32, 48, 64],
        "num_attention_heads": [2, 3, 4],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
        "patch_size": 16,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {
        "side": 64,
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
        "patch_size": 2,
    },
    "mobilevitv2": {
        "side": 64,
        "image_size": 64,
        "width_multiplier": 0.25,
        "patch_size": 2,
        "base_attn_unit_dims": [32, 48, 64],
        "n_attn_blocks": [1, 1, 1],
    },
    "pixio": {"auto": "AutoModel"},
    "poolformer": _STEPS,
    "pp_lcnet": {"scale": 0.25},
    "pvt": {
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
        "num_labels": 3,
    },
    "pvt_v2": {
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
    },
    "regnet": {
        "embedding_size": 16,
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "groups_width": 8,
    },
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
    "segformer": {
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 16,
    },
    "siglip_vision_model": {"auto": "AutoModel"},
    "swiftformer": {
        "embed_dims": [16, 24, 32, 48],
        "depths": [1, 1, 1, 1],
        "side": 64,
        "image_size": 64,
    },
    "swin": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 2,
        "patch_size": 4,
    },
    "swinv2": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 2,
        "patch_size": 4,
        "hidden_size": 32,
    },
    "swin2sr": {
        "auto": "AutoModel",
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 2],
        "window_size": 4,
        "patch_size": 1,
        "image_size": 16,
        "side": 16,
    },
    "textnet": {
        "stem_out_channels": 8,
        "hidden_sizes": [8, 8, 16, 16, 24],
        "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3], [1, 3]], [[3, 1]], [[3, 3]]],
        "conv_layer_strides": [[2], [2, 1], [2], [2]],
    },
    # What it leaves out is chosen by noise, which it draws itself unless it is given.
    "vit_mae": {"auto": "AutoModel", "noise": 16},
    "vitdet": {"auto": "AutoModel"},
    "yolos": {
        "auto": "AutoModelForObjectDetection",
        "num_detection_tokens": 4,
        "image_size": [32, 32],
    },
    "dpt": {"auto": "AutoModel"},
}

_CONVS = {
    "conv_dim": [16, 16, 16],
    "conv_stride": [4, 2, 2],
    "conv_kernel": [8, 3, 3],
    "num_feat_extract_layers": 3,
}
_WAVE = {**_CONVS, "input": (400, 1600, None), "auto": "AutoModelForCTC", "vocab_size": 32}

#: Of a waveform (samples) or a spectrogram (frames); fixed sizes where a family knows one only.
AUDIO: Settings = {
    **dict.fromkeys(("hubert", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"), _WAVE),
    "wav2vec2-conformer": _WAVE,
    "data2vec-audio": {**_WAVE, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 7},
    "sew": {**_WAVE, "squeeze_factor": 2},
    "sew-d": {**_WAVE, "squeeze_factor": 2},
    "wav2vec2-bert": {
        "input": (8, 64, 16),
        "auto": "AutoModelForCTC",
        "feature_projection_input_dim": 16,
        "vocab_size": 32,
    },
    "audio-spectrogram-transformer": {
        "input": (48, 48, 16),
        "auto": "AutoModel",
        "max_length": 48,
        "patch_size": 8,
        "name": "input_values",
    },
    "whisper": {
        "input": (64, 64, 16),
        "part": "get_encoder",
        "axes": "channels first",
        "max_source_positions": 32,
    },
    "parakeet_encoder": {
        "input": (16, 96, 16),
        "subsampling_conv_channels": 8,
        "conv_kernel_size": 5,
    },
    "speech_to_text": {
        "input": (16, 96, 16),
        "part": "get_encoder",
        "conv_channels": 16,
        "input_feat_per_channel": 16,
    },
    "lasr_encoder": {"input": (16, 96, 16)},
    "moonshine": {"input": (1600, 6400, None), "part": "get_encoder"},
}

#: Forecasts from 32 past values of 3 channels.
SERIES: Settings = {
    "patchtst": {
        "auto": "PatchTSTForPrediction",
        "num_input_channels": 3,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 6,
    },
    "patchtsmixer": {
        "auto": "PatchTSMixerForPrediction",
        "num_input_channels": 3,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "prediction_length": 6,
        "d_model": 16,
    },
}
