"""Tries a release on this device: checks its outputs, and measures its quality, speed and anomaly threshold."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import perf_counter, perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_agent.releases.folder import ReleaseFolder, Threshold
from edge_agent.releases.installing import Trial, Tried
from edge_agent.releases.served import load
from sojourn.data.samples import Samples
from sojourn.data.source import DataSettings, load_data
from sojourn.errors import DataError, InvalidBlob, ModelError, StoreError
from sojourn.model.metrics import Tally, added
from sojourn.model.predictions import (
    BatchOutput,
    ReleasePredictor,
    groups,
    metrics_of,
    probe_rows,
    score_threshold,
    scores_of,
    tally,
)
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.metric_names import MAIN
from sojourn.protocol.release import Card, Health, Pace, TaskHealth, total_variation

MAX_SCORED = 4096
"""Maximum number of the device's samples to score, spread evenly over all of them."""
MIN_SCORED = 20
"""With fewer samples, a high quantile of their scores cannot be estimated."""
_BATCH_ROWS, _MAX_SCORING_SECONDS = 64, 30.0


def threshold_for(predictor: ReleasePredictor, samples: Samples | None) -> Threshold | None:
    """Return the threshold for a release that computes scores; None for all others.

    Raises ModelError if a score is not finite, since the release would then never detect an anomaly.
    """
    rule = predictor.card.anomaly
    if predictor.card.learns.kind != "reconstruction" or not rule:
        return None
    scores = _scores(predictor, samples)
    if len(scores) < MIN_SCORED:
        return Threshold(rule.threshold, rule.quantile, 0)
    if not np.isfinite(scores).all():
        odd = int((~np.isfinite(scores)).sum())
        raise ModelError(f"{predictor.name} gives no finite score for {odd} of {len(scores)} samples of this device")
    return Threshold(score_threshold(scores, rule.quantile), rule.quantile, len(scores))


def spread(count: int, limit: int) -> NDArray[np.int64]:
    """Return the indices of at most `limit` out of `count` samples, evenly spread from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(limit, count)).astype(np.int64))


def _scores(predictor: ReleasePredictor, samples: Samples | None) -> NDArray[np.float64]:
    """Return the scores of samples that are not labelled faulty, within a time limit."""
    found: list[NDArray[np.float64]] = []
    if samples is not None and len(samples):
        order, begun = spread(len(samples), MAX_SCORED), perf_counter()
        order = order[np.asarray(samples.y)[order] == 0]
        order = np.random.default_rng(0).permutation(order)  # a time limit then drops samples at random
        for at in range(0, len(order), _BATCH_ROWS):
            x, _ = samples.batch(order[at : at + _BATCH_ROWS], predictor.card.input.dtype)
            found.append(scores_of(predictor.answer(x)).astype(np.float64))
            if perf_counter() - begun > _MAX_SCORING_SECONDS:
                break
    return np.concatenate(found) if found else np.zeros(0)


ROWS = 256
_MIN_ROWS, _MAX_TRIAL_SECONDS = 16, 30.0
_TIMINGS, _ENOUGH_SECONDS = 400, 3.0
_WARM_UP = 10


@dataclass(frozen=True)
class Inputs:
    """The rows that releases are tried on, with their targets if known."""

    x: NDArray[np.generic]
    y: NDArray[np.generic] | None


@dataclass(frozen=True)
class TrialRun:
    """The run of one release: the group of each prediction, their tally, and the time of every prediction."""

    groups: NDArray[np.int64]
    tally: Tally
    taken: list[int]
    """Nanoseconds."""

    def pace(self) -> Pace:
        """Return the median and the 95th percentile of the times in microseconds."""
        median, late = np.percentile(self.taken, [50, 95]) / 1000
        return Pace(float(median), float(late))


def tried(trial: Trial) -> Tried:
    """Try a release, and compare it with the one before."""
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
    """Return the device's own data if it fits the release, otherwise None."""
    try:
        return load_data(data, card)
    except (DataError, MemoryError) as error:
        _report(f"tried on the card's probe rows: {error or 'the data does not fit into memory'}")
        return None


def inputs_for(card: Card, samples: Samples | None) -> Inputs:
    """Return rows spread over the device's own labelled data, or the card's probe rows without it."""
    if samples is None:
        return Inputs(probe_rows(card), None)
    return Inputs(*samples.batch(spread(len(samples), ROWS), card.input.dtype))


def measured(
    predictor: ReleasePredictor, before: ReleasePredictor | None, inputs: Inputs, threshold: Threshold | None = None
) -> Health:
    """Measure the health of a release on these inputs, compared with the release before it."""
    run, earlier = run_trials(predictor, before, inputs, threshold)
    now, then = _metric(predictor.card, run), nan if earlier is None else _metric(predictor.card, earlier)
    main, plain = MAIN[predictor.card.learns.kind], predictor.card.learns.kind == "classification"
    limit = nan if threshold is None else within(threshold.value, LOSS)
    task = TaskHealth(measure=main, metric=within(now, LOSS), before=within(then, LOSS), threshold=limit)
    health = Health(
        rows=len(run.groups),
        pace=run.pace(),
        accuracy=now if plain else nan,
        task=None if plain else task,
    )
    if before is None or earlier is None:
        return health
    return msgspec.structs.replace(
        health,
        pace_before=earlier.pace(),
        accuracy_before=then if plain else nan,
        drift=total_variation(Counter(run.groups.tolist()), Counter(earlier.groups.tolist())),
    )


def run_trials(
    predictor: ReleasePredictor, before: ReleasePredictor | None, inputs: Inputs, threshold: Threshold | None = None
) -> tuple[TrialRun, TrialRun | None]:
    """Predict row by row with both releases in turn, so that other load on the machine affects both."""
    x, both = inputs.x, [predictor] if before is None else [predictor, before]
    for each in both:
        for at in range(_WARM_UP):
            each.answer(x[at % len(x)][np.newaxis])
    scorers = [_Scorer(predictor.card, each.card, inputs, threshold) for each in both]
    taken: list[list[int]] = [[] for _ in both]
    begun, turn = perf_counter(), 0
    while not _enough(turn, len(x), perf_counter() - begun):
        row = x[turn % len(x)][np.newaxis]
        for which, each in enumerate(both):
            start = perf_counter_ns()
            answer = each.answer(row)
            taken[which].append(perf_counter_ns() - start)
            if turn < len(x):
                scorers[which].add(turn, answer)
        turn += 1
    made = [TrialRun(np.array(each.groups), each.tally, times) for each, times in zip(scorers, taken, strict=True)]
    return made[0], made[1] if before is not None else None


class _Scorer:
    """Adds up the tally of one release's predictions, in the classes of the newer release's card."""

    def __init__(self, card: Card, own: Card, inputs: Inputs, threshold: Threshold | None) -> None:
        self._task, self._inputs = card.learns, inputs
        self._threshold = np.inf if threshold is None else threshold.value
        self._order = None if own.classes == card.classes else _by_name(card, own)
        self.groups: list[int] = []
        self.tally: Tally = {}

    def add(self, at: int, answer: BatchOutput) -> None:
        """Add the prediction for one row."""
        [group] = groups(self._task, answer, self._threshold)
        if self._order is not None:
            group = self._order[group]
        self.groups.append(int(group))
        if self._inputs.y is None:
            return
        row, target = self._inputs.x[at : at + 1], self._inputs.y[at : at + 1]
        if self._task.kind == "classification":  # the two cards may list the classes in another order
            found = {"samples": np.ones(()), "right": np.asarray(float(group == target[0]))}
        else:
            found = tally(self._task, answer, row, target)
        self.tally = added(self.tally, found)


def _by_name(card: Card, other: Card) -> list[int]:
    """Map each class of `other` to the class with the same name in `card`; unknown classes get further numbers."""
    number = {name: at for at, name in enumerate(card.classes)}
    return [number.get(name, len(number) + at) for at, name in enumerate(other.classes)]


def _metric(card: Card, run: TrialRun) -> float:
    """Return the main metric on the device's own data; NaN without labelled data."""
    if not run.tally:
        return nan
    if card.learns.kind == "classification":
        return float(run.tally["right"] / run.tally["samples"])
    return metrics_of(card.learns, run.tally).get(MAIN[card.learns.kind], nan)


def _enough(turn: int, rows: int, seconds: float) -> bool:
    """Whether the run can end: after every row once (or the time limit), and enough timings."""
    if turn < rows:
        return turn >= _MIN_ROWS and seconds > _MAX_TRIAL_SECONDS
    return turn >= _MIN_ROWS and (turn >= _TIMINGS or seconds > _ENOUGH_SECONDS)


def _before(folder: ReleaseFolder, trial: Trial, card: Card) -> ReleasePredictor | None:
    """Load the currently served release if it can be compared; a failure to load it does not fail the new one."""
    if trial.before is None:
        return None
    try:
        before = load(folder, trial.before)
        before.check_probe()
    except (ModelError, InvalidBlob, StoreError) as error:
        _report(f"not compared with release {trial.before.version}: {error}")
        return None
    ours, theirs = card.learns, before.card.learns
    if ours.kind != theirs.kind or (ours.output != theirs.output and ours.kind != "classification"):
        _report(f"not compared with release {trial.before.version}: it was trained for another task")
        return None
    if ours.kind == "multilabel" and card.classes != before.card.classes:
        _report(f"not compared with release {trial.before.version}: it has other labels")
        return None
    return before if before.card.input == card.input else None


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
