"""DENSE: data-free one-shot distillation of the members' models into a fresh student.

Jie Zhang et al.: "DENSE: Data-Free One-Shot Federated Learning", NeurIPS 2022. T = mean of the members' logits, S the
student's. Each epoch (1) draws a generator G and noise z anew and takes Adam steps on both for

    oh CE(T, y) + bn (how unusual the batch is to BatchNorm layers) - adv mean(1[argmax S != argmax T] KL(T || S))

and keeps the images of the lowest loss; (2) adds them to the pool and lets the student go through the whole pool once,
along tau^2 KL(softmax(T / tau) || softmax(S / tau)). Images have values between those of the job's data, before its
normalisation. A pool of floats is kept, and the last student, or the best on exemplars: never by the test set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from coordinator.finishers.dense_images import Generator, UnusualStatistics, draw_weights, shifted
from coordinator.finishers.task import FLOAT32, MEGABYTE, Finished
from coordinator.finishers.torch_models import TorchModels, repeatable
from sojourn.errors import JobError
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from coordinator.finishers.task import FinishTask, Vector
    from sojourn.parts import Dense

BETAS = (0.5, 0.999)


class _Distilling(NamedTuple):
    """What both halves of an epoch need. `low` and `width`: the values of images are low + width [0, 1]."""

    settings: Dense
    place: torch.device
    making: torch.Generator
    """What images are drawn with."""
    learning: torch.Generator
    """What the student's way through them is drawn with."""
    members: list[nn.Module]
    student: nn.Module
    shape: tuple[int, ...]
    classes: int
    low: float
    width: float

    def raw(self, images: Tensor, by: torch.Generator) -> Tensor:
        """Images as the models take them, shifted anew."""
        return self.low + self.width * shifted(images, self.settings.padding, self.settings.flip, by)

    def together(self, x: Tensor) -> Tensor:
        """What the members say together: the mean of their logits."""
        return torch.stack([member(x) for member in self.members]).mean(0)


def dense(settings: Dense, task: FinishTask) -> Finished:
    """A student that has learnt from the members on generated images."""
    kit = task.kit
    task.check_room(settings.memory, "finisher.memory")
    pixels = settings.epochs * settings.images * torch.Size(kit.input.shape).numel()
    if (room := FLOAT32 * pixels / MEGABYTE) > settings.memory:
        raise JobError(f"dense makes {room:,.0f} MB of images, and finisher.memory = {settings.memory:g} allows less")
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
    """Epoch by epoch; the student's weights that are kept."""
    settings = it.settings
    pool: list[Tensor] = []
    optimiser = torch.optim.SGD(
        [weight for weight in it.student.parameters() if weight.requires_grad], settings.lr, settings.momentum
    )
    kept, right = models.vector(it.student), -1.0
    for epoch in range(settings.epochs):
        task.say(f"dense: epoch {epoch + 1} of {settings.epochs}")
        pool.append(generate(it))
        learn(it, pool, optimiser)
        found = _right_answers(it, task) if settings.keep == "best" else float(epoch)
        if found > right:
            kept, right = models.vector(it.student), found
    return kept


def generate(it: _Distilling) -> Tensor:
    """The images of an epoch: those of the step with the lowest loss."""
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
    together, said = it.together(x), it.student(x) if it.settings.adv else None
    loss = it.settings.oh * functional.cross_entropy(together, y) + it.settings.bn * unusual.taken()
    if said is None:
        return loss
    apart = functional.kl_div(said.log_softmax(1), together.softmax(1), reduction="none").sum(1)
    differ = (said.argmax(1) != together.argmax(1)).float()
    found: Tensor = loss - it.settings.adv * (differ * apart).mean()
    return found


def learn(it: _Distilling, pool: Sequence[Tensor], optimiser: torch.optim.Optimizer) -> None:
    """Once through the whole pool."""
    everything, tau = torch.cat(list(pool)), it.settings.tau
    it.student.train()
    for rows in torch.randperm(len(everything), generator=it.learning).split(it.settings.images):
        x = it.raw(everything[rows.to(it.place)], it.learning)
        with torch.no_grad():
            wanted = (it.together(x) / tau).softmax(1)
        said = (it.student(x) / tau).log_softmax(1)
        loss = tau * tau * functional.kl_div(said, wanted, reduction="batchmean")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def _right_answers(it: _Distilling, task: FinishTask) -> float:
    """The share of exemplars that the student gets right."""
    if task.exemplars is None:
        raise JobError('finisher.keep = "best" needs exemplars: name a file in data.exemplars or data.test')
    x, y = task.exemplars.arrays()
    it.student.eval()
    with torch.no_grad():
        said = it.student(torch.from_numpy(x).to(it.place)).argmax(1).cpu()
    return float((said == torch.from_numpy(y)).float().mean())
