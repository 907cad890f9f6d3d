"""Who does the work of an agent: visits are trained in one child process, releases are installed beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.releases.work import Install, Withdraw
from sojourn.node.workers import ThreadWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_agent.releases.installing import Installer
    from edge_agent.training.process import TrainingProcess
    from edge_agent.training.work import Train, Warm
    from sojourn.node.machine import Did, DidNot, Doing


class DeviceWorkers:
    """Workers (`sojourn.node.workers`) that hand each piece of work to whom it is for."""

    def __init__(self, training: TrainingProcess, installer: Installer) -> None:
        self._training, self._installer = training, installer
        self._installing = ThreadWorkers(installer)
        self._lines: dict[str, str] = {}

    def start(
        self, key: str, work: Warm | Train | Install | Withdraw, report: Callable[[Did | Doing | DidNot], None]
    ) -> None:
        """Begin; returns at once."""
        if isinstance(work, Install | Withdraw):
            self._lines[key] = work.line

            def ended(event: Did | Doing | DidNot) -> None:
                self._lines.pop(key, None)
                report(event)

            self._installer.expect(work)
            self._installing.start(key, work, ended)
        else:
            self._training.start(key, work, report)

    def stop(self, key: str) -> None:
        """The work is no longer wanted: a release that is being tried is not served any more."""
        if line := self._lines.pop(key, None):
            self._installing.stop(key)
            self._installer.drop(line)
        else:
            self._training.stop(key)

    def close(self) -> None:
        """End everything."""
        for line in set(self._lines.values()):
            self._installer.drop(line)
        self._installing.close()
        self._training.close()
