"""The visit that a device works on: the part of it that is not durable, because a restart finds it out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from edge_agent.visit_table import DEVICE_VISIT, DeviceVisitState
from sojourn.node.machine import Send
from sojourn.protocol.limits import MOST, SHORTEST
from sojourn.protocol.messages import Progress
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from edge_agent.records import HeldVisit, Key
    from edge_agent.visit_table import DeviceVisitEvent
    from sojourn.about import About
    from sojourn.node.machine import Effect
    from sojourn.protocol.messages import Visit

PROGRESS_PAUSE = 1.0
"""Seconds between two signs of life, where the lease does not ask for more of them."""


@dataclass(slots=True)
class ActiveVisit:
    """A visit that is fetched, waits or is trained."""

    key: Key
    held: HeldVisit
    news_at: float
    """When it got on last: a blob came, or a step was made."""
    next_progress: float | None
    """When to give the next sign of life."""
    lacking: set[bytes]
    state: DeviceVisitState = DeviceVisitState.NEW
    patience: float = 0.0
    """Until when it waits, all fetched, for earlier results of its job to be answered."""
    restarts: int = 0
    progress: tuple[int, int] = (0, 0)
    """The step of training, and of how many."""

    @property
    def order(self) -> Visit:
        """What is to be done."""
        return self.held.order

    @property
    def edge(self) -> Address:
        """Who asked for it."""
        return Address("edge", self.held.source)

    @property
    def about(self) -> About:
        """For the log."""
        return self.order.id.about(site=self.held.source)

    def step(self, event: DeviceVisitEvent) -> DeviceVisitState:
        """Go to the state that follows."""
        self.state = cast("DeviceVisitState", DEVICE_VISIT.step(self.state, event))  # the table has no others
        return self.state

    def sign_of_life(self, now: float) -> list[Effect]:
        """Tell the edge server how far it is, unless nothing has got on for so long that the lease should run out."""
        if now - self.news_at > self.order.lease:
            self.next_progress = None
            return []
        self.next_progress = now + max(SHORTEST, min(PROGRESS_PAUSE, self.order.lease / 4))
        stage = "training" if self.state == DeviceVisitState.TRAINING else "fetching"
        return [Send(self.edge, Progress(self.order.id, stage, *(min(each, MOST) for each in self.progress)))]  # type: ignore[arg-type]
