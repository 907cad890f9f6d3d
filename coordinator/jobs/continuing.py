"""A job file with more rounds, or another target."""

from __future__ import annotations

from coordinator.jobs.settings import JobSettings, read_job
from sojourn.errors import JobError
from sojourn.parts import Ring, fixed_rounds
from sojourn.settings import parse, with_tables
from sojourn.toml import dumps


def continued(text: str, rounds: int | None, target: float | str | None, devices: int | None = None) -> str:
    """The job file with `rounds` in all, a `target`, and the `devices` that it needs to begin.

    None leaves each as it was, and a target of 0 is none.

    JobError where the job's schedule has a number of rounds of its own.
    """
    job, table = read_job(text, "the job"), with_tables(parse(text, "the job"), JobSettings, "the job")
    schedule = job.parts().schedule
    if rounds is not None and isinstance(schedule, Ring):
        table["schedule"] = {**table.get("schedule", {}), "trips": rounds}
        table |= {"rounds": rounds} if "rounds" in table else {}
    elif rounds is not None and (fixed := fixed_rounds(schedule)) is not None and rounds != fixed:
        raise JobError(
            f"the strategy {job.strategy!r} has {fixed} round{'s' * (fixed > 1)} and no more: to train on, submit "
            f'another job with model.start = "job:{job.name}"'
        )
    elif rounds is not None:
        table["rounds"] = rounds
    if target:
        table["target"] = target
    elif target is not None:
        table.pop("target", None)
    if devices is not None:
        table["fleet"] = {**table.get("fleet", {}), "devices": devices}
    made = dumps(table)
    read_job(made, "the job")
    return made
