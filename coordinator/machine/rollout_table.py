"""A rollout as a table: which state follows which event. `rollouts` takes every step through it.

A line's next rollout starts from the beginning again; what is undone stays undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.node.table import Table

if TYPE_CHECKING:
    from sojourn.protocol.release import RolloutStatus

ROLLOUT = Table(
    "rollout",
    {
        # The devices of a stage get the order, and install the release. Where one complains alone, or all are silent,
        # others are asked besides.
        ("staging", "next stage"): "staging",
        ("staging", "stage answered"): "soaking",
        ("staging", "others asked"): "staging",
        ("staging", "nobody answered"): "paused",
        ("staging", "unwell, undo"): "rolling-back",
        ("staging", "unwell, halt"): "halted",
        ("staging", "pause"): "paused",
        ("staging", "resume"): "staging",
        ("staging", "rollback"): "rolling-back",
        # All that answered serve it, or too few complain; it must stay well for as long as the rules say. Who complains
        # still when it was is set aside.
        ("soaking", "next stage"): "staging",
        ("soaking", "answers lacking"): "staging",
        ("soaking", "others asked"): "staging",
        ("soaking", "set aside"): "soaking",
        ("soaking", "nobody answered"): "paused",
        ("soaking", "unwell, undo"): "rolling-back",
        ("soaking", "unwell, halt"): "halted",
        ("soaking", "all served"): "done",
        ("soaking", "pause"): "paused",
        ("soaking", "resume"): "soaking",
        ("soaking", "rollback"): "rolling-back",
        ("paused", "pause"): "paused",
        ("paused", "resume"): "staging",
        ("paused", "rollback"): "rolling-back",
        ("halted", "rollback"): "rolling-back",
        ("done", "rollback"): "rolling-back",
        ("rolling-back", "all back"): "rolled-back",
        ("rolling-back", "rollback"): "rolling-back",
        ("rolled-back", "rollback"): "rolled-back",
    },
    start="staging",
    ends=frozenset({"rolled-back"}),
)

STATUS: dict[str, RolloutStatus] = {
    "staging": "running",
    "soaking": "running",
    "paused": "paused",
    "halted": "halted",
    "done": "done",
    "rolling-back": "rolling-back",
    "rolled-back": "rolled-back",
}
"""What a line's state and its operators call each state of the table."""


def step_of(status: RolloutStatus) -> str:
    """The state that a rollout is in after a restart: a stage that soaked soaks anew."""
    return "staging" if status == "running" else status
