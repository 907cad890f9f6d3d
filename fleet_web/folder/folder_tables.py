"""What a folder of results holds, read as it grows: rounds, visits, devices and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.results.folder import CONFIG, FAILED, ROUNDS, VISITS
from coordinator.results.tallies import DEVICES
from coordinator.results.task_figures import task_in
from fleet_web.folder.rows import NAME, round_of, visit_of
from fleet_web.folder.table_tail import TableTail
from sojourn.errors import ConfigError
from sojourn.settings import parse
from sojourn.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.protocol.fleet_messages import VisitNote
    from sojourn.protocol.wire import RoundReport

MOST_VISITS = 100_000
"""Visits that are kept in memory: the newest."""
MOST_ROUNDS = 20_000
CONFIG_BYTES = 1 << 20


class FolderTables:
    """The tables of one folder. unread: how many rows made no sense; forgotten: whether older visits are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = _config(path)
        self.task = task_in(self.config)
        self._tails = {name: TableTail(path / name) for name in (ROUNDS, VISITS)}
        self.rounds: list[RoundReport] = []
        self.visits: list[VisitNote] = []
        self.unread = 0
        self.forgotten = False

    def state(self) -> tuple[tuple[int, int], ...]:
        """What changes when one of the tables does, or the job fails."""
        return *(tail.state() for tail in self._tails.values()), (int((self.path / FAILED).exists()), 0)

    @property
    def has_visits(self) -> bool:
        """Whether there is a table of visits at all."""
        return self._tails[VISITS].there

    def read(self) -> None:
        """Read what is new."""
        rows, anew = self._tails[ROUNDS].news()
        found = [round_of(row, self.task.more) for row in rows]
        self.rounds = [*([] if anew else self.rounds), *(it for it in found if it)][-MOST_ROUNDS:]
        self.unread += sum(it is None for it in found)
        new, anew_visits = self._tails[VISITS].news()
        if anew_visits:
            self.visits.clear()
        self._add_visits([visit_of(row) for row in new])

    def _add_visits(self, found: list[VisitNote | None]) -> None:
        self.unread += sum(it is None for it in found)
        self.visits += [it for it in found if it]
        self.forgotten |= self._tails[VISITS].cut or len(self.visits) > MOST_VISITS
        del self.visits[:-MOST_VISITS]
        self._tell_estimates()

    def _tell_estimates(self) -> None:
        """Mark the visits that only estimated: of a round's tours the last ones trained, as many as its row says.

        Tours are numbered on and on, and devices are estimated before a round is planned.
        """
        tours: dict[int, set[int]] = {}
        for visit in self.visits:
            tours.setdefault(visit.round, set()).add(visit.tour)
        planned = {it.round: it.tours for it in self.rounds}
        first = {number: sorted(seen)[-planned.get(number, len(seen)) or 0 :][0] for number, seen in tours.items()}
        self.visits = [
            msgspec.structs.replace(it, phase="estimate") if it.phase == "train" and it.tour < first[it.round] else it
            for it in self.visits
        ]

    def devices(self) -> dict[str, str]:
        """All devices that there were, and where they were visited, as far as that is known."""
        sites = {it.device: it.site for it in self.visits}
        rows, _ = TableTail(self.path / DEVICES).news()
        names = [clean(row.get("device", ""), NAME) for row in rows]
        return {name: sites.get(name, "") for name in dict.fromkeys([*names, *sites])}


def _config(path: Path) -> dict[str, Any]:
    """The settings of the run; ConfigError where the folder is none that a run has left."""
    file = path / CONFIG
    if not path.is_dir():
        raise ConfigError(f"--results {path}: there is no such folder")
    missing = [name for name in (CONFIG, ROUNDS) if not (path / name).is_file()]
    if missing:
        raise ConfigError(
            f"--results {path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: name a folder "
            "that `sojourn simulate`, `compare`, `plan` or `job report` has left"
        )
    if file.stat().st_size > CONFIG_BYTES:
        raise ConfigError(f"--results {path}: {CONFIG} is larger than a job file can be")
    return parse(file.read_text(encoding="utf-8", errors="replace"), str(file))
