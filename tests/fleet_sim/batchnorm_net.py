"""Networks with BatchNorm for 8x8 images, as users may write them: small, and quick to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import relu

if TYPE_CHECKING:
    from torch import Tensor


class SmallResidual(nn.Module):
    """One residual block, then a vector for each image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.bn3 = nn.AdaptiveAvgPool2d(1), nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = relu(self.bn1(self.conv1(x)))
        x = relu(x + self.bn2(self.conv2(x)))
        return self.fc(self.bn3(self.pool(x).flatten(1)))  # type: ignore[no-any-return]


class NormalisedRows(nn.Sequential):
    """The smallest model with state, unless it is made wider."""

    def __init__(self, classes: int, hidden: int = 16) -> None:
        layers = nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, classes)
        super().__init__(nn.Flatten(), *layers)
