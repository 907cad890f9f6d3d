"""DENSE: data-free one-shot distillation of the members' models into a new student, with a generator of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.finishers.task import FLOAT32, MEGABYTE, Finished, FinishTask, Vector
from coordinator.finishers.torch_models import TorchModels, repeatable
from sojourn.errors import JobError
from sojourn.parts import Dense
from sojourn.randomness import derive

CHANNELS, LATER_CHANNELS = 128, 64
SLOPE = 0.2
SPREAD = 0.02
"""The standard deviation of the normal distribution of a generator's initial weights."""


class Generator(nn.Module):
    """Turns noise into images with values from 0 to 1: a linear layer, then upsampling and convolution, twice."""

    def __init__(self, noise: int, shape: Sequence[int]) -> None:
        """Generate images of `shape` (channels, height, width) from `noise` numbers each."""
        super().__init__()
        channels, self._height, self._width = shape
        self._base = -(-self._height // 4), -(-self._width // 4)
        self.linear = nn.Linear(noise, CHANNELS * self._base[0] * self._base[1])
        self.layers = nn.Sequential(
            nn.BatchNorm2d(CHANNELS),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.LeakyReLU(SLOPE),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, LATER_CHANNELS, 3, padding=1),
            nn.BatchNorm2d(LATER_CHANNELS),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(LATER_CHANNELS, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Return images; sides that are not multiples of 4 are cropped."""
        out: Tensor = self.layers(self.linear(z).reshape(len(z), CHANNELS, *self._base))
        return out[:, :, : self._height, : self._width]


def draw_weights(generator: Generator, by: torch.Generator) -> None:
    """Initialise the weights: N(0, 0.02), scales of BatchNorm layers N(1, 0.02), all others 0."""
    with torch.no_grad():
        for layer in generator.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
                centre = 1.0 if isinstance(layer, nn.BatchNorm2d) else 0.0
                layer.weight.copy_(centre + SPREAD * torch.randn(layer.weight.shape, generator=by))
                if layer.bias is not None:
                    layer.bias.zero_()


def shifted(images: Tensor, padding: int, flip: bool, by: torch.Generator) -> Tensor:
    """Crop each image at a random place after padding with zeros; mirror half of them."""
    count, _, height, width = images.shape
    place = images.device
    if padding:
        framed = functional.pad(images, [padding] * 4)
        corners = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=by).to(place)
        rows = (corners[0] + torch.arange(height, device=place))[:, None, :, None]
        columns = (corners[1] + torch.arange(width, device=place))[:, None, None, :]
        which = torch.arange(count, device=place)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=place)[None, :, None, None]
        images = framed[which, channel, rows, columns]
    if flip:
        mirrored = torch.rand(count, generator=by).to(place) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return images


class UnusualStatistics:
    """Measures how far a batch's mean and variance are from the running statistics of models' BatchNorm layers."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._found: list[Tensor] = []
        layers = [layer for model in models for layer in model.modules() if _has_statistics(layer)]
        self._hooks = [layer.register_forward_hook(self._record) for layer in layers]

    def _record(self, layer: nn.Module, given: tuple[Tensor, ...], _out: object) -> None:
        x, axes = given[0], [axis for axis in range(given[0].dim()) if axis != 1]
        mean, variance = x.mean(axes), x.var(axes, unbiased=False)
        seen: list[Tensor] = [layer.get_buffer("running_mean"), layer.get_buffer("running_var")]
        self._found.append(_norm(mean - seen[0]) + _norm(variance - seen[1]))

    def take(self) -> Tensor | float:
        """Return the sum since the last call; 0 for models without such layers."""
        found, self._found = self._found, []
        return torch.stack(found).sum() if found else 0.0

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


def _norm(vector: Tensor) -> Tensor:
    return (vector.square().sum() + 1e-24).sqrt()  # differentiable at 0


def _has_statistics(layer: nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None and getattr(layer, "running_var", None) is not None


# DENSE: data-free one-shot distillation of the members' models into a new student.
#
# Jie Zhang et al.: "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022. T = mean of the members' logits, S the
# student's. Each epoch (1) initialises a generator G and noise z and takes Adam steps on both for
#
#     oh CE(T, y) + bn (distance of batch statistics) - adv mean(1[argmax S != argmax T] KL(T || S))
#
# and keeps the images with the lowest loss; (2) adds them to the pool and trains the student on the whole pool once,
# with tau^2 KL(softmax(T / tau) || softmax(S / tau)). Images have values in the range of the job's data, before its
# normalisation. The pool is kept as floats. The result is the last student, or the best on exemplars, never by the
# test set.

BETAS = (0.5, 0.999)


class _Distilling(NamedTuple):
    """The inputs of both halves of an epoch. The values of images are low + width [0, 1]."""

    settings: Dense
    place: torch.device
    making: torch.Generator
    """The random generator for images."""
    learning: torch.Generator
    """The random generator for the student's training."""
    members: list[nn.Module]
    student: nn.Module
    shape: tuple[int, ...]
    classes: int
    low: float
    width: float

    def raw(self, images: Tensor, by: torch.Generator) -> Tensor:
        """Return randomly shifted images as input of the models."""
        return self.low + self.width * shifted(images, self.settings.padding, self.settings.flip, by)

    def ensemble(self, x: Tensor) -> Tensor:
        """Return the mean of the members' logits."""
        return torch.stack([member(x) for member in self.members]).mean(0)


def dense(settings: Dense, task: FinishTask) -> Finished:
    """Train a student on the members' outputs for generated images."""
    kit = task.kit
    task.check_room(settings.memory, "finisher.memory")
    pixels = settings.epochs * settings.images * torch.Size(kit.input.shape).numel()
    if (room := FLOAT32 * pixels / MEGABYTE) > settings.memory:
        raise JobError(f"dense needs {room:,.0f} MB for images, more than finisher.memory = {settings.memory:g}")
    with repeatable(derive(task.seed, "dense")) as place:
        models = TorchModels(task, place)
        members = [models.filled(member.load()) for member in task.members]
        making, learning = (torch.Generator().manual_seed(derive(task.seed, name)) for name in ("images", "learning"))
        low, high = (kit.values.low, kit.values.high) if kit.values else (0.0, 1.0)
        student = models.fresh(derive(task.seed, "student"))
        it = _Distilling(
            settings,
            place,
            making,
            learning,
            members,
            student,
            kit.input.shape,
            len(kit.classes),
            low,
            max(high - low, 1e-6),
        )
        best = _distil(it, task, models)
        return Finished(best)


def _distil(it: _Distilling, task: FinishTask, models: TorchModels) -> Vector:
    """Run all epochs and return the student's weights to keep."""
    settings = it.settings
    pool: list[Tensor] = []
    optimiser = torch.optim.SGD(
        [weight for weight in it.student.parameters() if weight.requires_grad], settings.lr, settings.momentum
    )
    kept, best_accuracy = models.vector(it.student), -1.0
    for epoch in range(settings.epochs):
        task.notify(f"dense: epoch {epoch + 1} of {settings.epochs}")
        pool.append(generate(it))
        learn(it, pool, optimiser)
        found = _accuracy(it, task) if settings.keep == "best" else float(epoch)
        if found > best_accuracy:
            kept, best_accuracy = models.vector(it.student), found
    return kept


def generate(it: _Distilling) -> Tensor:
    """Return the images of an epoch: those of the step with the lowest loss."""
    settings = it.settings
    generator = Generator(settings.noise, it.shape)
    draw_weights(generator, it.making)
    z = torch.randn(settings.images, settings.noise, generator=it.making).to(it.place).requires_grad_()
    y = torch.randint(0, it.classes, (settings.images,), generator=it.making).to(it.place)
    generator.to(it.place).train()
    it.student.eval()
    optimiser = torch.optim.Adam([*generator.parameters(), z], settings.generator_lr, BETAS)
    unusual = UnusualStatistics(it.members)
    best, lowest = torch.zeros(settings.images, *it.shape, device=it.place), float("inf")
    try:
        for _ in range(settings.steps):
            images = generator(z)
            loss = _loss(it, it.raw(images, it.making), y, unusual)
            if (reached := float(loss.detach())) < lowest:
                best, lowest = images.detach().clone(), reached
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    finally:
        unusual.close()
    return best


def _loss(it: _Distilling, x: Tensor, y: Tensor, unusual: UnusualStatistics) -> Tensor:
    ensemble, student = it.ensemble(x), it.student(x) if it.settings.adv else None
    loss = it.settings.oh * functional.cross_entropy(ensemble, y) + it.settings.bn * unusual.take()
    if student is None:
        return loss
    apart = functional.kl_div(student.log_softmax(1), ensemble.softmax(1), reduction="none").sum(1)
    differ = (student.argmax(1) != ensemble.argmax(1)).float()
    found: Tensor = loss - it.settings.adv * (differ * apart).mean()
    return found


def learn(it: _Distilling, pool: Sequence[Tensor], optimiser: torch.optim.Optimizer) -> None:
    """Train the student once on the whole pool."""
    everything, tau = torch.cat(list(pool)), it.settings.tau
    it.student.train()
    for rows in torch.randperm(len(everything), generator=it.learning).split(it.settings.images):
        x = it.raw(everything[rows.to(it.place)], it.learning)
        with torch.no_grad():
            wanted = (it.ensemble(x) / tau).softmax(1)
        student = (it.student(x) / tau).log_softmax(1)
        loss = tau * tau * functional.kl_div(student, wanted, reduction="batchmean")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _accuracy(it: _Distilling, task: FinishTask) -> float:
    """Return the student's accuracy on the exemplars."""
    if task.exemplars is None:
        raise JobError('finisher.keep = "best" needs exemplars: set a file in data.exemplars or data.test')
    x, y = task.exemplars.arrays()
    it.student.eval()
    with torch.no_grad():
        predicted = it.student(torch.from_numpy(x).to(it.place)).argmax(1).cpu()
    return float((predicted == torch.from_numpy(y)).float().mean())
