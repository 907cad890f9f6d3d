"""The folder that a simulation leaves: settings to run it again, tables, the model, and pictures."""

from __future__ import annotations

import csv
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from coordinator.watching import MEASURES
from sojourn import __version__
from sojourn.errors import ConfigError
from sojourn.toml import dumps

if TYPE_CHECKING:
    from pathlib import Path

    from fleet_sim.simulation import Simulation
    from fleet_sim.virtual_fleet import Visited
    from sojourn.wire import RoundReport

ROUNDS = ("round", "accuracy", "loss", "tours", "visits", "lost", "bytes", "seconds", "clock", *MEASURES)
VISITS = ("clock", "site", "tour", "device", "hop", "status", "reason", "samples", "norm", "loss", "seconds")
PACKAGES = ("numpy", "onnxruntime", "torch", "msgspec", "paho-mqtt", "scikit-learn")


class ResultFolder:
    """Writes as it goes, so that what was done is there whenever the simulation ends."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        if path.exists() and any(path.iterdir()) and not resume:
            raise ConfigError(f"{path} is not empty: name another folder, or add --resume to go on with what is in it")
        if resume and not (path / "config.toml").exists():
            raise ConfigError(f"{path} has no config.toml: there is nothing to go on with")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    def begin(self, simulation: Simulation) -> None:
        """Write down what is simulated, and with what."""
        (self.path / "config.toml").write_text(simulation.text, encoding="utf-8")
        (self.path / "versions.toml").write_text(dumps(versions()), encoding="utf-8")
        for name, columns in (("rounds.csv", ROUNDS), ("visits.csv", VISITS)):
            self._write(name, columns, new=True)

    def round(self, report: RoundReport, clock: float) -> None:
        """Add a round."""
        measures = [report.quality.get(name, "") for name in MEASURES]
        self._write("rounds.csv", (
            report.round, report.accuracy, report.loss, report.tours, report.visits, report.lost, report.traffic,
            report.seconds, clock, *measures,
        ))  # fmt: skip

    def visit(self, seen: Visited) -> None:
        """Add a visit."""
        it = seen.report
        self._write("visits.csv", (
            seen.at, seen.site, seen.tour, it.device, it.hop, it.status, it.reason, it.samples, it.norm,
            it.metrics.get("loss", ""), it.seconds,
        ))  # fmt: skip

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of one of its tables."""
        with (self.path / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _write(self, name: str, row: Any, *, new: bool = False) -> None:
        with (self.path / name).open("w" if new else "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(row)


def versions() -> dict[str, str]:
    """What a result depends on besides its settings."""
    found = {"sojourn": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
