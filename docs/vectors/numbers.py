"""Seeds, random numbers from them, the probe's vector, signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from docs.vectors.cast import EXEMPLARS, SEED, START
from sojourn.model.exemplars import signature
from sojourn.model.graphs import probe_vector
from sojourn.randomness import batches, derive, noise

if TYPE_CHECKING:
    from sojourn.model.graphs import Graphs

_NAMES: tuple[tuple[int, tuple[str | int, ...]], ...] = (
    (0, ()),
    (7, ("train", 1)),
    (derive(7, "train", 1), ("pi-1", 0)),
    (SEED, ("order", 0)),
    (SEED, ("noise", 0)),
    ((1 << 53) - 1, ("order", 999_999)),
)


def make() -> dict[str, Any]:
    """Return the vectors by their keys in vectors.json."""
    return {
        "seeds": [{"seed": seed, "names": list(names), "derived": derive(seed, *names)} for seed, names in _NAMES],
        "orders": _orders(),
        "noise": _noise(),
        "probe_vector": {
            "size": 8,
            "float32": probe_vector([8]).astype("<f4").tobytes().hex(),
            "sizes": [5, 3],
            "spread": [0.5, 2.0],
            "spread_float32": probe_vector([5, 3], [0.5, 2.0]).astype("<f4").tobytes().hex(),
        },
        "signatures": _signatures(),
    }


def _orders() -> list[dict[str, Any]]:
    return [
        {
            "seed": seed,
            "samples": samples,
            "size": size,
            "epochs": epochs,
            "batches": [[int(at) for at in index] for index in batches(seed, samples, size, epochs)],
        }
        for seed, samples, size, epochs in ((0, 1, 4, 1), (SEED, 10, 4, 2), ((1 << 53) - 1, 100, 64, 1))
    ]


def _noise() -> list[dict[str, Any]]:
    shapes: tuple[tuple[int, ...], ...] = ((3,), (2, 2))
    return [
        {
            "seed": seed,
            "step": step,
            "batch": 2,
            "shapes": [list(shape) for shape in shapes],
            "float32": [drawn.astype("<f4").tobytes().hex() for drawn in noise(seed, step, 2, shapes)],
        }
        for seed, step in ((SEED, 0), (SEED, 1))
    ]


class _FixedAnswers:
    """A substitute for a kit's prediction graph."""

    has_trunk = False
    task = None

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = np.array(rows, np.float32)

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x

    def logits(self, _vector: object, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._rows[: len(x)]


def _signatures() -> list[dict[str, Any]]:
    rows, classes = [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.0]], 3
    answers: Graphs = _FixedAnswers(rows)  # type: ignore[assignment]
    mark = [round(value, 12) for value in signature(answers, START, EXEMPLARS, classes)]  # exp differs in its last bit
    return [{"logits": rows, "y": list(EXEMPLARS.y), "classes": classes, "signature": mark}]
