"""One version that a program uses: predicts with it, and counts what the agent is told.

Counting must cost a prediction next to nothing: its time and its answers are put aside, and a thread in the background
makes sums of them. Of more than a thousand calls in half a second the first thousand stand for the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.inference.inputs import rows_of
from edge_agent.inference.usage import bin_of
from sojourn.model.answers import Answer, groups
from sojourn.protocol.release import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edge_agent.inference.usage import UsageTally
    from edge_agent.releases.folder import ServedFiles
    from sojourn.model.predictor import ReleasePredictor

KEPT = 1024
_SMALL = 1024
"""Answers of a call that are put aside as they are; of more only the classes are, or what stands for them."""


def _classes(answer: Answer) -> NDArray[np.int64]:
    return np.asarray(answer.outputs.argmax(axis=1))


class Counts:
    """Calls that wait to be summed up: safe to add to from many threads, without a lock."""

    def __init__(self, version: int, group: Callable[[Answer], NDArray[np.int64]] = _classes) -> None:
        """Count a version's predictions, and how many of them fall into each `group`."""
        self.version, self._group = version, group
        self._calls: deque[tuple[int, Answer | NDArray[np.int16]]] = deque()
        self._others: deque[int] = deque()

    def add(self, taken: int, answer: Answer) -> None:
        """Keep a call for later: the nanoseconds that it took, and its answers."""
        if len(self._calls) >= KEPT:
            self._others.append(len(answer.outputs))
        elif answer.outputs.size <= _SMALL:
            self._calls.append((taken, answer))
        else:
            self._calls.append((taken, self._groups(answer)))

    def move_to(self, tally: UsageTally) -> None:
        """Add the calls so far to a tally; those that end meanwhile are for the next time."""
        calls = [self._calls.popleft() for _ in range(len(self._calls))]
        others = [self._others.popleft() for _ in range(len(self._others))]
        tally.predictions += sum(others)
        if not calls:
            return
        groups = [self._groups(each) if isinstance(each, Answer) else each for _, each in calls]
        counts = np.bincount(np.concatenate(groups))
        tally.predictions += sum(map(len, groups))
        tally.classes.update({int(each): int(counts[each]) for each in counts.nonzero()[0]})
        # A call with many rows says how long each of them took.
        times = zip(calls, groups, strict=True)
        tally.times.update(Counter(bin_of(taken / 1000 / len(each)) for (taken, _), each in times))

    def _groups(self, answer: Answer) -> NDArray[np.int16]:
        return np.minimum(self._group(answer), CLASSES).astype(np.int16)


class Serving:
    """A version in memory with its counts."""

    def __init__(self, served: ServedFiles, predictor: ReleasePredictor, threshold: float = inf) -> None:
        """Predict with a version; from `threshold` on a sample is an anomaly, if it finds any."""
        self.served, self.predictor, self.threshold = served, predictor, threshold
        self.counts = Counts(served.version, self._group)

    def predict(self, x: object) -> tuple[Answer, bool]:
        """The answers for all rows, and whether it was one sample."""
        predictor = self.predictor
        if isinstance(x, np.ndarray) and x.dtype == predictor.dtype and x.shape[1:] == predictor.shape:
            rows, one = x, False
        else:
            given, one = rows_of(x, predictor.card, predictor.card.line)
            rows = predictor.typed(given)
        if not len(rows):
            task = predictor.card.learns
            none = np.empty((0, *task.output), np.float32)
            return Answer(none, np.empty(0, np.float32) if task.kind == "reconstruction" else None), False
        start = perf_counter_ns()
        answer = predictor.answer(rows)
        self.counts.add(perf_counter_ns() - start, answer)
        return answer, one

    def _group(self, answer: Answer) -> NDArray[np.int64]:
        return groups(self.predictor.card.learns, answer, self.threshold)
