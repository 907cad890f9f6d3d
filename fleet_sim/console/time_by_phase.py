"""Measures the real time of a simulation by phase with a sampling timer."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

LOADING = "loading the program"
PREPARING = "preparing data"
COMPILING = "compiling the model"
STARTING = "starting the fleet"
PLANNING = "planning and arranging"
WAITING = "waiting for training"
TRAINING = "training in this process"
HANDING = "sending visits to workers"
MOVING = "models and messages"
CHECKING = "checking (the gate)"
MERGING = "merging"
EVALUATING = "evaluating"
WRITING = "checkpoints and tables"
VIEW = "live view"
OTHER = "other"
PHASES = (
    LOADING, PREPARING, COMPILING, STARTING, PLANNING, WAITING, TRAINING, HANDING, MOVING, CHECKING, MERGING,
    EVALUATING, WRITING, VIEW, OTHER,
)  # fmt: skip
"""The phases in display order."""

PLACES = {
    "fleet_sim/datasets/": PREPARING,
    "fleet_sim/preparing.py": PREPARING,
    "sojourn/data/": PREPARING,
    "coordinator/compiling/": COMPILING,
    "coordinator/rounds/preparing.py": COMPILING,
    "coordinator/machine/work.py:_in_subprocess": COMPILING,
    "fleet_sim/run.py:__init__": STARTING,
    "fleet_sim/engines/choosing.py": STARTING,
    "coordinator/rounds/planning.py": PLANNING,
    "coordinator/rounds/schedules.py": PLANNING,
    "hierarchy/arranging/": PLANNING,
    "fleet_sim/world/virtual_fleet.py:_outcome": WAITING,
    "fleet_sim/engines/": HANDING,
    "fleet_sim/engines/serial.py": TRAINING,
    "fleet_sim/engines/torch_graphs.py": TRAINING,
    "fleet_sim/engines/batched.py": TRAINING,
    "edge_agent/training/": TRAINING,
    "fleet_sim/world/": MOVING,
    "fleet_sim/run.py:_courses": MOVING,
    "fleet_sim/run.py:_advance": MOVING,
    "hierarchy/edge/gate.py": CHECKING,
    "sojourn/model/gate_rules.py": CHECKING,
    "sojourn/model/exemplar_view.py": CHECKING,
    "coordinator/rounds/tour_check.py": CHECKING,
    "coordinator/aggregators/": MERGING,
    "coordinator/rounds/closing.py": MERGING,
    "coordinator/rounds/merging.py": MERGING,
    "hierarchy/edge/merge.py": MERGING,
    "coordinator/rounds/evaluation.py": EVALUATING,
    "fleet_sim/world/checkpoint.py": WRITING,
    "coordinator/results/": WRITING,
    "coordinator/compiling/prediction_model.py": WRITING,
    "fleet_sim/run.py:finish": WRITING,
    "fleet_sim/run.py:close": WRITING,
    "fleet_sim/run.py:_course": VIEW,
    "coordinator/console/": VIEW,
}
"""The phase of a folder, a file, or a function in a file (`file:function`); the most specific entry applies."""
_IMPORTING = "<frozen importlib"
_ROOT = f"{Path(__file__).resolve().parents[2]}/"


class PhaseLookup:
    """Finds the phase of running code: that of the innermost call with a known phase."""

    def __init__(self) -> None:
        # Keyed by name instead of code object: hashing a code object hashes its contents, each time.
        self._known: dict[tuple[str, str], str | None] = {}

    def of(self, frame: FrameType | None) -> str:
        """Return the phase of a frame and its callers."""
        while frame is not None:
            code = frame.f_code
            place = code.co_filename, code.co_name
            if place not in self._known:
                self._known[place] = phase_at(code.co_filename.removeprefix(_ROOT), code.co_name)
            if phase := self._known[place]:
                return phase
            frame = frame.f_back
        return OTHER


def phase_at(file: str, function: str) -> str | None:
    """Return the phase of a function by its file below the packages' folder; None if its callers decide."""
    if file.startswith(_IMPORTING):
        return LOADING
    folders = [f"{parent.as_posix()}/" for parent in Path(file).parents]
    return next((PLACES[place] for place in (f"{file}:{function}", file, *folders) if place in PLACES), None)


# A timer interrupts the program periodically and samples the stack. The code itself contains no measurements, so there
# is no overhead when profiling is off. A sample takes some microseconds; the time since the previous sample counts for
# the phase found, so that the phases add up to the total.

EVERY = 0.01
"""Seconds between two samples."""


class PhaseSeconds(NamedTuple):
    """Elapsed seconds, and seconds of the thread's processor time."""

    passed: float = 0.0
    cpu: float = 0.0


class PhaseSampler:
    """A context manager that samples the main thread's time by phase; only the main thread can open it."""

    def __init__(self) -> None:
        self.spent: dict[str, PhaseSeconds] = {}
        """The time of each phase."""
        self.threads = self.compiler = self.workers = 0.0
        """Processor time of this process's other threads, of compiler processes, and of all other child processes."""
        self._phases = PhaseLookup()
        self._now, self._last = OTHER, PhaseSeconds()
        self._process = self._children = 0.0
        self._looking = self._compiled = False
        self._handler: Any = None
        self._timer = (0.0, 0.0)

    @property
    def total(self) -> PhaseSeconds:
        """The time of all phases together."""
        return PhaseSeconds(*(sum(each) for each in zip(PhaseSeconds(), *self.spent.values(), strict=True)))

    def count(self, phase: str, passed: float, cpu: float) -> None:
        """Add the time since the last call to a phase; the arguments are the current clock values."""
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
        if self._timer[0]:  # another timer's handler, such as a test's time limit: restored afterwards
            signal.setitimer(signal.ITIMER_REAL, *self._timer)

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        if self._looking:  # on a busy machine the timer may fire during a sample
            return
        self._looking = True
        phase = self._phases.of(frame)
        self.count(phase, time.perf_counter(), time.thread_time())
        if self._now == COMPILING != phase and not self._compiled:
            # So far only compiler processes have ended; workers end with the engine.
            self.compiler, self._compiled = _ended_processes() - self._children, True
        self._now, self._looking = phase, False


def _ended_processes() -> float:
    """Return the processor time of child processes that have ended."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return waited.ru_utime + waited.ru_stime
