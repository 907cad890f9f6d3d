"""The life of a job as a table: which step follows which event. `job_queue` takes every step through it.

A restart finds the step again from what is durable (`step_of`): work that was under way is begun anew. Work for which
the disk has no room is tried again until it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.records import ENDED
from sojourn.node.table import Table

if TYPE_CHECKING:
    from coordinator.state import JobState
    from sojourn.protocol.wire import JobStatus

JOB = Table(
    "job",
    {
        ("queued", "its turn"): "compiling",
        ("queued", "its turn again"): "planning",
        ("queued", "stop"): "stopped",
        ("compiling", "compiled"): "planning",
        ("compiling", "no room"): "compiling",
        ("compiling", "work failed"): "refused",
        ("compiling", "stop"): "stopped",
        # No round is under way, and one is being planned: the first, or one for which devices were lacking.
        ("planning", "planned"): "touring",
        ("planning", "devices lacking"): "waiting",
        ("planning", "no room"): "planning",
        ("planning", "work failed"): "refused",
        ("planning", "stop"): "stopped",
        # Devices take only what an operator signed, and nothing was, or it has ended, or is for fewer rounds.
        ("planning", "signature lacking"): "unsigned",
        ("planning next", "signature lacking"): "unsigned",
        ("unsigned", "signed"): "waiting",
        ("unsigned", "stop"): "stopped",
        ("waiting", "plan again"): "planning",
        ("waiting", "timeout"): "failed",
        ("waiting", "rounds failed"): "failed",
        ("waiting", "stop"): "stopped",
        # Tours are out. A site that is lost is waited for, or its tour is led by another site or given up.
        ("touring", "tour home"): "touring",
        ("touring", "site lost"): "touring",
        ("touring", "leg home"): "passing",
        ("touring", "all home"): "closing",
        ("touring", "stop"): "stopped",
        # What a leg brought home becomes what the next one departs with.
        ("passing", "leg passed"): "touring",
        ("passing", "no room"): "passing",
        ("passing", "work failed"): "refused",
        ("passing", "stop"): "stopped",
        # The round's tours become the next model, or an estimation's answers what is known of devices.
        ("closing", "round closed"): "planning next",
        ("closing", "devices estimated"): "planning next",
        # No visit counted: the job waits, and then the same round is planned again.
        ("closing", "round failed"): "waiting",
        ("closing", "no room"): "closing",
        ("closing", "work failed"): "refused",
        ("closing", "stop"): "stopped",
        ("planning next", "planned"): "touring",
        ("planning next", "devices lacking"): "waiting",
        ("planning next", "complete"): "done",
        ("planning next", "no room"): "planning next",
        ("planning next", "work failed"): "refused",
        ("planning next", "stop"): "stopped",
        # Operators may stop a job at any time.
        ("done", "stop"): "done",
        ("stopped", "stop"): "stopped",
        ("refused", "stop"): "refused",
        ("failed", "stop"): "failed",
        # They may also have one go on that is over: it waits for its turn again, with all that it has.
        ("done", "continue"): "queued",
        ("stopped", "continue"): "queued",
        ("refused", "continue"): "queued",
        ("failed", "continue"): "queued",
    },
    start="queued",
    ends=frozenset(ENDED),
    reopen=frozenset({"continue"}),
)

STATUS: dict[str, JobStatus] = {
    "queued": "queued",
    "compiling": "compiling",
    "planning": "waiting",
    "waiting": "waiting",
    "unsigned": "waiting",
    "touring": "running",
    "passing": "running",
    "closing": "running",
    "planning next": "running",
    "done": "done",
    "stopped": "stopped",
    "refused": "refused",
    "failed": "failed",
}
"""What a job's state and its operators call each step."""

WORK = {"compiling": "prepare", "planning": "plan", "planning next": "plan", "passing": "pass", "closing": "close"}
"""The steps in which work is done for the job, and what that work is called."""


def step_of(state: JobState) -> str:
    """The step that a job is at after a restart, before anything is done for it."""
    if state.status == "running":
        return "touring" if state.tours else "planning next"
    return state.status
