"""A coordinator and edge servers in an attacker's hands, with all their stores: devices do what was signed, no more.

The attacker runs the real machines with whatever is changed here; the devices are as they are, with operators' keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.jobs.settings import read_job
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_rounds import BEST_ONLY
from coordinator.machine.mandate_rules import MandateRules
from coordinator.machine.trust import Trust
from coordinator.rounds.mandate_terms import Terms, mandate_for
from edge_agent.agent import Agent
from edge_agent.mandates import Mandates
from edge_agent.training.objectives import NAMES
from fleet_sim.world.memory_fleet import CLOUD, FLEET
from sojourn.links.memory import MemoryLink
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.abilities import ABILITIES, MANDATE
from sojourn.protocol.job_messages import Continue
from sojourn.protocol.mandate import SignedMandate, Withdrawal, sign_mandate, sign_withdrawal
from sojourn.protocol.mandate_messages import SignJob, WithdrawJob
from sojourn.protocol.messages import Submit
from sojourn.protocol.wire import Offer
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import SHARES, OnceBench, SlowTraining, SmallFleet, fedavg, kit_of_jobs, visit
from tests.sojourn.protocol.mandates import DAY, NOW, key_of

if TYPE_CHECKING:
    from sojourn.data.source import DataSettings
    from sojourn.links.memory import MemoryBroker
    from sojourn.node.node import Node

SITES = {"site-a": ("dev-0", "dev-1"), "site-b": ("dev-2", "dev-3")}
KEYS = {key_of("ann").public: "ann"}


class Careless(MandateRules):
    """What a thief makes of the rules: every job goes out."""

    def lacking(self, durable: Any, state: Any, now: float) -> None:
        """Nothing is ever lacking."""


class GuardedFleet(SmallFleet):
    """Devices trust ann; the coordinator demands mandates of hers, or whatever its thief wants."""

    def __init__(self, *, stolen: bool = False) -> None:
        self.stolen, self.ahead = stolen, 0.0
        super().__init__(SITES)

    def clock(self) -> float:
        return NOW + self.world.now + self.ahead

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker)
        keys = {} if self.stolen else KEYS
        machine = Coordinator(CLOUD, fleet=FLEET, keep=BEST_ONLY, trust=Trust(mandate_keys=keys), wall=NOW)
        if self.stolen:
            machine._queue._mandates = Careless()
        return self._node(machine, {"edge": link, "cloud": link}, lambda store: InlineWorkers(OnceBench(store.blobs)))

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        site = next(site for site, devices in SITES.items() if name in devices)
        # A thief's coordinator asks also those that do not say that they demand a mandate.
        words = ABILITIES if self.stolen else (*ABILITIES, MANDATE)
        offer = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", SHARES, words)
        agent = Agent(name, offer, mandates=Mandates(FLEET, KEYS, frozenset({site}), self.clock))
        node = self._node(agent, {"edge": MemoryLink(broker)}, lambda store: SlowTraining(self, name, store.blobs))
        node.on_record(lambda record: self._finished(name, record))
        return node

    def sign(self, text: str, by: str = "ann", **changes: Any) -> SignedMandate:
        """What an operator signs for the job in this text, when it is compiled."""
        kit = self.job("job").kit
        assert kit is not None
        job = read_job(text, "job")
        it = mandate_for(job, kit_of_jobs(), kit.digest, Terms("ann", DAY), fleet=FLEET, now=self.clock(), after=0)
        return sign_mandate(msgspec.structs.replace(it, **changes), key_of(by))

    def steal_with(self, mandate: SignedMandate) -> None:
        """Whoever has the coordinator's store puts a mandate into it that nobody checked."""
        self.job("job").mandate = mandate

    @property
    def trained(self) -> int:
        return sum(self.ledger.begun.values())

    @property
    def reasons(self) -> str:
        state = self.job("job")
        return " | ".join([*(line for it in state.history for line in it.failures), *(state.unestimated or ())])


def begun(text: str, *, stolen: bool = False) -> GuardedFleet:
    fleet = GuardedFleet(stolen=stolen)
    fleet.submit(text)
    fleet.run("job", 1.0)
    return fleet


def _let_go(fleet: GuardedFleet, text: str | None = fedavg()) -> None:
    """The job has as many devices as it wants, and goes on for a while."""
    if text is not None:
        fleet.job("job").text = text
    fleet.world.run(lambda: False, fleet.world.now + 2000.0)


def test_a_job_that_ann_signed_is_done_to_its_end_estimations_and_all() -> None:
    fleet = begun(visit())
    assert "waiting for a signature" in fleet.job("job").detail
    fleet.ask(SignJob("s", fleet.sign(visit())))
    state = fleet.run("job")
    assert (state.status, len(state.history), fleet.reasons) == ("done", 2, "")
    assert fleet.trained > 4


def test_without_a_mandate_no_device_runs_a_graph() -> None:
    fleet = begun(fedavg(), stolen=True)
    fleet.run("job", 2000.0)
    assert fleet.trained == 0
    assert "no mandate: this device does only what an operator signed" in fleet.reasons


def test_a_thief_signs_with_a_key_that_no_device_knows() -> None:
    fleet = GuardedFleet(stolen=True)
    fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))  # it waits for devices, and is compiled
    fleet.run("job", 1.0)
    fleet.steal_with(fleet.sign(fedavg(), by="thief"))
    _let_go(fleet)
    assert fleet.trained == 0
    assert "not signed with a key of an operator whom this device trusts" in fleet.reasons


def test_a_mandate_is_not_widened_by_what_the_coordinator_asks() -> None:
    for changes, why in (
        ({"training__epochs": 40}, "training.epochs 40, not 1"),
        ({"training__batch": 1}, "training.batch 1, not 16"),
        ({"objective__name": "prox"}, "this task was not signed"),
        ({"rounds": 9}, "it ends with round 2"),
    ):
        fleet = GuardedFleet(stolen=True)
        fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
        fleet.run("job", 1.0)
        fleet.steal_with(fleet.sign(fedavg()))
        fleet.job("job").text = fedavg(**changes)
        _let_go(fleet, text=None)
        assert {key.split("/")[1] for _, key in fleet.ledger.begun} == ({"1", "2"} if "rounds" in changes else set())
        assert why in fleet.reasons


def test_a_mandate_for_another_kit_another_fleet_or_another_site_is_worth_nothing() -> None:
    for changes, why, runs in (
        ({"kit": bytes(32)}, "it is for another kit", 0),
        ({"fleet": "other"}, "it is for the fleet 'other'", 0),
        ({"sites": ("site-a",)}, "it is for site-a, and not for site-b", 4),
    ):
        fleet = GuardedFleet(stolen=True)
        fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
        fleet.run("job", 1.0)
        fleet.steal_with(fleet.sign(fedavg(), **changes))
        _let_go(fleet)
        assert why in fleet.reasons
        assert fleet.trained == runs
        assert {device for device, _ in fleet.ledger.begun} <= {"dev-0", "dev-1"}


def test_a_mandate_cannot_be_played_again_after_its_end() -> None:
    fleet = GuardedFleet(stolen=True)
    fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
    fleet.run("job", 1.0)
    fleet.steal_with(fleet.sign(fedavg()))
    fleet.ahead = DAY
    _let_go(fleet)
    assert fleet.trained == 0
    assert "its time is over" in fleet.reasons


def test_what_was_withdrawn_is_not_done_again_though_the_thief_has_all_stores() -> None:
    fleet = begun(fedavg(rounds=8))
    mandate = fleet.sign(fedavg(rounds=8))
    fleet.ask(SignJob("s", mandate))
    fleet.world.run(lambda: bool(fleet.job("job").history), 1000.0)
    it = Withdrawal(
        fleet=FLEET, job="job", serial=int(1000 * fleet.clock()), operator="ann", issued=NOW, ends=NOW + 9 * DAY
    )
    fleet.ask(WithdrawJob("w", sign_withdrawal(it, key_of("ann"))))
    state = fleet.run("job")
    assert (state.status, state.detail) == ("stopped", "its mandate was withdrawn by ann")
    fleet.world.run(lambda: False, fleet.world.now + 60)
    for name in ("dev-0", "dev-3"):
        machine = fleet.nodes[name].node.machine
        assert isinstance(machine, Agent)
        assert (machine.state.held, machine.state.kits) == ({}, [])
        assert machine.state.mandates.held["job"].ended == "withdrawn by ann"
    before = fleet.trained
    fleet.stolen = True
    machine_of(fleet, CLOUD, Coordinator).state.withdrawals = {}  # the thief forgets it
    fleet.kill(CLOUD)
    fleet.start(CLOUD)
    machine_of(fleet, CLOUD, Coordinator).state.withdrawals = {}
    fleet.job("job").mandate = mandate
    fleet.ask(Continue("go on", "job", 8, 0.0))
    fleet.run("job", 1000.0)
    assert fleet.trained == before
    assert "withdrawn by ann" in fleet.reasons
