"""The result of a simulation for a notebook: its rounds and visits as tables, its image, its model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from coordinator.console.job_progress import JobProgress
from coordinator.results.folder import ROUNDS, VISITS, ResultFolder, Rows
from coordinator.results.job_metrics import metric_in
from coordinator.results.plots import course_chart
from coordinator.results.report import MODEL, html_table, readable, summary_html
from sojourn.markup import joined, tag

MAX_ROWS = 60
"""Maximum number of rows displayed in a notebook; the table contains all."""


class Records(list[dict[str, Any]]):
    """A table as dicts with parsed numbers, which `pandas.DataFrame` accepts and notebooks display."""

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the rows of a CSV file; an empty cell is None."""
        return cls({key: _value(text) for key, text in row.items()} for row in rows)

    def _repr_html_(self) -> str:
        rest = tag("p", f"and {len(self) - MAX_ROWS:,} more") if len(self) > MAX_ROWS else ""
        text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in self[:MAX_ROWS]]
        return joined([html_table(readable(text)), rest])


def _value(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text or None


@dataclass(frozen=True)
class Simulated:
    """A finished simulation; a notebook displays its report's summary."""

    folder: Path
    """The folder of its tables, images, report and model."""
    course: JobProgress
    """The job's final state, as an operator sees it."""
    clock: float
    """The final time of the fleet's clock in seconds."""
    why: str
    """The reason for the chosen engine."""

    @property
    def rounds(self) -> Records:
        """One dict per round: accuracy and loss, visits, bytes, times, measures of the arrangement."""
        return Records.of(ResultFolder(self.folder, resume=True).rows(ROUNDS))

    @property
    def visits(self) -> Records:
        """One dict per visit: time, place, device, result and reason."""
        return Records.of(ResultFolder(self.folder, resume=True).rows(VISITS))

    @property
    def accuracy(self) -> float:
        """The last round's accuracy, 0 to 1; NaN for a task without one (`metrics` has all)."""
        return self.course.history[-1].accuracy

    @property
    def metrics(self) -> dict[str, float]:
        """All measured metrics of the last round's model, the task's main one first."""
        last, task = self.course.history[-1], ResultFolder(self.folder, resume=True).task
        return {name: metric_in(last, name) for name in task.measured([last])}

    @property
    def model(self) -> Path:
        """The file of the last round's model, as plain ONNX."""
        return self.folder / MODEL

    def save(self, path: Path | str) -> Path:
        """Copy the model to a file; return its path."""
        return Path(shutil.copyfile(self.model, path))

    def plot(self) -> Any:
        """Plot the main metric by round, by simulated time and by bytes, as a Matplotlib plot for notebooks."""
        results = ResultFolder(self.folder, resume=True)
        return course_chart({self.course.view.job: [results.rows(ROUNDS)]}, results.task.main)

    def _repr_html_(self) -> str:
        return summary_html(ResultFolder(self.folder, resume=True))
