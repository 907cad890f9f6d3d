"""A kit's graphs as torch runs them: the module itself, as a function of the model's vector, on any device.

`TorchGraphs` stands in for `sojourn.model.graphs.Graphs`, so the device's own trainer runs on it as it is; what the
module computes is compared with the kit's probe like any other runtime.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, vmap

from coordinator.compiling.batchnorm import layers_with_state, with_plain_batchnorm
from coordinator.compiling.dropout import with_fed_dropout
from coordinator.compiling.learning import ForwardPass, watched
from coordinator.compiling.noise import learn_draws
from coordinator.compiling.preprocessing import normalised
from fleet_sim.engines.choosing import SMALL
from fleet_sim.engines.serial import SerialEngine
from fleet_sim.engines.torch_place import SampleLimit, TorchPlace, pieces
from sojourn.errors import ModelError
from sojourn.model.graphs import LOSS_TOLERANCE, Graphs, probe_targets, probe_vector
from sojourn.randomness import noise as draw_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from coordinator.compiling.learning import Learning
    from fleet_sim.engines.engine import Network, Shards
    from sojourn.model.graphs import Streams
    from sojourn.protocol.spec import Kit

IMAGES = 4
"""How many axes a batch of images has: samples, channels, height and width."""


class TorchGraphs(Graphs):
    """A kit's training and prediction, computed by torch instead of onnxruntime.

    Where memory does not suffice, fewer models go together, and then batches go through the model in pieces.
    """

    def __init__(self, kit: Kit, network: Network, device: str = "cpu") -> None:
        super().__init__(kit)
        # Threads that wait for each other at every step of a small model cost more than they bring.
        self.place = TorchPlace(device, threads=1 if network.size <= SMALL else 0)
        self._limit = SampleLimit(self.place)
        self._learning = _placed(network.learning, self.place) if kit.task else None
        if kit.task and self._learning is None:
            raise ModelError(f"torch needs the loss of the kit's task {kit.task.kind!r}, which a graph does not tell")
        if kit.learns.beside:
            raise ModelError(
                "a loss that looks at a further model (task.beside) is trained by onnxruntime alone: set trainer = "
                "'onnx'"
            )
        self._sizes, self._tensors = list(kit.model.sizes), kit.model.tensors
        fed, self._feed = with_fed_dropout(network.module)
        fed = with_plain_batchnorm(fed, network.batchnorm)
        self._with_state = tuple(layer for _, layer in layers_with_state(fed))
        if kit.noise:
            some = torch.zeros((2, *kit.input.shape), dtype=getattr(torch, kit.input.dtype))
            learn_draws(fed.train(), self._feed, some)
            if not self._feed.to_functions:
                del fed.forward  # a watch over every operator, which takes its time
        with self.place.work():
            self._module = normalised(fed, kit.input, network.mean, network.std).to(self.place.device)
        # Within vmap functions would draw numbers of their own: models with such go one after another.
        self._slopes = self._one_by_one if self._feed.to_functions else vmap(grad_and_value(self._loss))

    @cached_property
    def _on_device(self) -> Graphs:
        return Graphs(self._kit)

    @property
    def cuts(self) -> bool:
        """Never: the module is run as a whole, on samples."""
        return False

    def loss_gradient_and_state(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        beside: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """The mean loss of a batch, its gradient by what is trained of the vector, and the state that it leaves.

        A second stream is the device's own graph, on the CPU: torch has the model, and not the objective.
        """
        del beside  # refused above
        if streams:
            own = self._on_device
            return own.loss_gradient_and_state(vector, own.features(x), y, noise, streams=streams)
        if self.learns.target is not None:
            self._check_targets(y)
        learnt = self._kit.model.learnt
        with self.place.work():
            self._module.train()
            leaf = self.tensor(vector).detach().requires_grad_()
            weights = torch.full((len(y),), 1.0 / len(y), device=self.place.device)
            batch = [self._samples(x), self.tensor(y), weights, *map(self.tensor, noise)]
            loss, gradient = self._limit.fitting(len(y), lambda most: self._slope(leaf, batch, most))
            state = self._state_after(leaf[learnt:].detach())
            return loss.item(), gradient[:learnt].cpu().numpy(), state.cpu().numpy()

    def _state_after(self, before: Tensor) -> Tensor:
        """The state that the last pass left; that of a layer which it did not run stays as it was."""
        parts = torch.split(before, self._sizes[len(self._sizes) - self._kit.model.state :]) if len(before) else ()
        left = [part for layer in self._with_state for part in (layer.left or (None, None))]
        found = [old if new is None else new for new, old in zip(left, parts, strict=True)]
        return torch.cat([before[:0], *found])

    def losses_and_gradients(
        self, vectors: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """For each of several models (B, P) the loss of a batch of its own and the gradient; samples are weighed."""
        self._module.train()
        batch = [x, y, weights, *noise]
        return self._limit.fitting(weights.numel(), lambda most: self._slopes_of_all(vectors, batch, most))

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The model's answers for a batch, in the task's own terms."""

        def answered(model: Tensor, at: slice) -> Tensor:
            raw = self._call(model, self._samples(x[at]))
            return self._learning.answers(raw) if self._learning else raw

        return self._in_pieces(vector, len(x), answered)

    def losses(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        beside: Sequence[NDArray[np.float32]] = (),
    ) -> NDArray[np.float64]:
        """The loss of each sample as the model predicts it."""
        learning = self._learning
        if learning is None:
            return super().losses(vector, x, y, beside)

        def scored(model: Tensor, at: slice) -> Tensor:
            inputs = self._samples(x[at])
            return learning.losses(self._pass(model, inputs), inputs, self.tensor(y[at]), {})

        return self._in_pieces(vector, len(x), scored).astype(np.float64)

    def _in_pieces(
        self, vector: NDArray[np.float32], samples: int, of: Callable[[Tensor, slice], Tensor]
    ) -> NDArray[np.float32]:
        """What prediction gives for samples, as many at once as memory allows."""
        self._module.eval()
        with self.place.work(), torch.no_grad():
            model = self.tensor(vector)

            def answers(most: int) -> Tensor:
                return torch.cat([of(model, at) for at in pieces(samples, most)])

            found: NDArray[np.float32] = self._limit.fitting(samples, answers).cpu().numpy()
        return found

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """An array where torch computes."""
        return self.place.tensor(array)

    def _samples(self, x: NDArray[np.generic]) -> Tensor:
        """Samples where torch computes; images with their channels last, as a CPU convolves them fastest."""
        tensor = self.tensor(x)
        images = tensor.ndim == IMAGES and self.place.device.type == "cpu"
        return tensor.contiguous(memory_format=torch.channels_last) if images else tensor

    def _slope(self, leaf: Tensor, batch: Sequence[Tensor], most: int) -> tuple[Tensor, Tensor]:
        """The loss of one model and its gradient, from at most so many samples at once."""
        loss, gradient = torch.zeros((), device=leaf.device), torch.zeros_like(leaf)
        for at in self._pieces(len(batch[0]), most):
            x, y, weights, *noise = (each[at] for each in batch)
            part = self._loss(leaf, x, y, weights, noise)
            gradient += torch.autograd.grad(part, leaf)[0]
            loss += part.detach()
        return loss, gradient

    def _slopes_of_all(self, vectors: Tensor, batch: Sequence[Tensor], most: int) -> tuple[Tensor, Tensor]:
        """The losses of several models and their gradients, from at most so many samples at once."""
        models, width = batch[2].shape
        if most >= models * width:
            return self._slopes_of(vectors, batch)
        losses, gradients = torch.zeros(models, device=vectors.device), torch.zeros_like(vectors)
        for some in pieces(models, max(1, most // width)):
            for at in self._pieces(width, most):
                parts, slopes = self._slopes_of(vectors[some], [each[some, at] for each in batch])
                losses[some] += parts
                gradients[some] += slopes
        return losses, gradients

    def _slopes_of(self, vectors: Tensor, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x, y, weights, *noise = batch
        gradients, losses = self._slopes(vectors, x, y, weights, noise)
        return losses, gradients

    def _one_by_one(
        self, vectors: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The gradients and the losses of several models, each by itself."""
        found = []
        for at, vector in enumerate(vectors):
            leaf = vector.detach().requires_grad_()
            loss = self._loss(leaf, x[at], y[at], weights[at], [each[at] for each in noise])
            found.append((torch.autograd.grad(loss, leaf)[0], loss.detach()))
        gradients, losses = zip(*found, strict=True)
        return torch.stack(gradients), torch.stack(losses)

    def _pieces(self, samples: int, most: int) -> list[slice]:
        """A batch in pieces, whose losses add up; refused where they would not."""
        if most < samples and not self._adds_up:
            raise ModelError(
                f"{self.place.device} is out of memory with a batch of {samples} samples, and this model looks at a "
                "batch as a whole, so that it cannot be cut: take a smaller batch"
            )
        return pieces(samples, most)

    @cached_property
    def _adds_up(self) -> bool:
        """Whether the loss of a batch is the sum of its samples': tried with the kit's probe. With state it is not."""
        kit = self._kit
        if kit.model.state:
            return False
        samples = len(kit.probe.y)
        x = np.frombuffer(kit.probe.x, dtype=kit.input.dtype).reshape(samples, *kit.input.shape)
        y, weights = probe_targets(kit), np.full(samples, 1.0 / samples, np.float32)
        drawn = draw_noise(kit.probe.noise_seed, 0, samples, kit.noise)
        vector = self.tensor(probe_vector(kit.model.sizes, kit.probe.spread))
        batch = [self.tensor(each) for each in (x, y, weights, *drawn)]

        def loss(at: slice) -> float:
            x, y, weights, *noise = (each[at] for each in batch)
            return self._loss(vector, x, y, weights, noise).item()

        with torch.no_grad():
            whole, parts = loss(slice(samples)), sum(map(loss, pieces(samples, 1)))
        return abs(whole - parts) <= LOSS_TOLERANCE * max(1.0, abs(whole))

    def _loss(self, vector: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]) -> Tensor:
        self._feed.give(noise)
        for layer in self._with_state:
            layer.left = None
        if self._learning is not None:
            losses: Tensor = self._learning.losses(self._pass(vector, x), x, y, {})
            return (losses * weights).sum()
        chances = torch.log_softmax(self._call(vector, x), 1).gather(1, y.unsqueeze(1)).squeeze(1)
        return -(chances * weights).sum()

    def _pass(self, vector: Tensor, x: Tensor) -> ForwardPass:
        """The outputs, and those of the layers that the loss asks for."""
        names = self._learning.features if self._learning else ()
        with watched(self._module, names) as seen:
            return ForwardPass(self._call(vector, x), seen)

    def _call(self, vector: Tensor, x: Tensor) -> Tensor:
        parts = zip(self._tensors, torch.split(vector, self._sizes), strict=True)
        named = {f"module.{spec.name}": part.view(spec.shape) for spec, part in parts}
        answers: Tensor = functional_call(self._module, named, (x,))
        return answers


def _placed(learning: Learning | None, place: TorchPlace) -> Learning | None:
    """The same with its scale where torch computes."""
    if learning is None:
        return None
    mean, std = (None if each is None else each.to(place.device) for each in (learning.mean, learning.std))
    return replace(learning, mean=mean, std=std)


class TorchEngine(SerialEngine):
    """The device's own trainer with torch's gradients: one visit after another, on a CPU or a GPU."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu") -> None:
        super().__init__(shards, lambda kit, _threads: TorchGraphs(kit, network, device))
