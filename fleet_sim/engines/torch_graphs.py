"""A kit's graphs computed by torch: the module as a function of the model's vector, on any device.

`TorchGraphs` replaces `sojourn.model.graphs.Graphs`, so the device's own trainer runs on it unchanged; the kit's probe
verifies the module like any other runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from coordinator.compiling.losses import ForwardPass, Learning, watched
from coordinator.compiling.normalisation import layers_with_state, normalised, with_plain_batchnorm
from coordinator.compiling.randomness import learn_draws, with_fed_dropout
from fleet_sim.engines.choosing import SMALL
from fleet_sim.engines.engine import Network, Shards
from fleet_sim.engines.serial import SerialEngine
from fleet_sim.engines.torch_place import SampleLimit, TorchPlace, pieces
from sojourn.errors import ModelError
from sojourn.model.graphs import LOSS_TOLERANCE, Graphs, Streams, probe_targets, probe_vector
from sojourn.protocol.spec import Kit
from sojourn.randomness import noise as draw_noise

IMAGES = 4
"""Number of axes of a batch of images: samples, channels, height and width."""


class TorchGraphs(Graphs):
    """Training and prediction of a kit in torch instead of onnxruntime.

    If memory is insufficient, fewer models run together, and then batches are processed in pieces.
    """

    def __init__(self, kit: Kit, network: Network, device: str = "cpu") -> None:
        super().__init__(kit)
        # For each step of a small model, synchronising threads costs more than they gain.
        self.place = TorchPlace(device, threads=1 if network.size <= SMALL else 0)
        self._limit = SampleLimit(self.place)
        self._learning = _placed(network.learning, self.place) if kit.task else None
        if kit.task and self._learning is None:
            raise ModelError(
                f"torch needs the loss of the kit's task {kit.task.kind!r}, which a graph does not contain"
            )
        if kit.learns.reference_models:
            raise ModelError("a loss that uses task.reference_models needs onnxruntime: set trainer = 'onnx'")
        self._sizes, self._tensors = list(kit.model.sizes), kit.model.tensors
        fed, self._feed = with_fed_dropout(network.module)
        fed = with_plain_batchnorm(fed, network.batchnorm)
        self._with_state = tuple(layer for _, layer in layers_with_state(fed))
        if kit.noise:
            some = torch.zeros((2, *kit.input.shape), dtype=getattr(torch, kit.input.dtype))
            learn_draws(fed.train(), self._feed, some)
            if not self._feed.to_functions:
                del fed.forward  # debug checks of every operator are slow
        with self.place.work():
            self._module = normalised(fed, kit.input, network.mean, network.std).to(self.place.device)
        # Random functions would draw different numbers under vmap, so models with them run sequentially.
        self._slopes = self._one_by_one if self._feed.to_functions else vmap(grad_and_value(self._loss))

    @cached_property
    def _on_device(self) -> Graphs:
        return Graphs(self._kit)

    @property
    def has_trunk(self) -> bool:
        """Return False: the module always runs as a whole, on samples."""
        return False

    def loss_gradient_and_state(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean loss of a batch, its gradient by the trainable part of the vector, and the resulting state.

        A second stream uses the device's own graph on the CPU: torch has the model, but not the objective.
        """
        del reference_models  # refused above
        if streams:
            own = self._on_device
            return own.loss_gradient_and_state(vector, own.features(x), y, noise, streams=streams)
        if self.learns.target is not None:
            self._check_targets(y)
        size = self._kit.model.trainable_size
        with self.place.work():
            self._module.train()
            leaf = self.tensor(vector).detach().requires_grad_()
            weights = torch.full((len(y),), 1.0 / len(y), device=self.place.device)
            batch = [self._samples(x), self.tensor(y), weights, *map(self.tensor, noise)]
            loss, gradient = self._limit.fitting(len(y), lambda limit: self._loss_and_grad(leaf, batch, limit))
            state = self._state_after(leaf[size:].detach())
            return loss.item(), gradient[:size].cpu().numpy(), state.cpu().numpy()

    def _state_after(self, before: Tensor) -> Tensor:
        """Return the state after the last pass; layers that did not run keep theirs."""
        parts = torch.split(before, self._sizes[len(self._sizes) - self._kit.model.state :]) if len(before) else ()
        left = [part for layer in self._with_state for part in (layer.left or (None, None))]
        found = [old if new is None else new for new, old in zip(left, parts, strict=True)]
        return torch.cat([before[:0], *found])

    def losses_and_gradients(
        self, vectors: Tensor, x: Tensor, y: Tensor, weights: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted loss and gradient of several models (B, P), each for its own batch."""
        self._module.train()
        batch = [x, y, weights, *noise]
        return self._limit.fitting(weights.numel(), lambda limit: self._losses_and_grads(vectors, batch, limit))

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the model's predictions for a batch, in the task's units."""

        def answered(model: Tensor, at: slice) -> Tensor:
            raw = self._call(model, self._samples(x[at]))
            return self._learning.predictions(raw) if self._learning else raw

        return self._in_pieces(vector, len(x), answered)

    def losses(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        reference_models: Sequence[NDArray[np.float32]] = (),
    ) -> NDArray[np.float64]:
        """Return the loss of each sample as the model predicts it."""
        learning = self._learning
        if learning is None:
            return super().losses(vector, x, y, reference_models)

        def scored(model: Tensor, at: slice) -> Tensor:
            inputs = self._samples(x[at])
            return learning.losses(self._pass(model, inputs), inputs, self.tensor(y[at]), {})

        return self._in_pieces(vector, len(x), scored).astype(np.float64)

    def _in_pieces(
        self, vector: NDArray[np.float32], samples: int, of: Callable[[Tensor, slice], Tensor]
    ) -> NDArray[np.float32]:
        """Predict samples, in pieces that fit into memory."""
        self._module.eval()
        with self.place.work(), torch.no_grad():
            model = self.tensor(vector)

            def answers(limit: int) -> Tensor:
                return torch.cat([of(model, at) for at in pieces(samples, limit)])

            found: NDArray[np.float32] = self._limit.fitting(samples, answers).cpu().numpy()
        return found

    def tensor(self, array: NDArray[np.generic]) -> Tensor:
        """Copy an array to torch's device."""
        return self.place.tensor(array)

    def _samples(self, x: NDArray[np.generic]) -> Tensor:
        """Copy samples to torch's device; images with channels last, the fastest layout for convolutions on a CPU."""
        tensor = self.tensor(x)
        images = tensor.ndim == IMAGES and self.place.device.type == "cpu"
        return tensor.contiguous(memory_format=torch.channels_last) if images else tensor

    def _loss_and_grad(self, leaf: Tensor, batch: Sequence[Tensor], limit: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one model and its gradient, with at most this many samples at once."""
        loss, gradient = torch.zeros((), device=leaf.device), torch.zeros_like(leaf)
        for at in self._pieces(len(batch[0]), limit):
            x, y, weights, *noise = (each[at] for each in batch)
            part = self._loss(leaf, x, y, weights, noise)
            gradient += torch.autograd.grad(part, leaf)[0]
            loss += part.detach()
        return loss, gradient

    def _losses_and_grads(self, vectors: Tensor, batch: Sequence[Tensor], limit: int) -> tuple[Tensor, Tensor]:
        """Return the losses and gradients of several models, with at most this many samples at once."""
        models, width = batch[2].shape
        if limit >= models * width:
            return self._slopes_of(vectors, batch)
        losses, gradients = torch.zeros(models, device=vectors.device), torch.zeros_like(vectors)
        for some in pieces(models, max(1, limit // width)):
            for at in self._pieces(width, limit):
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
        """Return the gradients and losses of several models, computed one by one."""
        found = []
        for at, vector in enumerate(vectors):
            leaf = vector.detach().requires_grad_()
            loss = self._loss(leaf, x[at], y[at], weights[at], [each[at] for each in noise])
            found.append((torch.autograd.grad(loss, leaf)[0], loss.detach()))
        gradients, losses = zip(*found, strict=True)
        return torch.stack(gradients), torch.stack(losses)

    def _pieces(self, samples: int, limit: int) -> list[slice]:
        """Return pieces of a batch whose losses add up; raise an error if they do not."""
        if limit < samples and not self._adds_up:
            raise ModelError(
                f"{self.place.device} is out of memory with a batch of {samples} samples, and this model depends on "
                "the whole batch, so it cannot be split: use a smaller batch"
            )
        return pieces(samples, limit)

    @cached_property
    def _adds_up(self) -> bool:
        """Return whether a batch's loss is the sum of its samples', tested with the kit's probe; not with state."""
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
        """Return the outputs, and those of the layers that the loss uses."""
        names = self._learning.features if self._learning else ()
        with watched(self._module, names) as seen:
            return ForwardPass(self._call(vector, x), seen)

    def _call(self, vector: Tensor, x: Tensor) -> Tensor:
        parts = zip(self._tensors, torch.split(vector, self._sizes), strict=True)
        named = {f"module.{spec.name}": part.view(spec.shape) for spec, part in parts}
        answers: Tensor = functional_call(self._module, named, (x,))
        return answers


def _placed(learning: Learning | None, place: TorchPlace) -> Learning | None:
    """Return a copy with its scale on torch's device."""
    if learning is None:
        return None
    mean, std = (None if each is None else each.to(place.device) for each in (learning.mean, learning.std))
    return replace(learning, mean=mean, std=std)


class TorchEngine(SerialEngine):
    """The device's own trainer with gradients by torch: one visit after another, on a CPU or a GPU."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu") -> None:
        super().__init__(shards, lambda kit, _threads: TorchGraphs(kit, network, device))
