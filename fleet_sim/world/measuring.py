"""The coordinator's workers in a simulation: models of rounds are tested while the next round trains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import Did
from sojourn.node.workers import InlineWorkers, attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from coordinator.records import RoundMeasured
    from sojourn.node.machine import DidNot, Doing

    Report = Callable[[Did | Doing | DidNot], None]


class MeasuringBeside:
    """Does all work at once, but for the tests of rounds' models: these run on a thread beside the simulation.

    What a test found is reported right before the next round is closed, and not when it happens to be there: so the
    fleet's clock and the order of its records are the same in every run.
    """

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform
        self._at_once = InlineWorkers(perform)
        self._thread = ThreadPoolExecutor(1, "measure")
        self._tests: dict[str, tuple[MeasureRound, Future[Did | DidNot], Report]] = {}
        """The tests that were not reported yet, by their keys."""

    def start(self, key: str, work: Any, report: Report) -> None:
        """Begin a test, or do another piece of work."""
        if isinstance(work, MeasureRound):
            self._tests[key] = work, self._thread.submit(attempt, key, work, self._perform), report
            return
        if isinstance(work, CloseRound) and work.state.phase == "train":
            self.settle()
        self._at_once.start(key, work, report)

    def settle(self) -> bool:
        """Wait for all tests that are under way and report them; whether there were any."""
        tests, self._tests = self._tests, {}
        for _, future, report in tests.values():
            report(future.result())
        return bool(tests)

    def found(self, job: str, number: int) -> RoundMeasured | None:
        """What the test of a round's model has found, if it is over and not reported yet."""
        for work, future, _ in self._tests.values():
            if (work.job, work.round) == (job, number) and future.done():
                event = future.result()
                found: RoundMeasured | None = event.outcome if isinstance(event, Did) else None
                return found
        return None

    def stop(self, key: str) -> None:
        """Report nothing of a test."""
        self._tests.pop(key, None)

    def close(self) -> None:
        """End the thread, when it is done with what it is at."""
        self._tests.clear()
        self._thread.shutdown(cancel_futures=True)
