"""The anomaly example's served score on held-out faults / the same autoencoder trained centrally in torch."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from rich.console import Console

from coordinator.models import build
from examples.anomaly.__main__ import auc
from examples.serving import Example, begin, release_of, served
from fleet_sim.settings import Simulation
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import batches

REACH = 0.97


def by_fleet(example: Example) -> float:
    """Return the AUC of a device's scores after all rounds."""
    data = example.data
    with served(example, release_of(example)) as model:
        found = model.score(data.x_test)
    return auc(np.array([each.score for each in found]), data.y_test == 1)  # type: ignore[union-attr]


def centrally(example: Example) -> float:
    """Return the AUC of one model trained on all samples, as often as the devices train on theirs."""
    job, data = example.simulation.read(), example.data
    training = job.parts().training
    model = build(job.model.name, InputSpec(data.x_train.shape[1:]), data.x_train[0].size, job.model.options, job.seed)
    mean, std = data.x_train.mean(axis=0), data.x_train.std(axis=0)
    x, x_test = (torch.from_numpy((each - mean) / std) for each in (data.x_train, data.x_test))
    optimiser = torch.optim.Adam(model.parameters(), lr=training.lr)
    for rows in batches(job.seed, len(x), training.batch, job.all_rounds * training.epochs):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x[rows]), x[rows]).backward()
        optimiser.step()
    with torch.no_grad():
        scores = (model(x_test) - x_test).square().mean(dim=1)
    return auc(scores.double().numpy(), data.y_test == 1)


def seeded(example: Example, seed: int, folder: Path) -> Example:
    """Copy the example with another seed to a separate folder."""
    old = example.simulation
    simulation = Simulation({**old.job, "seed": seed}, old.fleet, old.split, old.availability)
    (folder / str(seed)).mkdir()
    return replace(example, simulation=simulation, folder=folder / str(seed), console=Console(quiet=True))


def main() -> None:
    """Print a line for each seed, and the ratio of the means."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="sojourn-anomaly-") as folder:
        example = begin("anomaly", "", ["--output", folder])
        for seed in range(given.seeds):
            one = seeded(example, seed, Path(folder))
            found.append((by_fleet(one), centrally(one)))
            print(f"seed {seed}: AUC served {found[-1][0]:.4f}, central {found[-1][1]:.4f}", flush=True)
    ratio = fmean(each[0] for each in found) / fmean(each[1] for each in found)
    print(f"served / central: {ratio:.4f} (reach {REACH})")


if __name__ == "__main__":
    main()
