"""What a simulation gives to a notebook: its rounds and visits as tables, its picture, its model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coordinator.results.folder import ROUNDS, VISITS, ResultFolder
from coordinator.results.plots import course_figure
from coordinator.results.report import MODEL, html_table, readable, summary_html
from coordinator.results.task_figures import figure_in

if TYPE_CHECKING:
    from coordinator.console.following import JobProgress
    from coordinator.results.folder import Rows

MOST = 60
"""A notebook shows this many rows of a table at most; all of them are in it."""


class Records(list[dict[str, Any]]):
    """A table as dicts, numbers as numbers; `pandas.DataFrame(it)` takes it as it is, and a notebook draws it."""

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """The rows of a CSV file; an empty cell is None."""
        return cls({key: _value(text) for key, text in row.items()} for row in rows)

    def _repr_html_(self) -> str:
        rest = f"<p>and {len(self) - MOST:,} more</p>" if len(self) > MOST else ""
        text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in self[:MOST]]
        return html_table(readable(text)) + rest


def _value(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text or None


@dataclass(frozen=True)
class Simulated:
    """How a simulation ended. A notebook shows it as its report's summary."""

    folder: Path
    """Where its tables, pictures, report and model are."""
    course: JobProgress
    """How the job went, as an operator sees it."""
    clock: float
    """Seconds on the fleet's clock at the end."""
    why: str
    """Which engine was chosen, and why."""

    @property
    def rounds(self) -> Records:
        """One dict for each round: accuracy and loss, visits, bytes, times, measures of the arrangement."""
        return Records.of(ResultFolder(self.folder, resume=True).rows(ROUNDS))

    @property
    def visits(self) -> Records:
        """One dict for each visit: when, where, who, how it ended and why."""
        return Records.of(ResultFolder(self.folder, resume=True).rows(VISITS))

    @property
    def accuracy(self) -> float:
        """Of the last round's model, 0 to 1; NaN for a task that has none (`figures` has all)."""
        return self.course.history[-1].accuracy

    @property
    def figures(self) -> dict[str, float]:
        """All figures of the last round's model that were measured, the task's main one first."""
        last, task = self.course.history[-1], ResultFolder(self.folder, resume=True).task
        return {name: figure_in(last, name) for name in task.measured([last])}

    @property
    def model(self) -> Path:
        """The file of the last round's model, as plain ONNX."""
        return self.folder / MODEL

    def save(self, path: Path | str) -> Path:
        """Copy the model to a file; returns it."""
        return Path(shutil.copyfile(self.model, path))

    def plot(self) -> Any:
        """The main figure by round, by simulated time and by bytes: a matplotlib figure, which a notebook shows."""
        results = ResultFolder(self.folder, resume=True)
        return course_figure({self.course.view.job: [results.rows(ROUNDS)]}, results.task.main)

    def _repr_html_(self) -> str:
        return summary_html(ResultFolder(self.folder, resume=True))
