"""Visits as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_web.table import Cell, Column, Row
from fleet_web.times import moment
from fleet_web.words import address
from sojourn.about import ordinal
from sojourn.errors import SojournError
from sojourn.figures import clock_of, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_web.source import Source
    from sojourn.protocol.fleet_messages import VisitNote

VISIT_COLUMNS = (
    Column("at", "Round ended"),
    Column("job", "Job"),
    Column("status", "How it ended"),
    Column("samples", "Samples", number=True),
    Column("loss", "Loss", number=True),
    Column("seconds", "Took", number=True),
    Column("bytes", "Bytes (mean of its round)", number=True),
    Column("site", "Site"),
    Column("reason", "Reason"),
)
TONES = {"done": "good", "declined": "warn", "lost": "warn", "refused": "bad"}


def visit_row(it: VisitNote, size: float | None, of: dict[str, str]) -> Row:
    """A visit in a row; `of` names the source in addresses."""
    what = f"round {it.round}" if it.phase == "train" else "estimation"
    return Row(
        f"{it.job} {it.round} {it.phase} {it.tour} {it.hop} {it.device} {it.at}",
        (
            Cell(moment(it.at)),
            Cell(f"{it.job} {what}, tour {ordinal(it.tour)} hop {ordinal(it.hop)}", address("job", it.job, **of)),
            Cell(it.status, tone=TONES[it.status]),
            Cell(f"{it.samples:,}" if it.samples else "-"),
            Cell(number(it.loss) if it.loss is not None else "-"),
            Cell(clock_of(it.seconds) if it.seconds else "-"),
            Cell(f"{size / 1000:,.1f} kB" if size is not None and it.status == "done" else "-"),
            Cell(it.site),
            Cell(it.reason or "-"),
        ),
    )


async def mean_bytes(source: Source, visits: Sequence[VisitNote], most: int) -> dict[tuple[str, int], float]:
    """By job and round, how many bytes a visit of it took on average; nobody counts them for each visit."""
    found: dict[tuple[str, int], float] = {}
    for job in list(dict.fromkeys(it.job for it in visits if it.phase == "train"))[:most]:
        try:
            history = (await source.job(job)).history
        except SojournError:  # it was removed; its visits are remembered all the same
            continue
        found |= {(job, it.round): it.traffic / it.visits for it in history if it.visits}
    return found
