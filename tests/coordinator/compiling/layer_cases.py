"""Small models with each layer that compiles; tests compile them, and they generate the table in docs/models.md.

Several layers share a model, because compiling one takes a second; an error names the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.models.torchvision_models import make_torchvision_importable
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

make_torchvision_importable()
from torchvision.ops import StochasticDepth  # noqa: E402 (else torchvision cannot be imported everywhere)

CLASSES = ("a", "b", "c")
IMAGE = InputSpec((4, 9, 8))
SEQUENCE = InputSpec((5, 8))


@dataclass(frozen=True)
class LayerCase:
    """A row of the table: layers, a remark about them, and a model that contains them all."""

    layers: str
    make: Callable[[], list[nn.Module]]
    remark: str = ""
    spec: InputSpec = IMAGE

    def model(self) -> nn.Module:
        """Return the layers between others, so that their input's gradient is also needed, and a linear layer for the
        logits.
        """
        torch.manual_seed(0)
        body = nn.Sequential(*self.make()).eval()
        with torch.no_grad():
            some = torch.zeros(2, *self.spec.shape, dtype=getattr(torch, self.spec.dtype))
            flat = body(some).flatten(1).shape[1]
        return nn.Sequential(body, nn.Flatten(), nn.Linear(flat, len(CLASSES)))


class Function(nn.Module):
    """A function, and the layers that it may call."""

    def __init__(self, function: Callable[[Function, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Outputs(nn.Module):
    """Returns a recurrent layer's outputs and last states, joined along the last axis."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs, states = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        if not self.layer.batch_first:
            outputs = outputs.transpose(0, 1)
        last = [states] if isinstance(states, Tensor) else states
        return torch.cat([outputs.flatten(1), *(each.transpose(0, 1).flatten(1) for each in last)], 1).unsqueeze(1)


def mix(channels: int = 4) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 1)


def between(*layers: nn.Module) -> list[nn.Module]:
    """Applies each of the layers after a convolution."""
    return [each for layer in layers for each in (mix(), layer)]


def volume(*layers: nn.Module) -> list[nn.Module]:
    return [nn.Unflatten(1, (1, 4)), nn.Conv3d(1, 3, 1), *layers]


def attention(self: Function, x: Tensor) -> Tensor:
    """Attention with the weights as an output, which torch computes in another way, and without."""
    first, second = self.layers
    x = x + first(x, x, x)[0]
    turned = x.transpose(0, 1)
    answers: Tensor = second(turned, turned, turned, need_weights=False)[0].transpose(0, 1)
    return answers


def dropping(self: Function, x: Tensor) -> Tensor:
    x = functional.dropout(x, 0.4, self.training)
    x = functional.dropout2d(self.layers[0](x), 0.3, self.training, inplace=True)
    return functional.dropout(self.layers[1](x), 1.0, self.training) + x


def attending(self: Function, x: Tensor) -> Tensor:
    q, k, v = self.layers[0](x).chunk(3, -1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.2 if self.training else 0.0)


CASES = (
    LayerCase(
        "Linear, Bilinear, Flatten, Unflatten",
        lambda: [
            nn.Linear(8, 6),
            nn.Flatten(2),
            nn.Unflatten(2, (9, 6)),
            Function(lambda self, x: self.layers[0](x, x * x), nn.Bilinear(6, 6, 3)),
        ],
    ),
    LayerCase(
        "Conv2d, ConvTranspose2d",
        lambda: [
            nn.Conv2d(4, 8, 3, groups=2),
            nn.Conv2d(8, 8, 3, groups=8, padding=1, stride=2),
            nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
        ],
        "stride, padding, dilation, groups, depthwise",
    ),
    LayerCase(
        "Conv1d, ConvTranspose1d, MaxPool1d, AvgPool1d, AdaptiveAvgPool1d, AdaptiveMaxPool1d, ReplicationPad1d",
        lambda: [
            nn.Flatten(2),
            nn.Conv1d(4, 6, 3),
            nn.MaxPool1d(2),
            nn.ConvTranspose1d(6, 4, 3, stride=2),
            nn.AvgPool1d(3, 2, 1),
            nn.ReplicationPad1d((2, 1)),
            nn.AdaptiveMaxPool1d(9),
            nn.Conv1d(4, 4, 1),
            nn.AdaptiveAvgPool1d(4),
        ],
    ),
    LayerCase(
        "Conv3d, ConvTranspose3d",
        lambda: volume(nn.Conv3d(3, 4, 2), nn.ConvTranspose3d(4, 2, 2), nn.Conv3d(2, 4, 2, groups=2, padding=1)),
    ),
    LayerCase(
        "MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, AdaptiveMaxPool2d, LPPool2d",
        lambda: [
            *between(nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 2, 1, ceil_mode=True)),
            *between(nn.AdaptiveMaxPool2d((4, 3)), nn.AdaptiveAvgPool2d((3, 2)), nn.Sigmoid(), nn.LPPool2d(2, 2, 1)),
        ],
        "every window; without `return_indices`",
    ),
    LayerCase(
        "MaxPool3d, AdaptiveMaxPool3d",
        lambda: volume(nn.MaxPool3d(3, 2, padding=1), nn.Conv3d(3, 3, 1), nn.AdaptiveMaxPool3d((1, 3, 3))),
    ),
    LayerCase(
        "AvgPool3d, AdaptiveAvgPool3d",
        lambda: volume(
            nn.AvgPool3d((2, 3, 3), 2, padding=(0, 1, 1), count_include_pad=False, ceil_mode=True),
            nn.Conv3d(3, 3, 1),
            nn.AdaptiveAvgPool3d((1, 3, 2)),
        ),
    ),
    LayerCase(
        "ReLU, ReLU6, LeakyReLU, PReLU, ELU, SELU, CELU, GELU, SiLU, Mish, Softplus, Threshold",
        lambda: between(
            *(nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(4), nn.ELU(), nn.SELU(), nn.CELU()),
            *(nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Threshold(0.1, 0.2)),
        ),
        "`inplace` too",
    ),
    LayerCase(
        "Sigmoid, LogSigmoid, Tanh, Tanhshrink, Hardsigmoid, Hardswish, Hardtanh, Hardshrink, Softshrink, Softsign",
        lambda: between(
            *(nn.Sigmoid(), nn.LogSigmoid(), nn.Tanh(), nn.Tanhshrink(), nn.Hardsigmoid(), nn.Hardswish()),
            *(nn.Hardtanh(), nn.Hardshrink(0.01), nn.Softshrink(0.01), nn.Softsign()),
        ),
    ),
    LayerCase(
        "Softmax, Softmax2d, Softmin, LogSoftmax, GLU",
        lambda: between(nn.Softmax(1), nn.Softmax2d(), nn.Softmin(1), nn.LogSoftmax(1), nn.GLU(1)),
    ),
    LayerCase(
        "GroupNorm, InstanceNorm2d, LocalResponseNorm, LayerNorm, RMSNorm",
        lambda: [
            *between(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(2)),
            *(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)),
        ],
    ),
    LayerCase(
        "ZeroPad2d, ReflectionPad2d, ReplicationPad2d, CircularPad2d",
        lambda: between(nn.ZeroPad2d(1), nn.ReflectionPad2d((1, 2, 0, 1)), nn.ReplicationPad2d(2), nn.CircularPad2d(1)),
    ),
    LayerCase(
        "Upsample, PixelShuffle, PixelUnshuffle, ChannelShuffle, Unfold, Fold",
        lambda: [
            *between(nn.Upsample(scale_factor=2), nn.Upsample((6, 8), mode="bilinear"), nn.PixelUnshuffle(2)),
            *(nn.PixelShuffle(2), nn.ChannelShuffle(2), nn.Unfold(2), nn.Fold((6, 8), 2)),
        ],
    ),
    LayerCase(
        "Dropout, Dropout2d, AlphaDropout, StochasticDepth",
        lambda: between(
            *(nn.Dropout(0.4), nn.Dropout2d(0.3), nn.AlphaDropout(0.2), StochasticDepth(0.3, "row")),
            StochasticDepth(0.3, "batch"),
        ),
        "noise from the job's seed; StochasticDepth of torchvision.ops",
    ),
    LayerCase(
        "`F.dropout` and its like, `bernoulli_`",
        lambda: [mix(), Function(dropping, mix(), mix())],
        "noise from the job's seed; with `self.training`, so that a prediction is not random",
    ),
    LayerCase(
        "RNN, GRU, LSTM",
        lambda: [
            Outputs(nn.RNN(8, 3, nonlinearity="relu", bias=False)),
            nn.Unflatten(2, (3, 6)),
            nn.Flatten(1, 2),
            Outputs(nn.GRU(6, 4, 2, bidirectional=True, dropout=0.3, batch_first=True)),
            nn.Unflatten(2, (2, 20)),
            nn.Flatten(1, 2),
            Outputs(nn.LSTM(20, 3, 2, bidirectional=True, dropout=0.2)),
            nn.Unflatten(2, (4, 9)),
            nn.Flatten(1, 2),
            Outputs(nn.RNN(9, 3, batch_first=True)),
        ],
        "layers, both directions, `batch_first`, dropout between layers; [sequences](#sequences) of up to 10,000 steps",
        SEQUENCE,
    ),
    LayerCase(
        "RNNCell, GRUCell, LSTMCell, LSTM with `proj_size`",
        lambda: [
            Function(lambda self, x: self.layers[0](x[:, 0], self.layers[0](x[:, 1])), nn.RNNCell(8, 8)),
            Function(lambda self, x: self.layers[0](x, self.layers[0](x)), nn.GRUCell(8, 8)),
            Function(lambda self, x: self.layers[0](x, self.layers[0](x))[0], nn.LSTMCell(8, 8)),
            nn.Unflatten(1, (2, 4)),
            Outputs(nn.LSTM(4, 3, proj_size=2)),
        ],
        "each step is written out, so a forward pass may run 4,000 operators (250 steps of a GRUCell)",
        SEQUENCE,
    ),
    LayerCase(
        "MultiheadAttention",
        lambda: [
            Function(
                attention, nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), nn.MultiheadAttention(8, 4)
            ),
            Function(attending, nn.Linear(8, 24)),
        ],
        "and `F.scaled_dot_product_attention`; dropout from the job's seed",
        SEQUENCE,
    ),
    LayerCase(
        "TransformerEncoder, TransformerEncoderLayer, TransformerDecoderLayer",
        lambda: [
            nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=True), 1),
            Function(
                lambda self, x: self.layers[0](x.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1),
                nn.TransformerDecoderLayer(8, 2, 12, norm_first=True, activation="gelu"),
            ),
        ],
        "samples or steps first, norm before or after",
        SEQUENCE,
    ),
    LayerCase(
        "Embedding",
        lambda: [nn.Embedding(11, 6, padding_idx=2), nn.LayerNorm(6)],
        'whole numbers: `data.dtype = "int64"`',
        InputSpec((5,), "int64"),
    ),
    LayerCase(
        "`weight_norm`, CosineSimilarity, PairwiseDistance",
        lambda: [
            nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
            Function(
                lambda self, x: (
                    self.layers[0](x, x * x + 1).flatten(1).mul(self.layers[1](x[:, :1], x[:, 1:2])[:, 0, :1])
                ),
                *(nn.CosineSimilarity(1), nn.PairwiseDistance()),
            ),
        ],
        "tied weights and frozen parameters too",
    ),
)
