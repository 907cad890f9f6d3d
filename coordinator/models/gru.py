"""A recurrent network over the steps of a window, or over the tokens of a sequence."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from sojourn.protocol.spec import InputSpec, Shape

SERIES_AXES = 2


class Gru(nn.Module):
    """A GRU, and a linear layer behind its last step; or behind each step, where an answer is due at each."""

    def __init__(self, first: nn.Module, width: int, hidden: int, layers: int, outputs: int, *, each: bool) -> None:
        super().__init__()
        self.first = first
        self.gru = nn.GRU(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)
        self._each = each

    def forward(self, x: Tensor) -> Tensor:
        """A row for each sample, or for each of its steps."""
        steps, _ = self.gru(self.first(x))
        found: Tensor = self.head(steps if self._each else steps[:, -1])
        return found


def gru(
    input: InputSpec,  # noqa: A002
    output: Shape,
    hidden: int = 32,
    layers: int = 1,
    vocabulary: int = 0,
) -> nn.Module:
    """`hidden` units in each of `layers`. `vocabulary`: of tokens, where the answers are none themselves."""
    if input.dtype == "int64":
        if len(input.shape) != 1:
            raise ValueError(f"gru takes sequences of tokens, not {input.shape}")
        tokens = len(output) == SERIES_AXES
        size = output[-1] if tokens else vocabulary
        if not size:
            raise ValueError("gru needs to know how many tokens there are: set vocabulary")
        return Gru(nn.Embedding(size, hidden), hidden, hidden, layers, output[-1], each=tokens)
    if len(input.shape) != SERIES_AXES:
        raise ValueError(f"gru takes windows (steps, channels), not {input.shape}: set data.input")
    return Gru(nn.Identity(), input.shape[1], hidden, layers, prod(output), each=False)
