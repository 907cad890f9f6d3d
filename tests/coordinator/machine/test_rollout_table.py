"""The table of a rollout: every row is reached, and no message causes an event outside of it."""

from __future__ import annotations

import random

import pytest

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.rollout_progress import ROLLOUT, STATUS, RolloutEvent, RolloutProgress, RolloutStep
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import Present
from sojourn.protocol.release import HealthRules
from tests.coordinator.machine.cloud_bench import BOOT, BORN, DEAD, site
from tests.coordinator.machine.rollout_bench import RolloutBench
from tests.sojourn.node.table_rows import rows_taken

DEVICES = tuple(f"d{number}" for number in range(5))


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[tuple[RolloutStep, RolloutEvent]]:
    """Collect the rows of the table that occur during a test."""
    return rows_taken(monkeypatch, ROLLOUT)


class Anything(RolloutBench):
    """A coordinator whose rollout gets random events from devices, sites, operators and timers."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        super().__init__(DEVICES[: self.draw.randint(0, 3)], self.draw.randint(1, 2))
        self.serial, self.revision, self.tickets = 1, 1, 0

    def replayed(self, cut=0) -> Coordinator:
        return self.cloud  # a twin is compared after each step in other tests

    def happen(self) -> None:
        begun = [self.reported] * 5 + [self.waited] * 4 + [self.steered] * 2 + [self.came, self.went, self.restart]
        self.draw.choice(begun if "l" in self.cloud.state.lines else [self.begun, self.came])()
        if self.draw.random() < 0.1:
            self.begun()

    def begun(self) -> None:
        known = self.cloud.state.lines.get("l")
        soak, timeout = self.draw.choice([0.0, 5.0]), self.draw.choice([7.0, 50.0])
        version = known.forward.read.version + 1 if known else 1
        self.tickets += 1
        self.begin(
            version,
            before=known.serves.read.version if known else 0,
            serial=self.serial,
            ticket=f"t{self.tickets}",
            undo=self.draw.random() < 0.7,
            stages=self.draw.choice([(1.0,), (0.3, 1.0)]),
            rules=HealthRules(
                soak=soak,
                timeout=timeout,
                failures=self.draw.choice([0.0, 0.5, 1.0]),
                quorum=self.draw.choice([1, 2, 2, 3]),
            ),
        )
        if self.line().ticket == f"t{self.tickets}":
            self.serial += 2

    def reported(self) -> None:
        state = self.draw.choice(["fetching", "checking", *["serving"] * 6, "failed", "fell-back", "withdrawn"])
        line = self.line()
        serial = self.draw.choice([line.payload.read.serial] * 6 + [line.back.read.serial, self.serial + 1])
        self.report(self.draw.choice(list(line.members) or DEVICES), serial, line.payload.read.version, state)

    def waited(self) -> None:
        self.wait(self.draw.choice([0.5, 3.0, 6.0, 20.0]))

    def steered(self) -> None:
        self.tickets += 1
        self.steer(self.draw.choice(["pause", "resume", "rollback"]), f"s{self.draw.randint(1, self.tickets)}")

    def came(self) -> None:
        self.revision += 1
        self.join("s0", tuple(self.draw.sample(DEVICES, self.draw.randint(0, 4))), revision=self.revision)

    def went(self) -> None:
        self.handle(Present(site("s0"), BOOT, self.draw.choice([BORN, DEAD])))


RARE = {(RolloutStep.SOAKING, RolloutEvent.NO_ANSWER)}
"""Events that rarely happen by chance are tested separately."""


def test_random_events_take_only_and_all_rows_of_the_table(reached) -> None:
    for seed in range(150):
        anything = Anything(seed)
        for _ in range(100):
            anything.happen()
            for line in anything.cloud.state.lines.values():
                assert STATUS[anything.cloud._rollouts._step(line)] == line.status
    assert set(ROLLOUT.rows) - reached <= RARE


def test_rollout_pauses_if_all_devices_leave_for_newer_order(reached) -> None:
    it = RolloutBench(DEVICES[:1])
    it.begin(stages=(1.0,), rules=HealthRules(soak=10.0, timeout=5.0, failures=1.0))
    it.report(DEVICES[0], 1)
    it.wait(6)
    it.report(DEVICES[0], 7, 3, "fetching")
    assert (it.line().status, it.line().detail) == ("paused", "no device of stage 1 answered within 5 s")
    assert reached >= RARE


def test_restart_restores_every_step_but_soaking() -> None:
    it = RolloutBench(DEVICES)
    it.begin()
    for step in RolloutStep:
        it.line().status = STATUS[step]
        restored = RolloutProgress(0.0).step(it.line())
        assert restored == (RolloutStep.STAGING if step is RolloutStep.SOAKING else step)


def test_event_outside_the_table_raises_named_error() -> None:
    it = RolloutBench(DEVICES)
    it.begin()
    it.steer("pause")
    with pytest.raises(UnexpectedEvent, match="rollout: all served in state paused"):
        it.cloud._rollouts.turn(it.line(), RolloutEvent.ALL_SERVED, "", it.now)
