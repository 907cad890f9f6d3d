"""The runs of one folder as tables in Markdown, one for each paper: python -m benchmarks.papers.summary FOLDER.

FOLDER holds PAPER/METHOD-seed-N, as `sojourn compare benchmarks/papers/PAPER/*.toml --seed N --output FOLDER/PAPER`
leaves them; runs that were stopped count as far as they came.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from coordinator.jobs.goal import Goal
from coordinator.results.folder import ROUNDS, ResultFolder
from coordinator.results.task_figures import TaskFigures
from fleet_sim.console.comparison_report import rounds_to, row

if TYPE_CHECKING:
    from coordinator.results.folder import Rows

LAST = 10
"""Rounds go up and down; so many together say more than one."""
TARGETS = {"visit": 0.45, "fedseq": 0.30, "fedgsp": 0.95, "fedcat": 0.45}
"""Accuracies that the methods are timed to, where rounds count."""


def main(folder: str) -> None:
    for paper in sorted(path for path in Path(folder).iterdir() if path.is_dir()):
        methods: dict[str, list[Rows]] = defaultdict(list)
        for run in sorted(path for path in paper.iterdir() if path.is_dir()):
            if found := re.fullmatch(r"(.+)-seed-\d+", run.name):
                methods[found[1]].append(ResultFolder(run, resume=True).rows(ROUNDS))
        show(paper.name, {name: runs for name, runs in methods.items() if any(runs)})


def show(paper: str, methods: dict[str, list[Rows]]) -> None:
    """One table, and how the methods stand at the last round that all of them have reached."""
    print(f"\n### {paper}\n")
    common = min((len(rows) for runs in methods.values() for rows in runs if rows), default=0)
    lines = []
    reach = Goal("accuracy", TARGETS[paper]) if paper in TARGETS else None
    for name, runs in methods.items():
        line = {"method": name, "seeds": str(len(runs))} | row(name, runs, TaskFigures(), reach)
        del line["run"]
        last = [rows[max(0, common - LAST) : common] for rows in runs]
        means = [[{**rows[-1], "accuracy": str(fmean(float(it["accuracy"]) for it in rows))}] for rows in last if rows]
        line[f"mean of the {LAST} rounds to {common}"] = row(name, means, TaskFigures())["accuracy"]
        lines.append(line)
    if not lines:
        return
    print("| " + " | ".join(lines[0]) + " |")
    print("|" + "---|" * len(lines[0]))
    for line in lines:
        print("| " + " | ".join(line.values()) + " |")
    if reach is not None:
        first = {name: [rounds_to(rows, reach) for rows in runs] for name, runs in methods.items()}
        print(f"\nfirst round of {TARGETS[paper]:.0%}, by seed: {first}")


if __name__ == "__main__":
    main(sys.argv[1])
