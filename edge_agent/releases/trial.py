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
from edge_agent.releases.thresholds import spread, threshold_for
from sojourn.data.source import load_data
from sojourn.errors import DataError, InvalidBlob, ModelError, StoreError
from sojourn.model.answers import figures_of, groups, tally
from sojourn.model.class_mix import total_variation
from sojourn.model.metrics import added
from sojourn.model.predictor import probe_rows
from sojourn.protocol.figure_names import MAIN
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.release import Health, Pace, TaskHealth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.releases.folder import Threshold
    from sojourn.data.samples import Samples
    from sojourn.data.source import DataSettings
    from sojourn.model.answers import Answer
    from sojourn.model.metrics import Tally
    from sojourn.model.predictor import ReleasePredictor
    from sojourn.protocol.release import Card

ROWS = 256
_FEWEST_ROWS, _MOST_SECONDS = 16, 30.0
_TIMINGS, _ENOUGH_SECONDS = 400, 3.0
_WARM_UP = 10


@dataclass(frozen=True)
class Inputs:
    """What the releases are tried on: rows, and what each is compared with where that is known."""

    x: NDArray[np.generic]
    y: NDArray[np.generic] | None


@dataclass(frozen=True)
class Course:
    """How one release did: the group that each answer falls into, what they add up to, and every prediction's time."""

    groups: NDArray[np.int64]
    tally: Tally
    taken: list[int]
    """Nanoseconds."""

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
        samples = _samples_for(predictor.card, trial.data)
        threshold = threshold_for(predictor, samples)
    except (ModelError, InvalidBlob) as error:
        return Tried(str(error), Health())
    if trial.only_threshold:
        return Tried(None, Health(), threshold)
    before = _before(folder, trial, predictor.card)
    return Tried(None, measured(predictor, before, inputs_for(predictor.card, samples), threshold), threshold)


def _samples_for(card: Card, data: DataSettings) -> Samples | None:
    """The device's own data, if it fits the release."""
    try:
        return load_data(data, card)
    except (DataError, MemoryError) as error:
        _say(f"tried on the card's own rows: {error or 'the data does not fit into the memory'}")
        return None


def inputs_for(card: Card, samples: Samples | None) -> Inputs:
    """Some of the device's own labelled data, spread over all of it, or else the rows that came with the card."""
    if samples is None:
        return Inputs(probe_rows(card), None)
    return Inputs(*samples.batch(spread(len(samples), ROWS), card.input.dtype))


def measured(
    predictor: ReleasePredictor, before: ReleasePredictor | None, inputs: Inputs, threshold: Threshold | None = None
) -> Health:
    """How the release does on these inputs beside the one before it."""
    course, earlier = courses(predictor, before, inputs, threshold)
    now, then = _figure(predictor.card, course), nan if earlier is None else _figure(predictor.card, earlier)
    main, plain = MAIN[predictor.card.learns.kind], predictor.card.learns.kind == "classification"
    limit = nan if threshold is None else within(threshold.value, LOSS)
    task = TaskHealth(measure=main, figure=within(now, LOSS), before=within(then, LOSS), threshold=limit)
    health = Health(
        rows=len(course.groups),
        pace=course.pace(),
        accuracy=now if plain else nan,
        task=msgspec.UNSET if plain else task,
    )
    if before is None or earlier is None:
        return health
    return msgspec.structs.replace(
        health,
        pace_before=earlier.pace(),
        accuracy_before=then if plain else nan,
        drift=total_variation(Counter(course.groups.tolist()), Counter(earlier.groups.tolist())),
    )


def courses(
    predictor: ReleasePredictor, before: ReleasePredictor | None, inputs: Inputs, threshold: Threshold | None = None
) -> tuple[Course, Course | None]:
    """Predict row by row with both in turns, so that what else the machine does hits both."""
    x, both = inputs.x, [predictor] if before is None else [predictor, before]
    for each in both:
        for at in range(_WARM_UP):
            each.answer(x[at % len(x)][np.newaxis])
    judges = [_Judge(predictor.card, each.card, inputs, threshold) for each in both]
    taken: list[list[int]] = [[] for _ in both]
    begun, turn = perf_counter(), 0
    while not _enough(turn, len(x), perf_counter() - begun):
        row = x[turn % len(x)][np.newaxis]
        for which, each in enumerate(both):
            start = perf_counter_ns()
            answer = each.answer(row)
            taken[which].append(perf_counter_ns() - start)
            if turn < len(x):
                judges[which].hear(turn, answer)
        turn += 1
    made = [Course(np.array(each.groups), each.tally, times) for each, times in zip(judges, taken, strict=True)]
    return made[0], made[1] if before is not None else None


class _Judge:
    """Adds up what the answers of one release are worth, all in the terms of the newer one's card."""

    def __init__(self, card: Card, own: Card, inputs: Inputs, threshold: Threshold | None) -> None:
        self._task, self._inputs = card.learns, inputs
        self._threshold = np.inf if threshold is None else threshold.value
        self._order = None if own.classes == card.classes else _by_name(card, own)
        self.groups: list[int] = []
        self.tally: Tally = {}

    def hear(self, at: int, answer: Answer) -> None:
        """Take the answer for one row."""
        [group] = groups(self._task, answer, self._threshold)
        if self._order is not None:
            group = self._order[group]
        self.groups.append(int(group))
        if self._inputs.y is None:
            return
        row, target = self._inputs.x[at : at + 1], self._inputs.y[at : at + 1]
        if self._task.kind == "classification":  # the classes may be listed otherwise: only names compare
            found = {"samples": np.ones(()), "right": np.asarray(float(group == target[0]))}
        else:
            found = tally(self._task, answer, row, target)
        self.tally = added(self.tally, found)


def _by_name(card: Card, own: Card) -> list[int]:
    """Which class of a card each class of another is; further numbers for those that it does not have."""
    number = {name: at for at, name in enumerate(card.classes)}
    return [number.get(name, len(number) + at) for at, name in enumerate(own.classes)]


def _figure(card: Card, course: Course) -> float:
    """The main figure on the device's own data; NaN where there is none."""
    if not course.tally:
        return nan
    if card.learns.kind == "classification":
        return float(course.tally["right"] / course.tally["samples"])
    return figures_of(card.learns, course.tally).get(MAIN[card.learns.kind], nan)


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
    ours, theirs = card.learns, before.card.learns
    if ours.kind != theirs.kind or (ours.output != theirs.output and ours.kind != "classification"):
        _say(f"not compared with release {trial.before.version}: it learnt something else")
        return None
    if ours.kind == "multilabel" and card.classes != before.card.classes:
        _say(f"not compared with release {trial.before.version}: it has other labels")
        return None
    return before if before.card.input == card.input else None


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
