"""A kit's graphs as torch runs them: the module itself, as a function of the model's vector, on any device.

`TorchGraphs` stands in for `sojourn.model.graphs.Graphs`, so the device's own trainer runs on it as it is; what the
module computes is compared with the kit's probe like any other runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.func import functional_call, grad_and_value, vmap

from coordinator.compiling.dropout import with_fed_dropout
from coordinator.compiling.preprocessing import normalised
from fleet_sim.engines.serial import SerialEngine
from sojourn.model.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fleet_sim.engines.engine import Network, Shards
    from sojourn.protocol.spec import Kit


class TorchGraphs(Graphs):
    """A kit's training and prediction, computed by torch instead of onnxruntime."""

    def __init__(self, kit: Kit, network: Network, device: str = "cpu") -> None:
        super().__init__(kit)
        self.device = torch.device(device)
        self._sizes, self._tensors = list(kit.model.sizes), kit.model.tensors
        fed, self._feed = with_fed_dropout(network.module)
        self._module = normalised(fed, kit.input, network.mean, network.std).to(self.device)
        self._slopes = vmap(grad_and_value(self._loss))

    def loss_and_gradient(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.int64],
        noise: Sequence[NDArray[np.float32]] = (),
    ) -> tuple[float, NDArray[np.float32]]:
        """The mean loss of a batch and its gradient by the model's vector."""
        self._check_labels(y)
        self._module.train()
        leaf = self.tensor(vector).detach().requires_grad_()
        weights = torch.full((len(y),), 1.0 / len(y), device=self.device)
        loss = self._loss(leaf, self.tensor(x), self.tensor(y), weights, [self.tensor(drawn) for drawn in noise])
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient.cpu().numpy()

    def losses_and_gradients(
        self, vectors: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """For each of several models (B, P) the loss of a batch of its own and the gradient; samples are weighed."""
        self._module.train()
        gradients, losses = self._slopes(vectors, x, y, weights, list(noise))
        return losses, gradients

    def logits(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The model's answers for a batch, one row per sample."""
        self._module.eval()
        with torch.no_grad():
            answers: NDArray[np.float32] = self._call(self.tensor(vector), self.tensor(x)).cpu().numpy()
        return answers

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """An array where torch computes; on the CPU they share their memory."""
        # torch has no tensors that are only to be read.
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

    def _loss(self, vector: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]) -> Tensor:
        self._feed.give(noise)
        chances = torch.log_softmax(self._call(vector, x), 1).gather(1, y.unsqueeze(1)).squeeze(1)
        return -(chances * weights).sum()

    def _call(self, vector: Tensor, x: Tensor) -> Tensor:
        parts = zip(self._tensors, torch.split(vector, self._sizes), strict=True)
        named = {f"module.{spec.name}": part.view(spec.shape) for spec, part in parts}
        answers: Tensor = functional_call(self._module, named, (x,))
        return answers


class TorchEngine(SerialEngine):
    """The device's own trainer with torch's gradients: one visit after another, on a CPU or a GPU."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu") -> None:
        super().__init__(shards, lambda kit, _threads: TorchGraphs(kit, network, device))
