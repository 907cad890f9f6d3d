"""A rollout is its table: every row is reached, and nothing that may be sent leads out of it."""

from __future__ import annotations

import random

import pytest

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.rollout_table import ROLLOUT, STATUS, step_of
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import Present
from sojourn.protocol.release import HealthRules
from tests.coordinator.machine.cloud_bench import BOOT, BORN, DEAD, site
from tests.coordinator.machine.rollout_bench import RolloutBench
from tests.sojourn.node.table_rows import rows_taken

DEVICES = tuple(f"d{number}" for number in range(5))


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The rows of the table that are taken during a test."""
    return rows_taken(monkeypatch, ROLLOUT)


class Anything(RolloutBench):
    """A coordinator to whose rollout anything happens that devices, sites, operators and time can do, in any order."""

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
        soak, patience = self.draw.choice([0.0, 5.0]), self.draw.choice([7.0, 50.0])
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
                patience=patience,
                failures=self.draw.choice([0.0, 0.5, 1.0]),
                quorum=self.draw.choice([1, 2, 2, 3]),
            ),
        )
        if self.line().ticket == f"t{self.tickets}":
            self.serial += 2

    def reported(self) -> None:
        state = self.draw.choice(["fetching", "checking", *["serving"] * 6, "failed", "fell-back", "withdrawn"])
        line = self.line()
        serial = self.draw.choice([line.cargo.read.serial] * 6 + [line.back.read.serial, self.serial + 1])
        self.report(self.draw.choice(list(line.members) or DEVICES), serial, line.cargo.read.version, state)

    def waited(self) -> None:
        self.wait(self.draw.choice([0.5, 3.0, 6.0, 20.0]))

    def steered(self) -> None:
        self.tickets += 1
        self.steer(self.draw.choice(["pause", "resume", "rollback"]), f"s{self.draw.randint(1, self.tickets)}")

    def came(self) -> None:
        self.revision += 1
        self.join("s0", tuple(self.draw.sample(DEVICES, self.draw.randint(0, 4))), revision=self.revision)

    def went(self) -> None:
        self.tell(Present(site("s0"), BOOT, self.draw.choice([BORN, DEAD])))


RARE = {("soaking", "nobody answered")}
"""What hardly ever happens by chance has a test of its own."""


def test_in_any_order_only_rows_of_the_table_are_taken_and_every_one_is(reached) -> None:
    for seed in range(150):
        anything = Anything(seed)
        for _ in range(100):
            anything.happen()
            for line in anything.cloud.state.lines.values():
                assert STATUS[anything.cloud._rollouts._progress[line.line].step] == line.status
    assert set(ROLLOUT.rows) - reached <= RARE


def test_devices_that_all_leave_for_a_newer_order_while_a_stage_soaks_pause_it(reached) -> None:
    it = RolloutBench(DEVICES[:1])
    it.begin(stages=(1.0,), rules=HealthRules(soak=10.0, patience=5.0, failures=1.0))
    it.report(DEVICES[0], 1)
    it.wait(6)
    it.report(DEVICES[0], 7, 3, "fetching")
    assert (it.line().status, it.line().detail) == ("paused", "no device of stage 1 answered within 5 s")
    assert reached >= RARE


def test_a_status_for_every_state_and_a_state_for_every_status() -> None:
    assert set(STATUS) == set(ROLLOUT.states)
    assert {step_of(status) for status in STATUS.values()} == set(ROLLOUT.states) - {"soaking"}


def test_what_the_table_does_not_have_is_an_error_by_name() -> None:
    it = RolloutBench(DEVICES)
    it.begin()
    it.steer("pause")
    with pytest.raises(UnexpectedEvent, match="rollout: all served while paused"):
        it.cloud._rollouts.turn(it.line(), "all served", "", it.now)
