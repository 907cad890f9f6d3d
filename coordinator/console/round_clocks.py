"""When each round of a job ended, in seconds after its submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import RoundReport


def clocked(progress: JobProgress) -> Iterator[tuple[RoundReport, float]]:
    """The rounds, each with the seconds from the job's submission to its end; without dates, with those of rounds."""
    begun = progress.view.times.submitted if progress.view.times else None
    passed = 0.0
    for report in progress.history:
        passed += report.seconds
        dated = isinstance(report.ended, float) and begun is not None
        yield report, max(0.0, report.ended - begun) if dated else passed  # type: ignore[operator]
