"""All that went wrong in a job, and whom its rounds took or left: lines for a terminal, which wraps and never cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import RoundReport


def failure_lines(progress: JobProgress) -> list[str]:
    """What people should know of the rounds so far, each thing once with the rounds it is of; and what is so now."""
    view, lines = progress.view, flagged_lines(progress.history)
    if of_rounds := by_line(progress.history):
        lines += ["", "what to know of the rounds"]
        lines += [f"  {line} (round {_rounds(rounds)})" for line, rounds in of_rounds.items()]
    if now := [line for line in view.notes if line not in of_rounds]:
        lines += ["", "what to know since", *(f"  {line}" for line in now)]
    return [*lines, *taken_lines(progress)]


def flagged_lines(history: Iterable[RoundReport]) -> list[str]:
    """How many visits the gate would have refused, where it only reports."""
    reports = list(history)
    flags, visits = sum(it.flagged or 0 for it in reports), sum(it.visits for it in reports)
    line = f'the gate would have refused {flags:,} of {visits:,} visits (gate = "report" refuses none)'
    return ["", line] if flags else []


def taken_lines(progress: JobProgress) -> list[str]:
    """The devices that every round took, and those that none did."""
    view = progress.view
    every = [f"in every round so far: {', '.join(view.always)}"] if view.always else []
    none = [f"here, and in no round so far: {', '.join(view.never)}"] if view.never else []
    return ["", *every, *none] if every or none else []


def by_line(history: Iterable[RoundReport]) -> dict[str, list[int]]:
    """The rounds that each line is of."""
    found: dict[str, list[int]] = {}
    for report in history:
        for line in report.failures:
            found.setdefault(line, []).append(report.round)
    return found


def _rounds(numbers: Sequence[int]) -> str:
    """Numbers of rounds, those in a row from the first to the last: 1-3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
