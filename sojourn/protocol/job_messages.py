"""What operators ask of a coordinator about jobs, since 0.4.0: more rounds, removal, and a job's file."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Bytes, Label, Name, Number, Portion

JobFileText = Annotated[str, msgspec.Meta(max_length=50_000)]
"""The text of a job file."""


class Continue(msgspec.Struct, frozen=True, tag="continue", tag_field="kind"):
    """Let a job have so many rounds in all, or another target; one that is over goes on. Answered by `jobs`."""

    ticket: Name
    job: Name
    rounds: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | msgspec.UnsetType = msgspec.UNSET
    """How many in all; unset: as many as before."""
    target: Portion | msgspec.UnsetType = msgspec.UNSET
    """The accuracy that ends the job; 0: none; unset: as before."""
    goal: Label | msgspec.UnsetType = msgspec.UNSET
    """Another figure that ends it, such as `rmse <= 0.5`; it counts in place of `target`. Unset before 0.7.0."""
    devices: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | msgspec.UnsetType = msgspec.UNSET
    """How many devices must be connected before the first round; unset: as many as before."""


class Remove(msgspec.Struct, frozen=True, tag="remove", tag_field="kind"):
    """Forget a job that is over, with its models."""

    ticket: Name
    job: Name


class Removed(msgspec.Struct, frozen=True, tag="removed", tag_field="kind"):
    """The answer to `remove`: how many blobs no other job has, and their bytes."""

    ticket: Name
    job: Name
    blobs: Number
    freed: Bytes


class ReadJob(msgspec.Struct, frozen=True, tag="read-job", tag_field="kind"):
    """Tell a job's file."""

    ticket: Name
    job: Name


class JobText(msgspec.Struct, frozen=True, tag="job-text", tag_field="kind"):
    """The answer to `read-job`: the text of the job file, as the coordinator has it now."""

    ticket: Name
    job: Name
    text: JobFileText
