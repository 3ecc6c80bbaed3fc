"""A text-to-speech model of transformers (VITS) as two bundles: what a text says, and how it sounds.

How many samples a text has depends on values that the model computes in its middle. So it is built in two parts:

    export VOICE=./mms-tts-eng
    edgecompile build voice.py:make_text --lengths tokens.txt --mode exact --output text.ecb
    edgecompile build voice.py:make_sound --lengths frames.txt --mode exact --output sound.ecb

``speak.py`` puts them together on the device, at the rate that the second build prints. Noise is an input of both, so
that the same noise gives the same samples. A model of several speakers speaks with the voice of the number in the
variable SPEAKER.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from transformers import VitsModel
from transformers.models.vits import modeling_vits

LONGEST_TEXT, LONGEST_SOUND = 512, 2048


class Text(nn.Module):
    """Tokens to the frames that each one takes and, of its frames, the mean and the logarithm of the deviation."""

    def __init__(self, model, speaker):
        super().__init__()
        self.encoder = model.text_encoder
        self.durations = model.duration_predictor
        self.stochastic = model.config.use_stochastic_duration_prediction
        self.speaker = speaker
        for layer in self.encoder.encoder.layers:
            layer.attention._get_relative_embeddings = _relative_to(layer.attention.window_size)

    def forward(self, input_ids, duration_noise):
        """``input_ids`` [1, length], ``duration_noise`` [1, 2, length]; a frame's count is not whole yet."""
        mask = torch.ones_like(input_ids).unsqueeze(-1).float()
        encoded = self.encoder(input_ids=input_ids, padding_mask=mask, return_dict=True)
        states, mask = encoded.last_hidden_state.transpose(1, 2), mask.transpose(1, 2)
        if self.stochastic:
            logarithm = self._draw(states, mask, duration_noise)
        else:
            logarithm = self.durations(states, mask, self.speaker) + 0 * duration_noise[:, :1]
        return logarithm.exp()[:, 0], encoded.prior_means, encoded.prior_log_variances

    def _draw(self, states, mask, noise):
        predictor = self.durations
        states = predictor.conv_pre(states)
        if self.speaker is not None:
            states = states + predictor.cond(self.speaker)
        states = predictor.conv_proj(predictor.conv_dds(states, mask)) * mask
        flows = list(reversed(predictor.flows))
        for flow in [*flows[:-2], flows[-1]]:
            noise, _ = flow(noise.flip(1), mask, global_conditioning=states, reverse=True)
        return noise[:, :1]


class Sound(nn.Module):
    """Latent frames [1, size, frames] to samples [1, samples]."""

    def __init__(self, model, speaker):
        super().__init__()
        self.flow, self.decoder, self.speaker = model.flow, model.decoder, speaker

    def forward(self, latents):
        mask = torch.ones_like(latents[:, :1])
        frames = self.flow(latents, mask, self.speaker, reverse=True)
        return self.decoder(frames, self.speaker)[:, 0]


def make_text():
    """The factory of the part that reads the text."""
    model, speaker = load()
    length = 12
    ids = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    return {
        "module": Text(model, speaker),
        "inputs": {"input_ids": ids, "duration_noise": torch.randn(1, 2, length)},
        "axes": {"input_ids": {1: "length"}, "duration_noise": {2: "length"}},
        "limits": {"length": (1, LONGEST_TEXT)},
        "bounds": {"input_ids": (0, model.config.vocab_size - 1)},
        "outputs": ["durations", "means", "log_variances"],
    }


def make_sound():
    """The factory of the part that makes the sound."""
    model, speaker = load()
    print(f"speak.py writes this model's sound with --rate {model.config.sampling_rate}")
    return {
        "module": Sound(model, speaker),
        "inputs": {"latents": torch.randn(1, model.config.flow_size, 20)},
        "axes": {"latents": {2: "length"}},
        "limits": {"length": (1, LONGEST_SOUND)},
        "outputs": ["samples"],
    }


def load():
    """The model of the folder VOICE, and what its speaker adds."""
    model = VitsModel.from_pretrained(os.environ["VOICE"], local_files_only=True).eval()
    for module in model.modules():
        for name in list(getattr(module, "parametrizations", {})):
            parametrize.remove_parametrizations(module, name)
    modeling_vits._unconstrained_rational_quadratic_spline = _spline
    if model.config.num_speakers < 2:
        return model, None
    number = torch.tensor([int(os.environ.get("SPEAKER", "0"))])
    return model, model.embed_speaker(number).unsqueeze(-1).detach()


def _relative_to(window):
    """Embeddings of the distances -(length - 1) to length - 1, for every length; far ones are zeros.

    transformers chooses between padding and cutting by the length, which would fix it.
    """

    def find(table, length):
        distance = torch.arange(2 * length - 1) - (length - 1)
        near = (distance.abs() <= window).unsqueeze(-1)
        return table[:, (distance + window).clamp(0, 2 * window)] * near

    return find


def _spline(
    inputs, widths, heights, derivatives, reverse=False, tail_bound=5.0,
    min_bin_width=1e-3, min_bin_height=1e-3, min_derivative=1e-3,
):  # fmt: skip
    """The inverse of the spline at every element, kept where the input is within it.

    transformers picks the elements within it first, so that sizes would depend on values.
    """
    if not reverse:
        raise ValueError("only the inverse is needed")
    count = widths.shape[-1]
    x = inputs.clamp(-tail_bound, tail_bound)
    wide, high = (
        _edges(parts.softmax(-1) * (1 - least * count) + least, tail_bound)
        for parts, least in ((widths, min_bin_width), (heights, min_bin_height))
    )
    slopes = F.softplus(derivatives) + min_derivative
    slopes = F.pad(slopes, (1, 1), value=1.0)
    spans, rises = wide.diff(dim=-1), high.diff(dim=-1)
    place = (x.unsqueeze(-1) >= high[..., :-1]).sum(-1, keepdim=True) - 1
    left, low, span, rise, slope, after = (
        part.gather(-1, place)[..., 0]
        for part in (
            wide[..., :-1],
            high[..., :-1],
            spans,
            rises,
            slopes[..., :-1],
            slopes[..., 1:],
        )
    )
    mean = rise / span
    up = x - low
    bend = up * (slope + after - 2 * mean)
    a, b, c = rise * (mean - slope) + bend, rise * slope - bend, -mean * up
    root = 2 * c / (-b - (b * b - 4 * a * c).clamp(min=0).sqrt())
    return torch.where(inputs.abs() <= tail_bound, root * span + left, inputs), None


def _edges(parts, bound):
    """The edges of the parts of -bound to bound."""
    inner = 2 * bound * parts.cumsum(-1)[..., :-1] - bound
    return torch.cat(
        [torch.full_like(parts[..., :1], -bound), inner, torch.full_like(parts[..., :1], bound)], -1
    )
