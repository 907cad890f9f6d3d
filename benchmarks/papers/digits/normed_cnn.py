"""The small CNN of this table with BatchNorm after each convolution, for `fedbn` and `fedavg-bn`."""

from __future__ import annotations

from torch import nn


class NormedCnn(nn.Sequential):
    """For images of 8 x 8 pixels: 8 and 16 channels, then 32 numbers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes)),
        )
