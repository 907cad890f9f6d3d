"""Models that are refused, with their replacements; tests compile them, and the table in docs/models.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.protocol.spec import InputSpec
from tests.coordinator.compiling.layer_cases import Function

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = InputSpec((4,), "int64")
STEPS = InputSpec((6, 3))
IMAGE = InputSpec((2, 6, 6))


@dataclass(frozen=True)
class RefusedCase:
    """A row of the table: what is refused, its replacement, and words that the error must contain."""

    what: str
    instead: str
    layer: Callable[[], nn.Module]
    spec: InputSpec
    words: tuple[str, ...]

    def model(self) -> nn.Module:
        """Return a model with the layer."""
        last = nn.LazyLinear(3) if "lazy" in self.what else nn.Linear(72 if self.spec is IMAGE else 6, 3)
        return nn.Sequential(self.layer(), nn.Flatten(), last)


def unpooled(_self: Function, x: Tensor) -> Tensor:
    return functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), [2, 2])


def sampled(_self: Function, x: Tensor) -> Tensor:
    return functional.grid_sample(x, x.permute(0, 2, 3, 1), align_corners=False)


def packed(self: Function, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), 6)
    return self.layers[0](nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[1][0]  # type: ignore[no-any-return]


def looped(self: Function, x: Tensor) -> Tensor:
    state: Tensor = x[:, 0]
    for _ in range(260):
        state = self.layers[0](state, state)
    return state


REFUSED_CASES = (
    RefusedCase(
        "EmbeddingBag",
        "Embedding and a mean over its second axis",
        lambda: nn.EmbeddingBag(7, 6),
        WORDS,
        ("'0' (EmbeddingBag)", "use Embedding and a mean over its second axis"),
    ),
    RefusedCase(
        "`Embedding(max_norm=...)`, `sparse`, `scale_grad_by_freq`",
        "an Embedding without them",
        lambda: nn.Embedding(7, 6, max_norm=1.0),
        WORDS,
        ("'0' (Embedding)", "max_norm", "remove it"),
    ),
    RefusedCase("RReLU", "LeakyReLU", nn.RReLU, IMAGE, ("'0' (RReLU)", "use LeakyReLU")),
    RefusedCase(
        "FractionalMaxPool2d",
        "MaxPool2d",
        lambda: nn.FractionalMaxPool2d(2, output_size=3),
        IMAGE,
        ("'0' (FractionalMaxPool2d)", "use MaxPool2d"),
    ),
    RefusedCase(
        "MaxUnpool2d, and the indices of a MaxPool",
        "Upsample or ConvTranspose2d",
        lambda: Function(unpooled),
        IMAGE,
        ("'0' (Function)", "max_unpool2d", "use Upsample or ConvTranspose2d"),
    ),
    RefusedCase(
        "`F.grid_sample`",
        "Upsample, or Conv2d with a stride",
        lambda: Function(sampled),
        IMAGE,
        ("'0' (Function)", "grid_sampler_2d", "use Upsample, or Conv2d with a stride"),
    ),
    RefusedCase(
        "`F.dropout` in prediction too",
        "`F.dropout(x, p, self.training)`",
        lambda: Function(lambda _self, x: functional.dropout(x, 0.5)),
        IMAGE,
        ("'0' (Function)", "in prediction", "self.training"),
    ),
    RefusedCase(
        "other randomness inside `forward`",
        "Dropout: its noise is drawn from the job's seed",
        lambda: Function(lambda _self, x: x * torch.rand_like(x)),
        IMAGE,
        ("'0' (Function)", "draws random numbers", "use nn.Dropout or F.dropout"),
    ),
    RefusedCase(
        "packed sequences",
        "sequences padded to one length",
        lambda: Function(packed, nn.GRU(3, 6, batch_first=True)),
        STEPS,
        ("'0.layers.0' (GRU)", "packed sequence", "pad to one length"),
    ),
    RefusedCase(
        "a recurrent layer along the samples of a batch",
        "`batch_first=True`",
        lambda: Function(lambda self, x: self.layers[0](x)[0][:, -1], nn.GRU(3, 6)),
        STEPS,
        ("'0.layers.0' (GRU)", "set batch_first=True"),
    ),
    RefusedCase(
        "sequences of more than 10,000 steps",
        "Conv1d with a stride, or AvgPool1d, before the recurrent layer",
        lambda: Function(lambda self, x: self.layers[0](x)[0][:, -1], nn.LSTM(1, 6, batch_first=True)),
        InputSpec((10_001, 1)),
        ("'0.layers.0' (LSTM)", "10,001 steps", "Conv1d with a stride"),
    ),
    RefusedCase(
        "a forward pass of more than 4,000 operators, such as a cell in a long loop",
        "`nn.RNN`, `nn.GRU` or `nn.LSTM` over the whole sequence",
        lambda: Function(looped, nn.GRUCell(6, 6)),
        InputSpec((1, 6)),
        ("'0.layers.0' (GRUCell)", "4,000", "nn.GRU"),
    ),
    RefusedCase(
        "lazy layers", "layers with their sizes", nn.Identity, IMAGE, ("'2' (LazyLinear)", "replace the lazy layer")
    ),
)
