"""`Model`: predicts with the served release of a model line, and switches to new releases automatically."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic, perf_counter_ns
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.inputs_and_outputs import TOP, AnomalyScore, anomalies, plain_answers, rows_of
from edge_agent.inference.usage import UsageReport, UsageSender, UsageTally, bin_of
from edge_agent.releases.folder import Identity, ReleaseFolder, ServedFiles
from edge_agent.releases.served import load, no_release, store_of
from sojourn.errors import DataError, InvalidBlob, ModelError, SojournError, StoreError
from sojourn.model.metrics import softmax
from sojourn.model.predictions import BatchOutput, ReleasePredictor, groups
from sojourn.protocol.release import CLASSES, Card
from sojourn.protocol.task import Kind
from sojourn.protocol.topics import check_name

# One version that a program uses: predicts, and counts usage for the agent.
#
# Counting must not slow predictions down: each call appends its time and its output to a queue, and a background thread
# adds them up. If there are more than 1024 calls in half a second, only the first 1024 are counted by class and time.

MAX_QUEUED = 1024
_SMALL = 1024
"""Maximum output size that is queued as it is; of a larger output only the groups are queued."""


def _classes(answer: BatchOutput) -> NDArray[np.int64]:
    return np.asarray(answer.outputs.argmax(axis=1))


class Counts:
    """A queue of calls to count; many threads can add to it without a lock."""

    def __init__(self, version: int, group: Callable[[BatchOutput], NDArray[np.int64]] = _classes) -> None:
        """Count a version's predictions, in total and by `group`."""
        self.version, self._group = version, group
        self._calls: deque[tuple[int, BatchOutput | NDArray[np.int16]]] = deque()
        self._others: deque[int] = deque()

    def add(self, taken: int, answer: BatchOutput) -> None:
        """Queue a call: its time in nanoseconds, and its output."""
        if len(self._calls) >= MAX_QUEUED:
            self._others.append(len(answer.outputs))
        elif answer.outputs.size <= _SMALL:
            self._calls.append((taken, answer))
        else:
            self._calls.append((taken, self._groups(answer)))

    def move_to(self, tally: UsageTally) -> None:
        """Move the queued calls to a tally; calls that end meanwhile stay in the queue."""
        calls = [self._calls.popleft() for _ in range(len(self._calls))]
        others = [self._others.popleft() for _ in range(len(self._others))]
        tally.predictions += sum(others)
        if not calls:
            return
        groups = [self._groups(each) if isinstance(each, BatchOutput) else each for _, each in calls]
        counts = np.bincount(np.concatenate(groups))
        tally.predictions += sum(map(len, groups))
        tally.classes.update({int(each): int(counts[each]) for each in counts.nonzero()[0]})
        # The time of a call is divided by its number of rows.
        times = zip(calls, groups, strict=True)
        tally.times.update(Counter(bin_of(taken / 1000 / len(each)) for (taken, _), each in times))

    def _groups(self, answer: BatchOutput) -> NDArray[np.int16]:
        return np.minimum(self._group(answer), CLASSES).astype(np.int16)


class Serving:
    """A loaded version with its counts."""

    def __init__(self, served: ServedFiles, predictor: ReleasePredictor, threshold: float = inf) -> None:
        """Predict with a version; a score above `threshold` is an anomaly."""
        self.served, self.predictor, self.threshold = served, predictor, threshold
        self.counts = Counts(served.version, self._group)

    def predict(self, x: object) -> tuple[BatchOutput, bool]:
        """Return the output for all rows, and whether the input was a single sample."""
        predictor = self.predictor
        if isinstance(x, np.ndarray) and x.dtype == predictor.dtype and x.shape[1:] == predictor.shape:
            rows, one = x, False
        else:
            given, one = rows_of(x, predictor.card, predictor.card.line)
            rows = predictor.typed(given)
        if not len(rows):
            task = predictor.card.learns
            none = np.empty((0, *task.output), np.float32)
            return BatchOutput(none, np.empty(0, np.float32) if task.kind == "reconstruction" else None), False
        start = perf_counter_ns()
        answer = predictor.answer(rows)
        self.counts.add(perf_counter_ns() - start, answer)
        return answer, one

    def _group(self, answer: BatchOutput) -> NDArray[np.int64]:
        return groups(self.predictor.card.learns, answer, self.threshold)


LOOK_PAUSE = 0.5
"""Seconds between two checks for a new release."""
_REPORT_INTERVAL = 1.0
_FAILURE_INTERVAL = 30.0
_GRACE = 5.0
_MAX_TEXT = 500
_LOAD_ERRORS = (ModelError, InvalidBlob, StoreError)
"""The errors of loading a release: invalid, damaged or unreadable."""
log = logging.getLogger(__name__)
_open: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """The current release of a model line; safe to use from several threads.

    A new release is loaded in the background; active calls finish with the release that they started with. If a release
    cannot be loaded, the model keeps using the current one, or starts with the previous one.
    """

    def __init__(
        self,
        line: str,
        store: str | Path | None = None,
        *,
        fleet: str = "sojourn",
        agent: str | None = None,
        threads: int = 1,
        count_failures: bool = True,
    ) -> None:
        """Use a line from `store`, from the store of `agent` in `fleet`, or from the only store that serves the line.

        count_failures: report failed predictions as errors; if False, only `report_error` reports errors.
        """
        check_name(line, "line")
        place = store_of(line, store, fleet, agent)
        self._line, self._threads, self._count_failures = line, threads, count_failures
        self._folder = ReleaseFolder(place, line)
        self._sender = UsageSender(place)
        self._identity: Identity | None = None
        self._serving: Serving | None = None
        self._retired: list[tuple[float, Counts]] = []
        self._lock = threading.Lock()
        """Protects the unreported counts; predictions never wait for it."""
        self._unreported: dict[int, UsageTally] = {}
        self._failure: UsageReport | None = None
        self._next_failure = self._next_report = 0.0
        try:
            self._look()
            self._in_use()
        except SojournError:
            self._sender.close()
            raise
        self._begin()
        _open.add(self)

    @property
    def version(self) -> int:
        """The version in use."""
        return self._in_use().served.version

    @property
    def card(self) -> Card:
        """The model card of the version in use."""
        return self._in_use().predictor.card

    @property
    def threshold(self) -> float:
        """The anomaly threshold on this device; infinite for a release without anomaly scores."""
        return self._in_use().threshold

    def predict(self, x: object) -> NDArray[np.float32]:
        """Return the raw output for one sample, or a row for each sample of a batch: logits, or the task's values."""
        _, answer, one = self._run(x)
        return answer.outputs[0] if one else answer.outputs

    def classify(self, x: object) -> str | list[str]:
        """Return the class name of one sample, or a list for a batch."""
        names, probabilities = self.probabilities(x)[1:]
        most = probabilities.argmax(axis=-1)
        return names[int(most)] if probabilities.ndim == 1 else [names[int(each)] for each in most]

    def probabilities(self, x: object) -> tuple[int, tuple[str, ...], NDArray[np.float64]]:
        """Return the version, its classes, and the softmax probability of each class."""
        serving, answer, one = self._run(x, "classification")
        found = softmax(answer.outputs)
        return serving.served.version, serving.predictor.card.classes, found[0] if one else found

    def score(self, x: object) -> AnomalyScore | list[AnomalyScore]:
        """Return the anomaly score of one sample, or a list for a batch."""
        serving, answer, one = self._run(x, "reconstruction")
        found = anomalies(answer, serving.threshold)
        return found[0] if one else found

    def answers(self, x: object, top: int = TOP) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the prediction for one sample, or a list for a batch, in the task's terms (`plain_answers`)."""
        _, found, one = self.answers_of_version(x, top)
        return found[0] if one else found

    def answers_of_version(self, x: object, top: int = TOP) -> tuple[int, list[dict[str, Any]], bool]:
        """Return the version, its prediction for each row, and whether the input was a single sample."""
        serving, answer, one = self._run(x)
        return serving.served.version, plain_answers(serving.predictor.card, answer, serving.threshold, top), one

    def report_error(self, text: str = "") -> None:
        """Report an error of the release in use; errors count against its rollout."""
        self._error(self._in_use(), text)

    def close(self) -> None:
        """Report the remaining counts, and end the background thread."""
        self._stop.set()
        self._thread.join(_GRACE)
        _open.discard(self)
        self._collect()
        self._report()
        self._sender.close()
        self._serving = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, x: object, kind: Kind | None = None) -> tuple[Serving, BatchOutput, bool]:
        """Predict with the release in use; raise DataError if it is not for tasks of this kind."""
        serving = self._serving or self._in_use()
        task_kind = serving.predictor.card.learns.kind
        if kind is not None and task_kind != kind:
            raise DataError(
                f"{self._line} is a release for {task_kind}, not for {kind}: use answers(), which works for every task"
            )
        try:
            answer, one = serving.predict(x)
        except ModelError as error:
            if self._count_failures:
                self._error(serving, str(error))
            raise
        return serving, answer, one

    def _in_use(self) -> Serving:
        serving = self._serving
        if serving is None:
            raise no_release(self._line, self._folder.path)
        return serving

    def _begin(self) -> None:
        self._stop = threading.Event()
        watch = (weakref.ref(self), self._stop)
        self._thread = threading.Thread(target=_watch, args=watch, name=f"model {self._line}", daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        try:
            self._look()
        except SojournError as error:
            log.warning("%s keeps using the loaded release: %s", self._line, error)
        self._collect()
        now = monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL
            self._report()
        if now >= self._next_failure:
            self._report_failure()

    def _look(self) -> None:
        """Switch to the served release if it has changed."""
        identity = self._folder.identity()
        if identity == self._identity:
            return
        current = self._folder.current()
        serving = self._serving
        if identity is None:  # it was withdrawn
            self._swap(None)
        elif serving is None or current != serving.served:
            try:
                self._swap(self._loaded(current))
            except _LOAD_ERRORS as error:
                if self._folder.identity() != identity:
                    return  # it was replaced during loading: check again
                self._fall_back(current, str(error))
                self._identity = identity
                return
        else:  # the same version: its threshold may have changed
            serving.threshold = self._measured(serving.served, serving.predictor.card)
        self._identity, self._failure = identity, None

    def _loaded(self, served: ServedFiles | None) -> Serving:
        if served is None:
            raise StoreError(f"{self._folder.path / 'current'} is damaged")
        predictor = load(self._folder, served, self._threads)
        return Serving(served, predictor, self._measured(served, predictor.card))

    def _measured(self, served: ServedFiles, card: Card) -> float:
        """Return the anomaly threshold that was measured on this device, otherwise that of the card."""
        if not card.anomaly:
            return inf
        measured = self._folder.threshold(served)
        return card.anomaly.threshold if measured is None else measured.value

    def _fall_back(self, failed: ServedFiles | None, why: str) -> None:
        """Keep the loaded release, or load the previous one, and report the failure to the agent."""
        log.warning("%s cannot load the served release: %s", self._line, why)
        if failed is not None:
            self._failure = UsageReport(self._line, failed.version, failure=why[:_MAX_TEXT])
            self._report_failure()
        if self._serving is not None:
            return
        previous = self._folder.previous()
        if previous is None or previous == failed:
            raise ModelError(f"{why}; there is no previous release")
        try:
            self._swap(self._loaded(previous))
        except _LOAD_ERRORS as error:
            raise ModelError(f"{why}; the previous release cannot be loaded either: {error}") from error

    def _report_failure(self) -> None:
        """Report a failed load until the agent receives it, and again at intervals, since the agent may restart."""
        if self._failure is not None and self._sender.send(self._failure):
            self._next_failure = monotonic() + _FAILURE_INTERVAL
        else:
            self._next_failure = 0.0

    def _swap(self, serving: Serving | None) -> None:
        old, self._serving = self._serving, serving
        if old is not None:
            # Active calls still count; the session is freed after the last of them.
            self._retired.append((monotonic(), old.counts))

    def _error(self, serving: Serving, text: str) -> None:
        report = UsageReport(self._line, serving.served.version, errors=1, error_text=text[:_MAX_TEXT])
        if not self._sender.send(report):
            with self._lock:
                self._unreported.setdefault(serving.served.version, UsageTally()).add(report)

    def _collect(self) -> None:
        """Add the queued calls to the unreported counts."""
        serving, now = self._serving, monotonic()
        counts = [*(each for _, each in self._retired), *([serving.counts] if serving else [])]
        with self._lock:
            for each in counts:
                each.move_to(self._unreported.setdefault(each.version, UsageTally()))
        self._retired = [(since, each) for since, each in self._retired if now - since < _FAILURE_INTERVAL]

    def _report(self) -> None:
        """Send a report for each version; keep the counts if it cannot be sent."""
        with self._lock:
            for version, tally in sorted(self._unreported.items()):
                report = UsageReport(self._line, version, tally.predictions, tally.times, tally.classes, tally.errors)
                if not (tally.predictions or tally.errors) or self._sender.send(report):
                    del self._unreported[version]


def _watch(model: weakref.ref[Model], stop: threading.Event) -> None:
    """Run a model's background work until the model is closed or garbage-collected."""
    while not stop.wait(LOOK_PAUSE):
        current = model()
        if current is None:
            return
        current._tick()  # noqa: SLF001  # the thread belongs to the model
        del current


@atexit.register
def _close_all() -> None:
    for model in list(_open):
        model.close()


def _after_fork() -> None:
    """Give every model a new thread and a new lock in a forked child, which has no background thread."""
    for model in list(_open):
        model._lock = threading.Lock()  # noqa: SLF001  # as above
        model._begin()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
