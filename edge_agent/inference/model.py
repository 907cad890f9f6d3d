"""`Model`: predicts with the release of a model line that this device serves, and goes over to the next by itself."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Self

import numpy as np

from edge_agent.inference.serving import Serving
from edge_agent.inference.usage import UsageReport, UsageSender, UsageTally
from edge_agent.releases.folder import ReleaseFolder
from edge_agent.releases.loading import load
from edge_agent.releases.places import no_release, store_of
from sojourn.errors import InvalidBlob, ModelError, SojournError, StoreError
from sojourn.protocol.topics import check_name

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from edge_agent.inference.serving import Counts
    from edge_agent.releases.folder import Identity, ServedFiles
    from sojourn.protocol.release import Card

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

    def predict(self, x: object) -> NDArray[np.float32]:
        """The logits of one sample, or of a batch: one row for each."""
        _, logits, one = self._run(x)
        return logits[0] if one else logits

    def classify(self, x: object) -> str | list[str]:
        """The name of the class of one sample, or those of a batch."""
        names, probabilities = self.probabilities(x)[1:]
        most = probabilities.argmax(axis=-1)
        return names[int(most)] if probabilities.ndim == 1 else [names[int(each)] for each in most]

    def probabilities(self, x: object) -> tuple[int, tuple[str, ...], NDArray[np.float64]]:
        """The version that answered, its classes, and how likely each of them is, by softmax."""
        serving, logits, one = self._run(x)
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf))
        shares = powers / powers.sum(axis=1, keepdims=True)
        return serving.served.version, serving.predictor.card.classes, shares[0] if one else shares

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

    def _run(self, x: object) -> tuple[Serving, NDArray[np.float32], bool]:
        serving = self._serving or self._now()
        try:
            logits, one = serving.predict(x)
        except ModelError as error:
            if self._count_failures:
                self._error(serving, str(error))
            raise
        return serving, logits, one

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
        self._identity, self._failure = identity, None

    def _loaded(self, served: ServedFiles | None) -> Serving:
        if served is None:
            raise StoreError(f"{self._folder.path / 'current'} is damaged")
        return Serving(served, load(self._folder, served, self._threads))

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
