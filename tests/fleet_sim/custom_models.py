"""Models as users may write them, named in job files as `tests.fleet_sim.custom_models:Class`."""

from __future__ import annotations

from torch import Tensor, nn


class FrozenTrunk(nn.Module):
    """Two frozen layers for 8x8 images, and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()).requires_grad_(requires_grad=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of a batch."""
        out: Tensor = self.head(self.trunk(x))
        return out
