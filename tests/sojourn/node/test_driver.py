"""A coordinator with a full disk answers operators, and processes everything else in order once there is room."""

from __future__ import annotations

from typing import Any

from coordinator.machine.coordinator import Coordinator
from sojourn.errors import DiskFull
from sojourn.node.driver import Driver
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.messages import Birth
from sojourn.protocol.operator_messages import Inspect, Jobs, Refused, Stop, Submit
from sojourn.protocol.topics import Address
from sojourn.store.journal import MemoryStore
from tests.coordinator.machine.cloud_bench import text
from tests.sojourn.node.test_node import EPOCH, FLEET, Bed

OPERATOR = Address("cloud", "operator")


class FullStore(MemoryStore):
    """A store that cannot write until there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def append(self, record: bytes, *, sync: bool = False) -> None:
        if self.full:
            raise DiskFull("writing journal: the disk is full; free some space to continue")
        super().append(record, sync=sync)


class FullBed(Bed):
    """A coordinator and its driver. `pauses` are the actions in each pause while the disk is full."""

    def __init__(self) -> None:
        self.full, self.pauses = FullStore(), list[Any]()
        super().__init__(Coordinator("c"), self.full, lambda _seconds: self.pauses.pop(0)())
        self.driver = Driver(self.node)

    def ask(self, message) -> None:
        topic = topics.inbox(FLEET, self.node.address, "operator")
        self.driver.arrived(self.wire, topic, pack(Packet(1, EPOCH, message)))

    def here(self, *sites: str) -> None:
        for site in sites:
            self.driver.arrived(self.wire, topics.state(FLEET, Address("edge", site)), pack(Packet(1, EPOCH, Birth())))

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.driver._step()

    def answers(self) -> list[Any]:
        return self.wire.messages(self.node.address)

    def room(self) -> None:
        self.full.full = False


def test_full_disk_is_reported_to_operators_until_freed() -> None:
    bed = FullBed()
    bed.full.full = True
    bed.pauses = [lambda: bed.ask(Inspect("a")), lambda: bed.ask(Submit("b", text("other"))), bed.room]
    bed.ask(Submit("first", text()))
    bed.steps(1)
    asked, submitted, done = [it for it in bed.answers() if isinstance(it, Refused | Jobs)]
    assert isinstance(asked, Refused)
    assert isinstance(submitted, Refused)
    assert (asked.ticket, submitted.ticket) == ("a", "b")
    assert asked.reason.startswith("the disk of coordinator 'c' is full")
    assert "Free disk space on that machine, then try again" in asked.reason
    assert (type(done), done.ticket) == (Jobs, "first")
    assert set(bed.machine.state.jobs) == {"job"}


def test_events_during_full_disk_run_in_order_afterwards() -> None:
    bed = FullBed()
    bed.full.full = True
    bed.pauses = [lambda: bed.here("s0", "s1", "s2"), bed.room]
    bed.ask(Submit("first", text()))
    bed.steps(1)
    assert bed.machine.sites.alive == frozenset()
    bed.ask(Stop("later", "job"))
    bed.steps(3)
    assert bed.machine.sites.alive == {"s0", "s1", "s2"}
    bed.steps(1)
    assert bed.machine.state.jobs["job"].status == "stopped"
    assert bed.driver._waiting == 0
