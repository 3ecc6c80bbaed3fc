"""Speech models with random weights, in folders as their authors publish them, and recordings for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 16000
#: Tokens of the small Whisper: text, special ones, and times up to two seconds.
EOS, START, LANGUAGES, TASKS = (
    60,
    61,
    {"<|en|>": 62, "<|de|>": 63},
    {"transcribe": 64, "translate": 65},
)
PREVIOUS, PLAIN, TIMES = 66, 68, 101
SECONDS = 2

Samples = npt.NDArray[np.float32]


def make_samples(seconds: float, seed: int = 0) -> Samples:
    """A recording of tones that come and go, and noise: float32 [samples], at 16 kHz."""
    random = np.random.default_rng(seed)
    count = round(seconds * RATE)
    time = np.arange(count) / RATE
    result = 0.01 * random.standard_normal(count)
    for _ in range(4):
        pitch, beat, phase = random.uniform(80, 3000), random.uniform(0.2, 3), random.uniform(0, 6)
        result += (
            0.2 * np.sin(2 * np.pi * pitch * time) * np.maximum(0, np.sin(beat * time + phase))
        )
    return result.astype(np.float32)


def make_whisper(seed: int, *, timed: bool = True, **settings: Any) -> Any:
    """A small Whisper whose windows have two seconds; ``settings`` are those of its generation."""
    import torch
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=PLAIN + 1 + TIMES, d_model=32, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        num_mel_bins=16, max_source_positions=50 * SECONDS, max_target_positions=40,
        pad_token_id=EOS, bos_token_id=EOS, eos_token_id=EOS, decoder_start_token_id=START,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.WhisperForConditionalGeneration(config).eval().float()
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.1 if "embed_tokens" in path else 0.35)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
    times = {"no_timestamps_token_id": PLAIN, "prev_sot_token_id": PREVIOUS} if timed else {}
    usual = {
        "max_length": 40, "suppress_tokens": [PREVIOUS, 67, START, *LANGUAGES.values(), *TASKS.values()],
        "begin_suppress_tokens": [3, EOS], "lang_to_id": LANGUAGES, "task_to_id": TASKS,
        "is_multilingual": True, "max_initial_timestamp_index": 50, **times,
    }  # fmt: skip
    # Not the one that comes of the model's configuration: that is read again without these settings.
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=START, eos_token_id=EOS, pad_token_id=EOS, bos_token_id=EOS
    )
    for key, value in {**usual, **settings}.items():
        if value is not None:
            setattr(model.generation_config, key, value)
    return model


def write_whisper(folder: Path, seed: int = 0, **settings: Any) -> Any:
    """Writes the folder of :func:`make_whisper`, with a feature extractor and a tokenizer; returns the model."""
    import transformers

    model = make_whisper(seed, **settings)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(
        feature_size=16, chunk_length=SECONDS, sampling_rate=RATE
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    return model


def _tokenizer() -> dict[str, Any]:
    """A tokenizer of words for the text, in the form of the package tokenizers."""
    words = {f"w{number}": number for number in range(EOS)}
    special = [
        {"id": number, "content": f"<|{number}|>", "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for number in range(EOS, PLAIN + 1 + TIMES)
    ]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }  # fmt: skip


def write_moonshine(folder: Path, seed: int = 0) -> Any:
    """Writes the folder of a small Moonshine, which writes up to 40 words; returns the model."""
    import torch
    import transformers

    config = transformers.MoonshineConfig(
        vocab_size=EOS, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        decoder_num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.MoonshineForConditionalGeneration(config).eval().float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.3)
    model.generation_config.max_length = 40
    model.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(
        sampling_rate=RATE, do_normalize=False, return_attention_mask=True
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    return model


def write_ctc(folder: Path, seed: int = 0, **settings: Any) -> Any:
    """Writes the folder of a small wav2vec 2.0 that gives a letter for each frame; returns the model."""
    import torch
    import transformers

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLU"]
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2),
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, **settings,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.Wav2Vec2ForCTC(config).eval().float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({text: i for i, text in enumerate(letters)}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Wav2Vec2CTCTokenizer"}')
    transformers.Wav2Vec2FeatureExtractor(
        return_attention_mask=settings.get("feat_extract_norm") == "layer"
    ).save_pretrained(folder)
    return model


def write_parakeet(folder: Path, seed: int = 0) -> Any:
    """Writes the folder of a small Parakeet that gives a piece of a word for each frame; returns the model."""
    import torch
    import transformers

    pieces = 20
    config = transformers.ParakeetCTCConfig(
        vocab_size=pieces + 1, pad_token_id=pieces,
        encoder_config={
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
            "num_mel_bins": 16, "subsampling_conv_channels": 8, "conv_kernel_size": 5,
        },
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.ParakeetForCTC(config).eval().float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.8)
    model.save_pretrained(folder)
    transformers.ParakeetFeatureExtractor(feature_size=16).save_pretrained(folder)
    vocabulary = {f"w{number}": number for number in range(pieces)} | {"<pad>": pieces}
    tokenizer = {**_tokenizer(), "added_tokens": []}
    tokenizer["model"]["vocab"] = vocabulary
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return model
