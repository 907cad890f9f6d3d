"""`Model`: predicts with the release of a model line that this device serves, and goes over to the next by itself."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from edge_agent.inference.plain_answers import TOP, anomalies, plain_answers
from edge_agent.inference.serving import Serving
from edge_agent.inference.usage import UsageReport, UsageSender, UsageTally
from edge_agent.releases.folder import ReleaseFolder
from edge_agent.releases.loading import load
from edge_agent.releases.places import no_release, store_of
from sojourn.errors import DataError, InvalidBlob, ModelError, SojournError, StoreError
from sojourn.model.answers import shares
from sojourn.protocol.topics import check_name

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from edge_agent.inference.plain_answers import AnomalyScore
    from edge_agent.inference.serving import Counts
    from edge_agent.releases.folder import Identity, ServedFiles
    from sojourn.model.answers import Answer
    from sojourn.protocol.release import Card
    from sojourn.protocol.task import Kind

LOOK_PAUSE = 0.5
"""Seconds between two looks at what is served."""
_TELL_PAUSE = 1.0
_FAILURE_PAUSE = 30.0
_GRACE = 5.0
_WORDS = 500
_UNFIT = (ModelError, InvalidBlob, StoreError)
"""Why a release cannot be loaded: it is none, it is damaged, or its files cannot be read."""
log = logging.getLogger(__name__)
_open: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """The current release of a line. Use one from as many threads as you like.

    A new release is loaded in the background; calls that are under way end with the one they began with. One that
    does not load is not used: the model goes on with what it has, or begins with the release before it.
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
        """Use a line from the store that is named, from `agent`'s of a `fleet`, or from the only one that has it.

        With `count_failures` a prediction that fails is told as an error; without, only `report_error` tells of any.
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
        """For what is to be told; no prediction ever waits for it."""
        self._untold: dict[int, UsageTally] = {}
        self._failure: UsageReport | None = None
        self._next_failure = self._next_report = 0.0
        try:
            self._look()
            self._now()
        except SojournError:
            self._sender.close()
            raise
        self._begin()
        _open.add(self)

    @property
    def version(self) -> int:
        """The version that predicts now."""
        return self._now().served.version

    @property
    def card(self) -> Card:
        """The model card of the version that predicts now."""
        return self._now().predictor.card

    @property
    def threshold(self) -> float:
        """From which score on a sample is an anomaly here; infinite for a release that finds none."""
        return self._now().threshold

    def predict(self, x: object) -> NDArray[np.float32]:
        """The answer for one sample, or those for a batch, a row for each: logits, or values as the task has them."""
        _, answer, one = self._run(x)
        return answer.outputs[0] if one else answer.outputs

    def classify(self, x: object) -> str | list[str]:
        """The name of the class of one sample, or those of a batch."""
        names, probabilities = self.probabilities(x)[1:]
        most = probabilities.argmax(axis=-1)
        return names[int(most)] if probabilities.ndim == 1 else [names[int(each)] for each in most]

    def probabilities(self, x: object) -> tuple[int, tuple[str, ...], NDArray[np.float64]]:
        """The version that answered, its classes, and how likely each of them is, by softmax."""
        serving, answer, one = self._run(x, "classification")
        found = shares(answer.outputs)
        return serving.served.version, serving.predictor.card.classes, found[0] if one else found

    def score(self, x: object) -> AnomalyScore | list[AnomalyScore]:
        """How unlike the samples that were learnt one sample is, or each of a batch, and whether it is an anomaly."""
        serving, answer, one = self._run(x, "reconstruction")
        found = anomalies(answer, serving.threshold)
        return found[0] if one else found

    def answers(self, x: object, top: int = TOP) -> dict[str, Any] | list[dict[str, Any]]:
        """What is said of one sample, or of each of a batch, in the task's own terms (`plain_answers`)."""
        _, found, one = self.answers_of_version(x, top)
        return found[0] if one else found

    def answers_of_version(self, x: object, top: int = TOP) -> tuple[int, list[dict[str, Any]], bool]:
        """The version that answered, what it says of each row, and whether it was one sample."""
        serving, answer, one = self._run(x)
        return serving.served.version, plain_answers(serving.predictor.card, answer, serving.threshold, top), one

    def report_error(self, text: str = "") -> None:
        """Tell that the release that predicts now was wrong: it counts against its rollout."""
        self._error(self._now(), text)

    def close(self) -> None:
        """Tell what was counted, and end the thread in the background."""
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

    def _run(self, x: object, kind: Kind | None = None) -> tuple[Serving, Answer, bool]:
        """The answers of what is served now, which must be of a kind where one is named."""
        serving = self._serving or self._now()
        learnt = serving.predictor.card.learns.kind
        if kind is not None and learnt != kind:
            raise DataError(f"{self._line} is a release for {learnt}, not for {kind}: answers() fits all of them")
        try:
            answer, one = serving.predict(x)
        except ModelError as error:
            if self._count_failures:
                self._error(serving, str(error))
            raise
        return serving, answer, one

    def _now(self) -> Serving:
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
            log.warning("%s goes on with what it has: %s", self._line, error)
        self._collect()
        now = monotonic()
        if now >= self._next_report:
            self._next_report = now + _TELL_PAUSE
            self._report()
        if now >= self._next_failure:
            self._tell_failure()

    def _look(self) -> None:
        """Go over to what is served now, if that is another."""
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
            except _UNFIT as error:
                if self._folder.identity() != identity:
                    return  # it was replaced under our hands: look again
                self._fall_back(current, str(error))
                self._identity = identity
                return
        else:  # the same version: its threshold may have been measured anew
            serving.threshold = self._measured(serving.served, serving.predictor.card)
        self._identity, self._failure = identity, None

    def _loaded(self, served: ServedFiles | None) -> Serving:
        if served is None:
            raise StoreError(f"{self._folder.path / 'current'} is damaged")
        predictor = load(self._folder, served, self._threads)
        return Serving(served, predictor, self._measured(served, predictor.card))

    def _measured(self, served: ServedFiles, card: Card) -> float:
        """From which score on a sample is an anomaly: as this device measured it, else as the card says."""
        if not card.anomaly:
            return inf
        measured = self._folder.threshold(served)
        return card.anomaly.threshold if measured is None else measured.value

    def _fall_back(self, failed: ServedFiles | None, why: str) -> None:
        """Go on with what is in memory, or with the release before; and have the agent know."""
        log.warning("%s cannot use what is served now: %s", self._line, why)
        if failed is not None:
            self._failure = UsageReport(self._line, failed.version, failure=why[:_WORDS])
            self._tell_failure()
        if self._serving is not None:
            return
        previous = self._folder.previous()
        if previous is None or previous == failed:
            raise ModelError(f"{why}; there is no release before it to fall back to")
        try:
            self._swap(self._loaded(previous))
        except _UNFIT as error:
            raise ModelError(f"{why}; nor can the release before it be used: {error}") from error

    def _tell_failure(self) -> None:
        """Tell the agent that a release does not load: until it hears it, and again later: it may have restarted."""
        if self._failure is not None and self._sender.tell(self._failure):
            self._next_failure = monotonic() + _FAILURE_PAUSE
        else:
            self._next_failure = 0.0

    def _swap(self, serving: Serving | None) -> None:
        old, self._serving = self._serving, serving
        if old is not None:
            # Calls that are under way still count; the session goes with the last of them.
            self._retired.append((monotonic(), old.counts))

    def _error(self, serving: Serving, text: str) -> None:
        report = UsageReport(self._line, serving.served.version, errors=1, words=text[:_WORDS])
        if not self._sender.tell(report):
            with self._lock:
                self._untold.setdefault(serving.served.version, UsageTally()).add(report)

    def _collect(self) -> None:
        """Add the calls since the last time to what the agent is to be told."""
        serving, now = self._serving, monotonic()
        counts = [*(each for _, each in self._retired), *([serving.counts] if serving else [])]
        with self._lock:
            for each in counts:
                each.move_to(self._untold.setdefault(each.version, UsageTally()))
        self._retired = [(since, each) for since, each in self._retired if now - since < _FAILURE_PAUSE]

    def _report(self) -> None:
        """Tell one report for each version; what nobody takes is kept for the next time, as sums."""
        with self._lock:
            for version, tally in sorted(self._untold.items()):
                report = UsageReport(self._line, version, tally.predictions, tally.times, tally.classes, tally.errors)
                if not (tally.predictions or tally.errors) or self._sender.tell(report):
                    del self._untold[version]


def _watch(model: weakref.ref[Model], stop: threading.Event) -> None:
    """Mind a model for as long as somebody uses it."""
    while not stop.wait(LOOK_PAUSE):
        minded = model()
        if minded is None:
            return
        minded._tick()  # noqa: SLF001  # the thread is the model's own
        del minded


@atexit.register
def _close_all() -> None:
    for model in list(_open):
        model.close()


def _after_fork() -> None:
    """A child has no thread in the background: give every model a new one, and a lock that nobody holds."""
    for model in list(_open):
        model._lock = threading.Lock()  # noqa: SLF001  # as above
        model._begin()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
