"""Where a program's time goes, by phase: a timer interrupts it again and again, and looks at what runs.

Nothing is measured in the code itself, so that it costs nothing when nobody asks. A look takes some microseconds; the
whole time since the look before counts for the phase that is found, so that the phases add up to all of it.
"""

from __future__ import annotations

import resource
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fleet_sim.console.phases import COMPILING, OTHER, PhaseLookup

if TYPE_CHECKING:
    from types import FrameType

EVERY = 0.01
"""Seconds between two looks."""


class PhaseSeconds(NamedTuple):
    """Seconds that passed, and seconds of processor time of the thread."""

    passed: float = 0.0
    cpu: float = 0.0


class PhaseSampler:
    """While it is open, counts the main thread's time by phase; only the main thread can open it."""

    def __init__(self) -> None:
        self.spent: dict[str, PhaseSeconds] = {}
        """What each phase has taken so far."""
        self.threads = self.compiler = self.workers = 0.0
        """Processor time of this process's other threads, of the processes that compiled, and of all others it had."""
        self._phases = PhaseLookup()
        self._now, self._last = OTHER, PhaseSeconds()
        self._process = self._children = 0.0
        self._looking = self._compiled = False
        self._handler: Any = None
        self._timer = (0.0, 0.0)

    @property
    def total(self) -> PhaseSeconds:
        """What all phases have taken."""
        return PhaseSeconds(*(sum(each) for each in zip(PhaseSeconds(), *self.spent.values(), strict=True)))

    def count(self, phase: str, passed: float, cpu: float) -> None:
        """Let a phase have what was spent since the last time; the numbers are what the clocks say."""
        before, had = self._last, self.spent.get(phase, PhaseSeconds())
        self.spent[phase] = PhaseSeconds(had.passed + passed - before.passed, had.cpu + cpu - before.cpu)
        self._last = PhaseSeconds(passed, cpu)

    def __enter__(self) -> Self:
        self._last = PhaseSeconds(time.perf_counter(), time.thread_time())
        self._process, self._children = time.process_time(), _ended_processes()
        self._handler = signal.signal(signal.SIGALRM, self._look)
        self._timer = signal.setitimer(signal.ITIMER_REAL, EVERY, EVERY)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._handler)
        self._look(0, None)
        self.workers = _ended_processes() - self._children - self.compiler
        self.threads = max(0.0, time.process_time() - self._process - self.total.cpu)
        if self._timer[0]:  # somebody else's, as a test's time limit: it goes on from here
            signal.setitimer(signal.ITIMER_REAL, *self._timer)

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        if self._looking:  # on a busy machine the timer may be faster than a look
            return
        self._looking = True
        phase = self._phases.of(frame)
        self.count(phase, time.perf_counter(), time.thread_time())
        if self._now == COMPILING != phase and not self._compiled:
            # Until now no process has ended but one that compiled; a worker ends with the engine.
            self.compiler, self._compiled = _ended_processes() - self._children, True
        self._now, self._looking = phase, False


def _ended_processes() -> float:
    """Processor time of the processes that were started here and have ended."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return waited.ru_utime + waited.ru_stime
