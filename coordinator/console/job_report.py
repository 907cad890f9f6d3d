"""The folder that a job of a fleet leaves, as a simulation does; written from what the coordinator tells."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from coordinator.console.following import failure_of, progress_of
from coordinator.console.round_clocks import clocked
from coordinator.results.folder import VISITS, EndedVisit, ResultFolder
from coordinator.results.report import MODEL, draw
from coordinator.results.tallies import write_tallies
from sojourn.errors import ConfigError, JobError
from sojourn.extras import install
from sojourn.protocol.wire import VisitReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from coordinator.console.operator import Operator


def write_report(operator: Operator, job: str, folder: Path) -> Iterator[str]:
    """Write the folder; yields what to say about it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already: name another folder with --output, or remove it")
    now = progress_of(operator, job)
    if not now.history:
        raise JobError(f"job {job!r} is {now.view.status}: not one round is finished, so there is nothing to report")
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
        yield f"There are no pictures: they need matplotlib ({install('sim')})"
    if failed:
        yield f"Warning: {failed}"
    yield f"{folder}: {len(now.history)} rounds, tables and the model; report.html shows them"


def visits_of(operator: Operator, job: str, begun: float) -> Iterable[EndedVisit]:
    """The visits of a job's rounds that the coordinator remembers; bytes it does not tell for each."""
    for it in operator.visits(job=job):
        if it.phase == "train":
            metrics = {} if it.loss is None else {"loss": it.loss}
            told = VisitReport(
                it.device, it.hop, it.status, it.reason, it.samples, 0.0, metrics, None, it.seconds
            )  # fmt: skip
            yield EndedVisit(max(0.0, it.at - begun), it.site, f"{job}/{it.round}/{it.tour}", told, 0, 0)


def _write_sums(results: ResultFolder) -> list[str]:
    """The sums over sites and devices; returns the devices that were visited."""
    rows = results.rows(VISITS)
    samples = {row["device"]: int(row["samples"]) for row in rows}
    write_tallies(results, samples, dict.fromkeys(samples, ""), sorted({row["site"] for row in rows}))
    return sorted(samples)
