"""The states of a visit on a device, and the visit that the device works on now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from edge_agent.records import HeldVisit, Key
from sojourn.logs import About
from sojourn.node.machine import Effect, Send
from sojourn.node.table import Table
from sojourn.protocol.limits import MAX_COUNT, SHORTEST
from sojourn.protocol.messages import Progress, Visit
from sojourn.protocol.topics import Address

# The states of a visit on a device, from the order to the edge server's final reply, and the transitions between them.
#
# Edge servers repeat messages, and messages may arrive late, so every message has a row in every state. After a restart
# the device starts untrained visits again and keeps waiting for replies to its results. A device that lost the record
# of a result starts that visit again, too, until the edge server reports that the result was accepted.


class DeviceVisitState(StrEnum):
    """The state of a visit on the device."""

    NEW = "new"
    """The device has no record of it."""
    FETCHING = "fetching"
    """Its kit and vectors are being fetched."""
    WAITING = "waiting"
    """All inputs are available; earlier results of its job, or the trial of a release, must end first."""
    TRAINING = "training"
    TRAINED = "trained"
    """The result is stored and offered until the edge server replies."""
    DECLINED = "declined"
    """It was started and declined; the refusal is kept so that it can be sent again."""
    OVER = "over"
    """Only its attempt number is stored, so that it is not taken again."""


class DeviceVisitEvent(StrEnum):
    """An event of a visit on a device."""

    TAKEN = "taken"
    REFUSED = "refused"
    """Not taken: the device is busy, the owner's limits object, or the task is not supported."""
    ASKED_AGAIN = "asked again"
    ACCEPTED = "accepted"
    DISCARDED = "discarded"
    """Discarded or cancelled by the edge server."""
    SUPERSEDED = "superseded"
    """The edge server ordered a later attempt, or a visit of a later round."""
    UNSUPPORTED = "unsupported"
    """After a restart with other settings, the owner no longer allows its task."""
    MANDATE_OVER = "mandate over"
    """The mandate for its job has expired or was withdrawn."""
    ALL_FETCHED = "all fetched"
    PULL_FAILED = "pull failed"
    UNBLOCKED = "unblocked"
    """The result or the trial that it waited for has ended."""
    DONE = "done"
    WORKER_DIED = "worker died"
    """The training process failed, and the visit is started once more."""
    NOT_DONE = "not done"
    """Training ended with a reason, or failed too often."""
    CROWDED_OUT = "crowded out"
    """Too many results, or a newer refusal, wait for an edge server's reply."""
    UNANSWERED = "unanswered"
    """No reply came within the time that the next visit of the job waits for it."""


At, On = DeviceVisitState, DeviceVisitEvent
DEVICE_VISIT = Table(
    "visit on a device",
    {
        (At.NEW, On.TAKEN): At.FETCHING,
        (At.NEW, On.REFUSED): At.NEW,
        (At.NEW, On.ACCEPTED): At.NEW,
        (At.NEW, On.DISCARDED): At.NEW,
        (At.FETCHING, On.ALL_FETCHED): At.WAITING,
        (At.FETCHING, On.PULL_FAILED): At.DECLINED,
        (At.FETCHING, On.UNSUPPORTED): At.DECLINED,
        (At.FETCHING, On.ASKED_AGAIN): At.FETCHING,
        (At.FETCHING, On.ACCEPTED): At.OVER,
        (At.FETCHING, On.DISCARDED): At.OVER,
        (At.FETCHING, On.SUPERSEDED): At.OVER,
        (At.FETCHING, On.MANDATE_OVER): At.DECLINED,
        (At.WAITING, On.MANDATE_OVER): At.DECLINED,
        (At.TRAINING, On.MANDATE_OVER): At.DECLINED,
        (At.TRAINED, On.MANDATE_OVER): At.OVER,
        (At.WAITING, On.UNBLOCKED): At.TRAINING,
        (At.WAITING, On.ASKED_AGAIN): At.WAITING,
        (At.WAITING, On.ACCEPTED): At.OVER,
        (At.WAITING, On.DISCARDED): At.OVER,
        (At.WAITING, On.SUPERSEDED): At.OVER,
        (At.TRAINING, On.DONE): At.TRAINED,
        (At.TRAINING, On.WORKER_DIED): At.TRAINING,
        (At.TRAINING, On.NOT_DONE): At.DECLINED,
        (At.TRAINING, On.ASKED_AGAIN): At.TRAINING,
        (At.TRAINING, On.ACCEPTED): At.OVER,
        (At.TRAINING, On.DISCARDED): At.OVER,
        (At.TRAINING, On.SUPERSEDED): At.OVER,
        (At.TRAINED, On.ACCEPTED): At.OVER,
        (At.TRAINED, On.DISCARDED): At.OVER,
        (At.TRAINED, On.ASKED_AGAIN): At.TRAINED,
        (At.TRAINED, On.SUPERSEDED): At.OVER,
        (At.TRAINED, On.CROWDED_OUT): At.OVER,
        (At.TRAINED, On.UNANSWERED): At.OVER,
        (At.DECLINED, On.ASKED_AGAIN): At.DECLINED,
        (At.DECLINED, On.ACCEPTED): At.DECLINED,
        (At.DECLINED, On.DISCARDED): At.DECLINED,
        (At.DECLINED, On.CROWDED_OUT): At.OVER,
        (At.OVER, On.ASKED_AGAIN): At.OVER,
        (At.OVER, On.ACCEPTED): At.OVER,
        (At.OVER, On.DISCARDED): At.OVER,
    },
    start=At.NEW,
    ends=frozenset({At.OVER}),
)


PROGRESS_PAUSE = 1.0
"""Seconds between two progress reports, unless the lease requires more frequent ones."""


@dataclass(slots=True)
class ActiveVisit:
    """The visit that is being fetched, waits or is being trained."""

    key: Key
    held: HeldVisit
    news_at: float
    """When it last made progress: a blob arrived, or a step was made."""
    next_progress: float | None
    """When to send the next progress report."""
    lacking: set[bytes]
    state: DeviceVisitState = DeviceVisitState.NEW
    deadline: float = 0.0
    """When to stop waiting for replies to earlier results of its job."""
    restarts: int = 0
    progress: tuple[int, int] = (0, 0)
    """The training step, and the number of steps."""

    @property
    def order(self) -> Visit:
        """The order of the visit."""
        return self.held.order

    @property
    def edge(self) -> Address:
        """The edge server that ordered it."""
        return Address("edge", self.held.source)

    @property
    def about(self) -> About:
        """The subject of its log lines."""
        return self.order.id.about(site=self.held.source)

    def step(self, event: DeviceVisitEvent) -> DeviceVisitState:
        """Change to the state that follows the event, and return it."""
        self.state = DEVICE_VISIT.step(self.state, event)
        return self.state

    def report_progress(self, now: float) -> list[Effect]:
        """Send the progress to the edge server; without any progress during a lease, let the lease expire."""
        if now - self.news_at > self.order.lease:
            self.next_progress = None
            return []
        self.next_progress = now + max(SHORTEST, min(PROGRESS_PAUSE, self.order.lease / 4))
        stage = "training" if self.state == DeviceVisitState.TRAINING else "fetching"
        return [Send(self.edge, Progress(self.order.id, stage, *(min(each, MAX_COUNT) for each in self.progress)))]  # type: ignore[arg-type]
