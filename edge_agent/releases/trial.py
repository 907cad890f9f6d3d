"""A release on trial, in a process of its own: whether it runs here as it should, how well, and how fast."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edge_agent.releases.folder import ReleaseFolder
from edge_agent.releases.installing import Trial, Tried
from edge_agent.releases.loading import load
from sojourn.data.source import load_data
from sojourn.errors import DataError, InvalidBlob, ModelError, StoreError
from sojourn.model.class_mix import total_variation
from sojourn.model.predictor import probe_rows
from sojourn.protocol.release import Health, Pace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.source import DataSettings
    from sojourn.model.predictor import ReleasePredictor
    from sojourn.protocol.release import Card

ROWS = 256
_FEWEST_ROWS, _MOST_SECONDS = 16, 30.0
_TIMINGS, _ENOUGH_SECONDS = 400, 3.0
_WARM_UP = 10


@dataclass(frozen=True)
class Inputs:
    """What the releases are tried on: rows, and the class of each where that is known."""

    x: NDArray[np.generic]
    y: NDArray[np.int64] | None


@dataclass(frozen=True)
class Course:
    """How one release did: the class it gave each row, and the nanoseconds of every prediction."""

    classes: NDArray[np.int64]
    taken: list[int]

    def pace(self) -> Pace:
        """Its median and 95th percentile in microseconds."""
        median, late = np.percentile(self.taken, [50, 95]) / 1000
        return Pace(float(median), float(late))


def tried(trial: Trial) -> Tried:
    """Whether the release may be served here, and how it did."""
    folder = ReleaseFolder(Path(trial.store), trial.served.line)
    try:
        predictor = load(folder, trial.served)
        predictor.check_probe()
    except (ModelError, InvalidBlob) as error:
        return Tried(str(error), Health())
    inputs = inputs_for(predictor.card, trial.data)
    return Tried(None, measured(predictor, _before(folder, trial, predictor.card), inputs))


def inputs_for(card: Card, data: DataSettings) -> Inputs:
    """Some of the device's own labelled data, spread over all of it, or else the rows that came with the card."""
    try:
        samples = load_data(data, card)
    except (DataError, MemoryError) as error:
        _say(f"tried on the card's own rows: {error or 'the data does not fit into the memory'}")
        return Inputs(probe_rows(card), None)
    index = np.unique(np.linspace(0, len(samples) - 1, min(ROWS, len(samples))).astype(np.int64))
    return Inputs(*samples.batch(index, card.input.dtype))


def measured(predictor: ReleasePredictor, before: ReleasePredictor | None, inputs: Inputs) -> Health:
    """How the release does on these inputs beside the one before it."""
    course, earlier = courses(predictor, before, inputs.x)
    rows = len(course.classes)
    health = Health(rows=rows, pace=course.pace(), accuracy=_accuracy(course.classes, inputs.y))
    if before is None or earlier is None:
        return health
    # The two may list classes in another order, or others: by name they compare.
    number = {name: at for at, name in enumerate(predictor.card.classes)}
    others = {name: len(number) + at for at, name in enumerate(before.card.classes)}
    same = np.array([number.get(name, others[name]) for name in before.card.classes])[earlier.classes]
    return msgspec.structs.replace(
        health,
        pace_before=earlier.pace(),
        accuracy_before=_accuracy(same, inputs.y),
        drift=total_variation(Counter(course.classes.tolist()), Counter(same.tolist())),
    )


def courses(
    predictor: ReleasePredictor, before: ReleasePredictor | None, x: NDArray[np.generic]
) -> tuple[Course, Course | None]:
    """Predict row by row with both in turns, so that what else the machine does hits both."""
    both = [predictor] if before is None else [predictor, before]
    for each in both:
        for at in range(_WARM_UP):
            each.logits(x[at % len(x)][np.newaxis])
    classes: list[list[int]] = [[] for _ in both]
    taken: list[list[int]] = [[] for _ in both]
    begun, turn = perf_counter(), 0
    while not _enough(turn, len(x), perf_counter() - begun):
        row = x[turn % len(x)][np.newaxis]
        for which, each in enumerate(both):
            start = perf_counter_ns()
            logits = each.logits(row)
            taken[which].append(perf_counter_ns() - start)
            if turn < len(x):
                classes[which].append(int(logits[0].argmax()))
        turn += 1
    made = [Course(np.array(each), times) for each, times in zip(classes, taken, strict=True)]
    return made[0], made[1] if before is not None else None


def _enough(turn: int, rows: int, seconds: float) -> bool:
    """Every row once, unless that takes too long; then more of them while it is quick."""
    if turn < rows:
        return turn >= _FEWEST_ROWS and seconds > _MOST_SECONDS
    return turn >= _FEWEST_ROWS and (turn >= _TIMINGS or seconds > _ENOUGH_SECONDS)


def _before(folder: ReleaseFolder, trial: Trial, card: Card) -> ReleasePredictor | None:
    """The release that is served until now, if it can be compared; that it does not load is not the new one's fault."""
    if trial.before is None:
        return None
    try:
        before = load(folder, trial.before)
        before.check_probe()
    except (ModelError, InvalidBlob, StoreError) as error:
        _say(f"not compared with release {trial.before.version}: {error}")
        return None
    return before if before.card.input == card.input else None


def _accuracy(classes: NDArray[np.int64], y: NDArray[np.int64] | None) -> float:
    return nan if y is None else float((classes == y[: len(classes)]).mean())


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
