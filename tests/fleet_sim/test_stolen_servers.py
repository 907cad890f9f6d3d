"""Stolen coordinator and edge servers with all their stores: devices do only what was signed.

The attacker runs the real machines with the changes made here; the devices are unchanged, with operators' keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.console.signing import Terms, mandate_for
from coordinator.jobs.settings import read_job
from coordinator.machine.authorization import Trust
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import BEST_ONLY
from coordinator.machine.mandates import MandateRules
from edge_agent.agent import Agent
from edge_agent.mandates import Mandates
from edge_agent.training.objectives import NAMES
from fleet_sim.world.memory_fleet import CLOUD, FLEET
from sojourn.links.memory import MemoryLink
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.mandates import SignedMandate, SignJob, Withdrawal, WithdrawJob, sign_mandate, sign_withdrawal
from sojourn.protocol.operator_messages import Continue, Submit
from sojourn.protocol.task import ABILITIES, MANDATE
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
    """A thief's version of the rules: every job is sent."""

    def missing_signature(self, durable: Any, state: Any, now: float) -> None:
        """Return that nothing is missing."""


class GuardedFleet(SmallFleet):
    """Devices trust ann; the coordinator requires her mandates, or whatever its thief sets."""

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
        # A thief's coordinator also asks devices that do not advertise that they require a mandate.
        words = ABILITIES if self.stolen else (*ABILITIES, MANDATE)
        offer = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", SHARES, words)
        agent = Agent(name, offer, mandates=Mandates(FLEET, KEYS, frozenset({site}), self.clock))
        node = self._node(agent, {"edge": MemoryLink(broker)}, lambda store: SlowTraining(self, name, store.blobs))
        node.on_record(lambda record: self._finished(name, record))
        return node

    def sign(self, text: str, by: str = "ann", **changes: Any) -> SignedMandate:
        """Sign the job in this text as an operator does, once it is compiled."""
        kit = self.job("job").kit
        assert kit is not None
        job = read_job(text, "job")
        it = mandate_for(job, kit_of_jobs(), kit.digest, Terms("ann", DAY), fleet=FLEET, now=self.clock(), after=0)
        return sign_mandate(msgspec.structs.replace(it, **changes), key_of(by))

    def steal_with(self, mandate: SignedMandate) -> None:
        """Insert an unchecked mandate into the coordinator's store, as a thief could."""
        self.job("job").mandate = mandate

    @property
    def trained(self) -> int:
        return sum(self.ledger.begun.values())

    @property
    def reasons(self) -> str:
        state = self.job("job")
        return " | ".join([*(line for it in state.history for line in it.failures), *state.unestimated])


def begun(text: str, *, stolen: bool = False) -> GuardedFleet:
    fleet = GuardedFleet(stolen=stolen)
    fleet.submit(text)
    fleet.run("job", 1.0)
    return fleet


def _let_go(fleet: GuardedFleet, text: str | None = fedavg()) -> None:
    """Give the job all its devices, and run it for a while."""
    if text is not None:
        fleet.job("job").text = text
    fleet.world.run(lambda: False, fleet.world.now + 2000.0)


def test_signed_job_runs_to_its_end_including_estimations() -> None:
    fleet = begun(visit())
    assert "waiting for a signature" in fleet.job("job").detail
    fleet.ask(SignJob("s", fleet.sign(visit())))
    state = fleet.run("job")
    assert (state.status, len(state.history), fleet.reasons) == ("done", 2, "")
    assert fleet.trained > 4


def test_no_device_trains_without_a_mandate() -> None:
    fleet = begun(fedavg(), stolen=True)
    fleet.run("job", 2000.0)
    assert fleet.trained == 0
    assert "no mandate: this device accepts only jobs that an operator signed" in fleet.reasons


def test_mandate_signed_with_an_untrusted_key_is_refused() -> None:
    fleet = GuardedFleet(stolen=True)
    fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))  # it waits for devices, and is compiled
    fleet.run("job", 1.0)
    fleet.steal_with(fleet.sign(fedavg(), by="thief"))
    _let_go(fleet)
    assert fleet.trained == 0
    assert "not signed with the key of a trusted operator" in fleet.reasons


def test_stolen_coordinator_cannot_widen_a_mandate() -> None:
    for changes, why in (
        ({"training__epochs": 40}, "training.epochs 40, not 1"),
        ({"training__batch": 1}, "training.batch 1, not 16"),
        ({"objective__name": "prox"}, "this task was not signed"),
        ({"rounds": 9}, "the mandate ends with round 2"),
    ):
        fleet = GuardedFleet(stolen=True)
        fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
        fleet.run("job", 1.0)
        fleet.steal_with(fleet.sign(fedavg()))
        fleet.job("job").text = fedavg(**changes)
        _let_go(fleet, text=None)
        assert {key.split("/")[1] for _, key in fleet.ledger.begun} == ({"1", "2"} if "rounds" in changes else set())
        assert why in fleet.reasons


def test_mandate_for_another_kit_fleet_or_site_is_refused() -> None:
    for changes, why, runs in (
        ({"kit": bytes(32)}, "it is for another kit", 0),
        ({"fleet": "other"}, "the mandate is for the fleet 'other'", 0),
        ({"sites": ("site-a",)}, "the mandate is for site-a; the order came from site-b", 4),
    ):
        fleet = GuardedFleet(stolen=True)
        fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
        fleet.run("job", 1.0)
        fleet.steal_with(fleet.sign(fedavg(), **changes))
        _let_go(fleet)
        assert why in fleet.reasons
        assert fleet.trained == runs
        assert {device for device, _ in fleet.ledger.begun} <= {"dev-0", "dev-1"}


def test_expired_mandate_cannot_be_replayed() -> None:
    fleet = GuardedFleet(stolen=True)
    fleet.ask(Submit("ticket", fedavg(fleet__devices=5)))
    fleet.run("job", 1.0)
    fleet.steal_with(fleet.sign(fedavg()))
    fleet.ahead = DAY
    _let_go(fleet)
    assert fleet.trained == 0
    assert "expired" in fleet.reasons


def test_withdrawn_job_stays_stopped_even_with_stolen_stores() -> None:
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
    machine_of(fleet, CLOUD, Coordinator).state.withdrawals = {}  # the thief drops it
    fleet.kill(CLOUD)
    fleet.start(CLOUD)
    machine_of(fleet, CLOUD, Coordinator).state.withdrawals = {}
    fleet.job("job").mandate = mandate
    fleet.ask(Continue("continue", "job", 8, 0.0))
    fleet.run("job", 1000.0)
    assert fleet.trained == before
    assert "withdrawn by ann" in fleet.reasons
