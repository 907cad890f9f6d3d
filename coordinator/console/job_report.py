"""Write the report folder of a fleet's job, in the same form as a simulation's, from the coordinator's data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.console.job_progress import clocked, failure_of, progress_of
from coordinator.results.folder import VISITS, EndedVisit, ResultFolder
from coordinator.results.report import MODEL, draw
from coordinator.results.visit_totals import write_tallies
from sojourn.errors import ConfigError, JobError, install
from sojourn.protocol.wire import VisitReport
from sojourn.text import quantity

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


def write_report(operator: Operator, job: str, folder: Path) -> Iterator[str]:
    """Write the folder; yields the lines to print."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} already exists: name another folder with --output, or remove it")
    now = progress_of(operator, job)
    if not now.history:
        raise JobError(f"job {job!r} is {now.view.status}: no round has been completed, so there is nothing to report")
    failed = failure_of(now.view)
    text, version = operator.job_file(job)
    results = ResultFolder(folder)
    results.open()
    results.begin(text, {"coordinator": version})
    results.set_failure(failed)
    for report, clock in clocked(now):
        results.round(report, clock)
    begun = (now.view.times.submitted if now.view.times else None) or 0.0
    for visit in visits_of(operator, job, begun):
        results.visit(visit)
    devices = _write_sums(results)
    (folder / MODEL).write_bytes(operator.export(job).model)
    pictures = find_spec("matplotlib") is not None
    draw(results, job, devices, pictures_too=pictures)
    results.close()
    if not pictures:
        yield f"There are no plots: they require matplotlib ({install('sim')})"
    if failed:
        yield f"Warning: {failed}"
    yield f"{folder}: {quantity(len(now.history), 'round')}, tables and the model; report.html shows them"


def visits_of(operator: Operator, job: str, begun: float) -> Iterable[EndedVisit]:
    """Yield the visits of a job that the coordinator remembers; the traffic of each visit is not known."""
    for it in operator.visits(job=job):
        if it.phase == "train":
            metrics = {} if it.loss is None else {"loss": it.loss}
            report = VisitReport(
                it.device, it.hop, it.status, it.reason, it.samples, 0.0, metrics, None, it.seconds
            )  # fmt: skip
            yield EndedVisit(max(0.0, it.at - begun), it.site, f"{job}/{it.round}/{it.tour}", report, 0, 0)


def _write_sums(results: ResultFolder) -> list[str]:
    """Write the totals of sites and devices; returns the devices that were visited."""
    rows = results.rows(VISITS)
    samples = {row["device"]: int(row["samples"]) for row in rows}
    write_tallies(results, samples, dict.fromkeys(samples, ""), sorted({row["site"] for row in rows}))
    return sorted(samples)
