"""Learn the vibration of healthy machines, and score samples on a device: from a simulation to a served release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from examples.serving import begin, release_of, served

if TYPE_CHECKING:
    from numpy.typing import NDArray


def main(arguments: list[str] | None = None) -> None:
    """Run it and print the scores."""
    example = begin("anomaly", str(__doc__), arguments)
    release, data = release_of(example), example.data
    with served(example, release) as model:
        found = model.score(data.x_test)
        scores = np.array([each.score for each in found] if isinstance(found, list) else [found.score])
        example.print(
            f"A device serves release {model.version}. A score of {model.threshold:.3f} or more is an anomaly; the "
            "device measured this threshold on its own data."
        )
    faulty = data.y_test == 1
    for name, some in (("healthy", scores[~faulty]), ("faulty", scores[faulty])):
        example.print(f"  {name}: {' '.join(f'{score:.3f}' for score in some[:8])} ...")
    example.print(f"AUC {auc(scores, faulty):.3f} on faults that were never in the training data.")
    example.print(f"Tables, plots and the release are in {example.folder}")


def auc(scores: NDArray[np.float64], faulty: NDArray[np.bool_]) -> float:
    """The share of pairs of a healthy and a faulty sample that the scores order correctly."""
    healthy = np.sort(scores[~faulty])
    below = (
        np.searchsorted(healthy, scores[faulty], side="left"),
        np.searchsorted(healthy, scores[faulty], side="right"),
    )
    return float(np.mean((below[0] + below[1]) / 2 / len(healthy)))


if __name__ == "__main__":
    main()
