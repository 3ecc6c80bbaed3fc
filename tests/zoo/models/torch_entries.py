"""The zoo's plain torch models: what people write without a library of architectures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from edgecompile.loaders.factory_specs import ModelSpec
from tests.zoo.entry import LONGEST, Entry, seeded
from tests.zoo.models import torch_convs as convs
from tests.zoo.models import torch_layers as layers
from tests.zoo.models import torch_sets as sets
from tests.zoo.models.torch_convs import ConvBlock, Residual

__all__ = ["TORCH_ENTRIES"]

_BATCHES = {"batch": (1, 8)}


def _names(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _fixed(build: Callable[[], nn.Module], *examples: Tensor) -> ModelSpec:
    """Inputs of fixed size: what varies is how many there are at once."""
    module = seeded(build)
    inputs = dict(zip(_names(module), examples, strict=True))
    return ModelSpec(
        module=module,
        inputs=inputs,
        axes={name: {0: "batch"} for name in inputs},
        limits=_BATCHES,
        length_axis="batch",
        pad={name: 0 for name in inputs},
    )


def _images(build: Callable[[], nn.Module], channels: int = 3) -> ModelSpec:
    return _fixed(build, torch.randn(2, channels, 32, 32))


def _along(
    build: Callable[[], nn.Module], shape: tuple[int, ...], dim: int, lo: int = 1
) -> ModelSpec:
    """One float input with a length in dimension ``dim``."""
    module = seeded(build)
    name = _names(module)[0]
    return ModelSpec(
        module=module,
        inputs={name: torch.randn(*shape)},
        axes={name: {0: "batch", dim: "length"}},
        limits={"length": (lo, LONGEST)},
        pad={name: 0.0},
    )


def _frames(build: Callable[[], nn.Module], width: int) -> ModelSpec:
    return _along(build, (1, 16, width), 1)


def _signal(build: Callable[[], nn.Module], channels: int, lo: int = 1) -> ModelSpec:
    return _along(build, (1, channels, 24), 2, lo)


def _tokens(build: Callable[[], nn.Module], mask: bool = True, lo: int = 1) -> ModelSpec:
    ids = torch.randint(1, layers.TOKENS, (1, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}
    return ModelSpec(
        module=seeded(build),
        inputs=inputs,
        axes={name: {0: "batch", 1: "length"} for name in inputs},
        limits={"length": (lo, LONGEST)},
        pad={"input_ids": 0},
        bounds={"input_ids": (0, layers.TOKENS - 1)},
    )


def _bags() -> ModelSpec:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.EmbeddingBag(layers.TOKENS, 16, mode="mean")
            self.leave = nn.Linear(16, 3)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.leave(self.embed(input_ids))

    return _tokens(Bag, mask=False)


def _two_lengths(build: Callable[[], nn.Module], **inputs: Tensor) -> ModelSpec:
    """Two inputs with a length each; the first one's is that of the traffic."""
    first, second = inputs
    whole = not inputs[first].is_floating_point()
    return ModelSpec(
        module=seeded(build),
        inputs=inputs,
        axes={first: {0: "batch", 1: "length"}, second: {0: "batch", 1: "other"}},
        limits={"length": (1, LONGEST), "other": (1, 32)},
        bounds={name: (0, layers.TOKENS - 1) for name in inputs} if whole else {},
    )


def _graph(attend: bool) -> ModelSpec:
    return ModelSpec(
        module=seeded(lambda: sets.DenseGraph(attend)),
        inputs={"nodes": torch.randn(9, 8), "edges": torch.ones(9, 9)},
        axes={"nodes": {0: "length"}, "edges": {0: "length", 1: "length"}},
        limits={"length": (1, LONGEST)},
        pad={"nodes": 0.0, "edges": 0.0},
        bounds={"edges": (0.0, 1.0)},
    )


def _dlrm() -> ModelSpec:
    made = _fixed(sets.Dlrm, torch.randn(2, 13), torch.ones(2, 3, dtype=torch.int64))
    return ModelSpec(**{**vars(made), "bounds": {"categories": (0, 19)}})


def _vgg() -> nn.Module:
    return nn.Sequential(
        *(ConvBlock(2, 3, 16), ConvBlock(2, 16, 16), nn.MaxPool2d(2)),
        *(ConvBlock(2, 16, 32), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32 * 64, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, 10)),
    )


def _lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 84), nn.Tanh(), nn.Linear(84, 10)),
    )


def _basic(enter: int, leave: int) -> nn.Module:
    return Residual(ConvBlock(2, enter, leave), nn.Conv2d(leave, enter, 3, padding=1, bias=False))


def _resnet() -> nn.Module:
    return nn.Sequential(
        *(ConvBlock(2, 3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), _basic(16, 16)),
        *(ConvBlock(2, 16, 32, stride=2), _basic(32, 32)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def _mobile() -> nn.Module:
    def inverted(enter: int, leave: int, stride: int) -> list[nn.Module]:
        wide = enter * 4
        return [
            ConvBlock(2, enter, wide, 1, act=nn.ReLU6),
            ConvBlock(2, wide, wide, 3, stride, groups=wide, act=nn.ReLU6),
            convs.SqueezeExcite(wide),
            nn.Conv2d(wide, leave, 1),
            nn.BatchNorm2d(leave),
        ]

    return nn.Sequential(
        *(ConvBlock(2, 3, 8, stride=2, act=nn.Hardswish), *inverted(8, 16, 2)),
        *(*inverted(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class _Joined(nn.Module):
    """The results of several branches, side by side."""

    def __init__(self, *branches: nn.Module, keep: bool = False) -> None:
        super().__init__()
        self.branches, self.keep = nn.ModuleList(branches), keep

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([*([x] if self.keep else []), *(b(x) for b in self.branches)], 1)


def _densenet() -> nn.Module:
    return nn.Sequential(
        *(ConvBlock(2, 3, 16), _Joined(ConvBlock(2, 16, 8), keep=True)),
        *(_Joined(ConvBlock(2, 24, 8), keep=True), ConvBlock(2, 32, 16, 1), nn.AvgPool2d(2)),
        *(nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(64, 10)),
    )


def _inception() -> nn.Module:
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvBlock(2, 16, 8, 1))
    return nn.Sequential(
        ConvBlock(2, 3, 16, stride=2),
        _Joined(ConvBlock(2, 16, 8, 1), ConvBlock(2, 16, 8, 3), ConvBlock(2, 16, 8, 5), pooled),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def _group_norms() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()),
        *(nn.Conv2d(16, 16, 3, 2, 1, dilation=1, groups=4), nn.InstanceNorm2d(16, affine=True)),
        *(nn.PReLU(16), nn.Conv2d(16, 8, 3, padding=2, dilation=2), nn.AdaptiveAvgPool2d(1)),
        nn.Flatten(),
    )


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(), nn.Conv2d(16, 8, 4, 2, 1), nn.LeakyReLU()),
        *(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.LeakyReLU()),
        *(nn.ConvTranspose2d(16, 3, 3, 2, 1, output_padding=1), nn.Sigmoid()),
    )


def _spotter() -> nn.Module:
    return nn.Sequential(
        *(ConvBlock(1, 16, 32), ConvBlock(1, 32, 32, 3, groups=32), ConvBlock(1, 32, 32, 1)),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 12)),
    )


def _quartz() -> nn.Module:
    def separable(kernel: int) -> nn.Module:
        return Residual(ConvBlock(1, 32, 32, kernel, groups=32), nn.Conv1d(32, 32, 1))

    return nn.Sequential(
        *(ConvBlock(1, 16, 32, 11, stride=2), separable(7), nn.ReLU(), separable(9)),
        *(nn.ReLU(), ConvBlock(1, 32, 32, 7, dilation=2), nn.Conv1d(32, 20, 1)),
    )


def _postnet() -> nn.Module:
    return nn.Sequential(
        ConvBlock(1, 16, 32, 5, act=nn.Tanh),
        ConvBlock(1, 32, 32, 5, act=nn.Tanh),
        nn.Conv1d(32, 16, 5, padding=2),
    )


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.LayerNorm(64),
        nn.Linear(64, 32),
        nn.GELU(),
        nn.Linear(32, 4),
    )


class _Forecast(nn.Module):
    """DLinear: a moving average and what is left of it, each forecast by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.AvgPool1d(5, 1)
        self.slow, self.fast = nn.Linear(24, 6), nn.Linear(24, 6)

    def forward(self, past: Tensor) -> Tensor:
        ends = torch.cat([past[..., :1].repeat(1, 1, 2), past, past[..., -1:].repeat(1, 1, 2)], -1)
        trend = self.mean(ends)
        return self.slow(trend) + self.fast(past - trend)


_TABLE: Mapping[str, tuple[str, Callable[[], ModelSpec]]] = {
    "mlp": ("plain", lambda: _fixed(_perceptron, torch.randn(2, 20))),
    "dlrm": ("plain", _dlrm),
    "lenet": ("vision", lambda: _images(_lenet, 1)),
    "vgg_like": ("vision", lambda: _images(_vgg)),
    "resnet_like": ("vision", lambda: _images(_resnet)),
    "mobilenet_like": ("vision", lambda: _images(_mobile)),
    "densenet_like": ("vision", lambda: _images(_densenet)),
    "inception_like": ("vision", lambda: _images(_inception)),
    "group_norm_cnn": ("vision", lambda: _images(_group_norms)),
    "autoencoder": ("vision", lambda: _images(_autoencoder)),
    "unet_2d": ("vision", lambda: _images(lambda: convs.UNet(2))),
    "feature_pyramid": ("vision", lambda: _images(convs.FeaturePyramid)),
    "mlp_mixer": ("vision", lambda: _images(convs.Mixer)),
    "super_resolution": (
        "vision",
        lambda: _along(convs.Shuffled, (1, 1, 16, 24), 2),
    ),
    "crnn": ("vision", lambda: _along(lambda: convs.Crnn(False), (1, 1, 16, 20), 3)),
    "crnn_bidirectional": (
        "vision",
        lambda: _along(lambda: convs.Crnn(True), (1, 1, 16, 20), 3),
    ),
    "keyword_spotter": ("audio", lambda: _signal(_spotter, 16)),
    "quartznet_like": ("audio", lambda: _signal(_quartz, 16)),
    "postnet": ("audio", lambda: _signal(_postnet, 16)),
    "wavenet_like": ("audio", lambda: _signal(convs.WaveNet, 1)),
    "hifigan_like": ("audio", lambda: _signal(convs.HifiGan, 16)),
    "conformer_like": ("audio", lambda: _frames(layers.Conformer, 32)),
    "unet_1d": ("audio", lambda: _signal(lambda: convs.UNet(1), 3)),
    "tcn": ("time series", lambda: _frames(convs.CausalConvNet, 32)),
    "nbeats_like": ("time series", lambda: _fixed(sets.NBeats, torch.randn(2, 24))),
    "dlinear": ("time series", lambda: _fixed(_Forecast, torch.randn(2, 3, 24))),
    "gated_mlp": ("time series", lambda: _fixed(sets.GatedMlp, torch.randn(2, 24, 32))),
    "lstm": ("recurrent", lambda: _frames(lambda: layers.Recurrent(nn.LSTM), 8)),
    "lstm_two_layers": (
        "recurrent",
        lambda: _frames(lambda: layers.Recurrent(nn.LSTM, layers=2), 8),
    ),
    "lstm_bidirectional": (
        "recurrent",
        lambda: _frames(lambda: layers.Recurrent(nn.LSTM, True), 8),
    ),
    "lstm_pooled": ("recurrent", lambda: _tokens(layers.PooledRecurrent)),
    "gru": ("recurrent", lambda: _frames(lambda: layers.Recurrent(nn.GRU), 8)),
    "rnn": ("recurrent", lambda: _frames(lambda: layers.Recurrent(nn.RNN), 8)),
    "parallel_gru": ("recurrent", lambda: _frames(layers.ParallelGru, 16)),
    "torch_encoder": ("text", lambda: _tokens(layers.TorchEncoder)),
    "torch_encoder_prenorm": (
        "text",
        lambda: _tokens(lambda: layers.TorchEncoder(True, act="gelu")),
    ),
    "torch_encoder_causal": ("decoder", lambda: _tokens(lambda: layers.TorchEncoder(causal=True))),
    "torch_decoder": (
        "encoder-decoder",
        lambda: _two_lengths(
            layers.TorchDecoder, target=torch.randn(1, 7, 32), memory=torch.randn(1, 9, 32)
        ),
    ),
    "torch_seq2seq": (
        "encoder-decoder",
        lambda: _two_lengths(
            layers.Seq2Seq,
            source=torch.arange(9).unsqueeze(0),
            target=torch.arange(5).unsqueeze(0),
        ),
    ),
    "text_cnn": ("text", lambda: _tokens(layers.TextCnn, mask=False, lo=5)),
    "embedding_bag": ("text", _bags),
    "rotary_decoder": ("decoder", lambda: _tokens(layers.RotaryDecoder, mask=False)),
    "experts": ("mixture of experts", lambda: _frames(layers.Experts, 32)),
    "linear_attention": ("decoder", lambda: _frames(layers.LinearAttention, 32)),
    "chunked_attention": ("decoder", lambda: _frames(layers.Chunked, 32)),
    "pointnet": ("points", lambda: _frames(convs.PointNet, 3)),
    "deep_sets": ("points", lambda: _frames(sets.DeepSets, 6)),
    "set_transformer": ("points", lambda: _frames(sets.SetTransformer, 8)),
    "latent_reader": ("points", lambda: _frames(sets.LatentReader, 32)),
    "fourier_field": ("points", lambda: _frames(lambda: sets.SinField(True), 3)),
    "siren": ("points", lambda: _frames(lambda: sets.SinField(False), 3)),
    "graph_mean": ("points", lambda: _graph(False)),
    "graph_attention": ("points", lambda: _graph(True)),
}

TORCH_ENTRIES: tuple[Entry, ...] = tuple(
    Entry(name, group, make, ("torch_entries", "torch_convs", "torch_layers", "torch_sets"))
    for name, (group, make) in _TABLE.items()
)
