"""Logs a simulation's rounds to MLflow or TensorBoard, if tracking is configured."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coordinator.records import ENDED
from coordinator.results.folder import CONFIG
from coordinator.tracking.runs import Outcome, RunBegun, RunEnded, params_of, round_of, tags_of
from coordinator.tracking.tracker import Tracker
from sojourn.protocol.wire import JobStatus, RoundReport
from sojourn.settings import parse

if TYPE_CHECKING:
    from fleet_sim.settings import Simulation

ID = "tracking.id"
"""The file in a result folder with the run's id, so that a resumed simulation continues the same run."""


class TrackedSimulation:
    """Reports a simulation to a tracker; does nothing without one."""

    def __init__(self, simulation: Simulation) -> None:
        simulation.tracking.need()
        self._simulation = simulation
        self._tracker = Tracker(simulation.tracking, at_once=True) if simulation.tracking.on else None
        self._run = ""

    def begin(self, folder: Path) -> None:
        """Start or resume the run of this folder."""
        if self._tracker is None:
            return
        place = folder / ID
        if not place.exists():
            place.write_text(secrets.token_hex(16) + "\n", encoding="ascii")
        self._run = place.read_text(encoding="ascii").strip()
        job = self._simulation.read()
        where = {"kind": "simulation", "folder": str(folder.absolute())}
        params = params_of(parse(self._simulation.text, CONFIG))
        self._tracker.put(RunBegun(self._run, job.name, time.time(), params, {**tags_of(job), **where}))

    def round(self, report: RoundReport, clock: float) -> None:
        """Log the metrics of a round; it ended at this time of the fleet's clock."""
        if self._tracker is not None:
            self._tracker.put(round_of(self._run, report, time.time(), {"clock_seconds": clock}))

    def close(self, status: JobStatus, detail: str) -> None:
        """Close the run after the end or an interruption."""
        if self._tracker is not None:
            outcome = cast("Outcome", status) if status in ENDED else "interrupted"
            self._tracker.put(RunEnded(self._run, outcome, detail, time.time()))
            self._tracker.close()
            self._tracker = None
