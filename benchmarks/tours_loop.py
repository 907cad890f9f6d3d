"""Tours in plain torch, without the framework: to test ideas in minutes, and for comparison with Sojourn.

CIFAR-10 by Dirichlet over 100 devices, L tours of k, the CNN of 48 thousand numbers, batch 32, one epoch a visit; or
scikit-learn's digits with a CNN of 4 thousand. Tested on 2,000 images at most. Prints for each round the accuracy of
the newest merge, and of the mean of the last merges (at most ten, at most a quarter of the rounds so far). KEEL is
--tau 1 --momentum 0.9 --brake each.

SOJOURN_DATA=FOLDER python -m benchmarks.tours_loop [--arranger visit|random|turns] [--tau 1] [--momentum 0.9]
    [--brake none|all|each] [--against 0.8] [--local-momentum 0.9] [--step 5] [--long-first 6] [--rounds 40] [--seed 1]
    [--data cifar10|digits] [--devices 100] [--sets 9] [--size 4] [--rate 0.05] [--epochs 1] [--batch 32]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES, TESTED, EXEMPLARS, SIGNED = 10, 2000, 10, 5
LAST = torch.channels_last


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arranger", choices=["visit", "random", "turns"], default="turns")
    parser.add_argument("--brake", choices=["none", "all", "each"], default="none")
    parser.add_argument("--data", choices=["cifar10", "digits"], default="cifar10")
    shares = {
        "tau": 0.0,
        "momentum": 0.0,
        "against": 0.8,
        "local_momentum": 0.0,
        "step": 0.0,
        "alpha": 0.1,
        "rate": 0.05,
    }
    for name, default in shares.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    counts = {"rounds": 40, "seed": 1, "devices": 100, "sets": 9, "size": 4, "long_first": 0, "epochs": 1, "batch": 32}
    for name, number in counts.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=number)
    torch.set_num_threads(1)
    Loop(parser.parse_args()).run()


class Loop:
    """A fleet, its model, and its rounds."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        x, y, x_test, y_test = cifar10() if asked.data == "cifar10" else digits()
        self.x, self.y = images(x), torch.from_numpy(y.astype(np.int64))
        some = np.random.default_rng(5).permutation(len(y_test))[:TESTED]
        self.x_test, self.y_test = images(x_test)[some], torch.from_numpy(y_test[some].astype(np.int64))
        self.parts = dirichlet(y, asked.devices, asked.alpha, asked.seed)
        self.counts = np.array([np.bincount(y[part], minlength=CLASSES) for part in self.parts])
        self.here = np.flatnonzero(self.counts.sum(1))
        self.turns = np.zeros(asked.devices)
        torch.manual_seed(asked.seed)
        self.net = network() if asked.data == "cifar10" else small_network()
        self.tensors: list[Tensor] = list(self.net.parameters())
        self.w = self.vector()
        self.signatures = self.estimated(y) if asked.arranger == "visit" else None

    def run(self) -> None:
        """Run every round: tours, the server's step, and the accuracy."""
        asked = self.asked
        v, mass, mean = torch.zeros_like(self.w), 0.0, self.w
        for number in range(1, asked.rounds + 1):
            ends, weights = self.toured(number)
            d = (weights @ ends) / weights.sum() - self.w
            v, mass = asked.momentum * self.braked(v, d, ends - self.w) + d, asked.momentum * mass + 1
            self.w = self.w + (asked.step * v / mass if asked.step else v)
            mean = mean + (self.w - mean) / max(1, min(10, number // 4))
            print(f"{number:3} {self.accuracy(self.w):.4f} {self.accuracy(mean):.4f}", flush=True)

    def toured(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the tours' models, a row each, and the samples of each."""
        ends, seen = [], []
        for tour in self.arranged(number):
            self.put(self.w)
            for device in tour:
                self.turns[device] += 1
                self.visit(device, [self.asked.seed, number, device], self.asked.tau, self.asked.epochs)
            ends.append(self.vector())
            seen.append(float(self.counts[tour].sum()))
        return torch.stack(ends), torch.tensor(seen)

    def braked(self, v: Tensor, d: Tensor, ways: Tensor) -> Tensor:
        """Return the momentum that remains after a merge d of these updates."""
        brake, none = self.asked.brake, torch.zeros_like(v)
        if brake == "all":
            return none if d @ v < 0 else v
        if brake == "each":
            votes = (ways * v < 0).sum(0)
            return torch.where((d * v < 0) & (votes >= int(self.asked.against * len(ways))), none, v)
        return v

    def arranged(self, number: int) -> list[list[int]]:
        """Return the tours of a round."""
        asked, draw = self.asked, np.random.default_rng([self.asked.seed, number, 7])
        sets, size = asked.sets, asked.size
        if number <= asked.long_first:
            sets, size = sets // 2, sets * size // (sets // 2)
        if self.signatures is not None:
            return self.balanced(sets, size, draw)
        waiting = draw.permutation(self.here)
        if asked.arranger == "turns":
            waiting = waiting[np.argsort(self.turns[waiting], kind="stable")]
        return [tour.tolist() for tour in draw.permutation(waiting[: sets * size]).reshape(sets, size)]

    def balanced(self, sets: int, size: int, draw: np.random.Generator) -> list[list[int]]:
        """VISIT's greedy: a random device, then each time the one that brings the mean nearest to (1, ..., 1)."""
        assert self.signatures is not None  # checked by the caller
        left, tours = self.here.tolist(), list[list[int]]()
        for _ in range(sets):
            tour = [left.pop(int(draw.integers(len(left))))]
            while len(tour) < size:
                sums = self.signatures[tour].sum(0) + self.signatures[left]
                tour.append(left.pop(int((sums.sum(1) / np.linalg.norm(sums, axis=1)).argmax())))
            tours.append(tour)
        return tours

    def visit(self, device: int, seed: list[int], tau: float, epochs: int = 1) -> None:
        """Run SGD on a device's samples, with its outputs shifted by tau log p."""
        part, counts = self.parts[device], self.counts[device] + 1.0
        shift = torch.from_numpy(tau * np.log(counts / counts.sum())).float()
        velocity: list[Tensor] = []
        draw = np.random.default_rng(seed)
        for _ in range(epochs):
            order = part[draw.permutation(len(part))]
            for at in range(0, len(order), self.asked.batch):
                some = order[at : at + self.asked.batch]
                loss = functional.cross_entropy(
                    self.net(self.x[some].contiguous(memory_format=LAST)) + shift, self.y[some]
                )
                slopes = torch.autograd.grad(loss, self.tensors)
                with torch.no_grad():
                    if velocity:
                        torch._foreach_mul_(velocity, self.asked.local_momentum)
                        torch._foreach_add_(velocity, slopes)
                    else:
                        velocity = [slope.clone() for slope in slopes]
                    torch._foreach_add_(self.tensors, velocity, alpha=-self.asked.rate)

    def estimated(self, y: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return each device's mean predictions for exemplars, after some epochs from the same model."""
        exemplars = np.concatenate([np.flatnonzero(y == label)[:EXEMPLARS] for label in range(CLASSES)])
        found = []
        for device in range(len(self.parts)):
            self.put(self.w)
            self.visit(device, [self.asked.seed, 0, device], 0.0, SIGNED)
            with torch.no_grad():
                found.append(self.net(self.x[exemplars]).softmax(1).mean(0).numpy())
        return np.array(found, np.float64)

    def accuracy(self, vector: Tensor) -> float:
        """Return the accuracy on the test images."""
        self.put(vector)
        with torch.no_grad():
            right = [
                (self.net(self.x_test[at : at + 500]).argmax(1) == self.y_test[at : at + 500])
                for at in range(0, len(self.y_test), 500)
            ]
        return float(torch.cat(right).float().mean())

    def put(self, vector: Tensor) -> None:
        """Set the network's weights."""
        with torch.no_grad():
            for tensor, part in zip(
                self.tensors, torch.split(vector, [it.numel() for it in self.tensors]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))

    def vector(self) -> Tensor:
        """Return the network's weights as one vector."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors])


def cifar10() -> list[NDArray[np.generic]]:
    """Return images and labels for training and testing."""
    with np.load(Path(os.environ["SOJOURN_DATA"]) / "cifar10.npz") as file:
        return [file[name] for name in ("x_train", "y_train", "x_test", "y_test")]


def digits() -> list[NDArray[np.generic]]:
    """Return scikit-learn's digits, four fifths for training."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, y = (found.images * 15).astype(np.uint8)[order, :, :, None], found.target[order]
    return [x[:1437], y[:1437], x[1437:], y[1437:]]


def small_network() -> nn.Module:
    """Two convolutions with poolings, two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )


def network() -> nn.Module:
    """Three convolutions with poolings, two linear layers."""
    layers: list[nn.Module] = []
    for inward, outward in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def images(x: NDArray[np.generic]) -> Tensor:
    """Channels first, with a mean of 0 and a deviation of 1 for each."""
    values = x.astype(np.float32).transpose(0, 3, 1, 2) / 255
    axes = (0, 2, 3)
    return torch.from_numpy((values - values.mean(axes, keepdims=True)) / values.std(axes, keepdims=True))


def dirichlet(y: NDArray[np.generic], devices: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Split every class by shares from Dir(alpha)."""
    draw, whose = np.random.default_rng(seed), np.empty(len(y), np.int64)
    for label in range(CLASSES):
        mine = draw.permutation(np.flatnonzero(y == label))
        ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * len(mine)).astype(np.int64)
        whose[mine] = np.searchsorted(ends[:-1], np.arange(len(mine)), side="right")
    return [np.flatnonzero(whose == device) for device in range(devices)]


if __name__ == "__main__":
    main()
