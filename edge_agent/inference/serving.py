"""One version that a program uses: predicts with it, and counts what the agent is told.

Counting must cost a prediction next to nothing: its time and its logits are put aside, and a thread in the background
makes sums of them. Of more than a thousand calls in half a second the first thousand stand for the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.inference.inputs import rows_of
from edge_agent.inference.usage import bin_of
from sojourn.protocol.release import CLASSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.inference.usage import UsageTally
    from edge_agent.releases.folder import ServedFiles
    from sojourn.model.predictor import ReleasePredictor

KEPT = 1024
_SMALL = 1024
"""Logits of a call that are put aside as they are; of more only the classes are."""


class Counts:
    """Calls that wait to be summed up: safe to add to from many threads, without a lock."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._calls: deque[tuple[int, NDArray[np.generic]]] = deque()
        self._others: deque[int] = deque()

    def add(self, taken: int, logits: NDArray[np.float32]) -> None:
        """Keep a call for later: the nanoseconds that it took, and its logits."""
        if len(self._calls) >= KEPT:
            self._others.append(len(logits))
        elif logits.size <= _SMALL:
            self._calls.append((taken, logits))
        else:
            self._calls.append((taken, _classes(logits)))

    def move_to(self, tally: UsageTally) -> None:
        """Add the calls so far to a tally; those that end meanwhile are for the next time."""
        calls = [self._calls.popleft() for _ in range(len(self._calls))]
        others = [self._others.popleft() for _ in range(len(self._others))]
        tally.predictions += sum(others)
        if not calls:
            return
        classes = np.concatenate([_classes(each) if each.ndim == 2 else each for _, each in calls])
        counts = np.bincount(classes)
        tally.predictions += len(classes)
        tally.classes.update({int(each): int(counts[each]) for each in counts.nonzero()[0]})
        # A call with many rows says how long each of them took.
        tally.times.update(Counter(bin_of(taken / 1000 / len(each)) for taken, each in calls))


class Serving:
    """A version in memory with its counts."""

    def __init__(self, served: ServedFiles, predictor: ReleasePredictor) -> None:
        self.served, self.predictor = served, predictor
        self.counts = Counts(served.version)

    def predict(self, x: object) -> tuple[NDArray[np.float32], bool]:
        """The logits of all rows, and whether it was one sample."""
        predictor = self.predictor
        if isinstance(x, np.ndarray) and x.dtype == predictor.dtype and x.shape[1:] == predictor.shape:
            rows, one = x, False
        else:
            given, one = rows_of(x, predictor.card, predictor.card.line)
            rows = predictor.typed(given)
        if not len(rows):
            return np.empty((0, len(predictor.card.classes)), np.float32), False
        start = perf_counter_ns()
        logits = predictor.logits(rows)
        self.counts.add(perf_counter_ns() - start, logits)
        return logits, one


def _classes(logits: NDArray[np.generic]) -> NDArray[np.int16]:
    classes: NDArray[np.int16] = np.minimum(logits.argmax(axis=1), CLASSES).astype(np.int16)
    return classes
