"""A coordinator on a bench: its work is done by hand, and a twin made of its journal is compared after each step."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.audit_records import AuditRecorded
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.records import JobCompiled, RoundClosed
from coordinator.rounds.planning import PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import Append, CancelWork, Present, Pulled, Received, StartWork, WorkDone
from sojourn.protocol.messages import Birth, Death, Presence, Roster, Toured
from sojourn.protocol.operator_messages import Submit
from sojourn.protocol.task import ABILITIES, OF_MODELS
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Offer, RoundReport, TourId
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.sojourn.store.replays import replayed

OPERATOR = Address("cloud", "operator")
BOOT = Epoch(1, b"12345678")
KIT, MODEL, EXEMPLARS, TEST, REPORTS, MEMBERS = (
    ref_of(name.encode()) for name in ("kit", "model", "exemplars", "test", "reports", "members")
)
BORN: Presence = Birth()
DEAD: Presence = Death()
OFFER = Offer("1", "m", "r", 4, 0, ("sgd",), "npz", (), tuple(it for it in ABILITIES if it not in OF_MODELS))


def site(name: str) -> Address:
    return Address("edge", name)


def text(name="job", **changes) -> str:
    lines = {"rounds": 2, "fleet.devices": 2, "tours.site_lease": 30} | changes
    return f'name = "{name}"\nstrategy = "fedavg"\ndata.test = "digits"\n' + "\n".join(
        f"{key} = {msgspec.json.encode(value).decode()}" for key, value in lines.items()
    )


def result(number: int, round_: int = 1):
    return ref_of(f"result {round_} {number}".encode(), "float32")


def is_logged(effect: Any) -> bool:
    """Whether an effect is an entry of the audit log: these are tested separately."""
    return isinstance(effect, Append) and isinstance(effect.record, AuditRecorded)


class Bench:
    """A coordinator whose every record is kept, whose work is done by hand, and whose replayed twin is compared."""

    def __init__(self) -> None:
        self.cloud = Coordinator("c")
        self.records: list[bytes] = []
        self.work: dict[str, Any] = {}

    def handle(self, event, now=0.0) -> list[Any]:
        return self.note(self.cloud.handle(event, now))

    def note(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            match effect:
                case Append():
                    self.records.append(msgspec.msgpack.encode(effect.record))
                case StartWork():
                    self.work[effect.key] = effect.work
                case CancelWork():
                    self.work.pop(effect.key, None)
        assert self.replayed().snapshot() == self.cloud.snapshot()
        return [effect for effect in effects if not is_logged(effect)]

    @property
    def changes(self) -> list[bytes]:
        """The effects' records, without those of the audit log."""
        return [record for record in self.records if b"audit-recorded/1" not in record]

    def replayed(self, cut=0) -> Coordinator:
        return replayed(Coordinator("c"), self.records, cut)

    def receive(self, sender, message, now=0.0, epoch=BOOT) -> list[Any]:
        return self.handle(Received(sender, epoch, message), now)

    def did(self, form, outcome, now=0.0) -> list[Any]:
        """Complete the pending work of this kind."""
        key = next(key for key, work in self.work.items() if isinstance(work, form))
        work = self.work.pop(key)
        return self.handle(WorkDone(key, outcome(work) if callable(outcome) else outcome), now)

    def join(self, name: str, devices=(), epoch=BOOT, revision=1, now=0.0) -> list[Any]:
        """A site is born and sends its roster."""
        self.handle(Present(site(name), epoch, Birth()), now)
        members = ref_of(f"{name} {devices} {revision}".encode())
        self.receive(site(name), Roster(revision, members), now, epoch)
        self.handle(Pulled(members.digest), now)
        listed = tuple(Member(device, epoch, OFFER) for device in devices)
        return self.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, listed), now)

    def compile(self, now=0.0, **also) -> list[Any]:
        held = {"model": MODEL}
        return self.did(PrepareJob, lambda work: JobCompiled(work.name, KIT, held, held, EXEMPLARS, TEST, **also), now)

    def plan(self, now=0.0) -> list[Any]:
        return self.did(PlanRound, lambda work: plan_round(work, MemoryBlobs()), now)

    def running(self, joined=0.0, **changes) -> list[Any]:
        """Start a job with a tour at each of two sites that connected at `joined`; return its plan's effects."""
        self.join("s1", ("a",), now=joined)
        self.join("s2", ("b",), now=joined)
        self.receive(OPERATOR, Submit("t", text(**changes)))
        self.compile()
        return self.plan()

    def trained(self) -> None:
        """Complete the first round of a job and begin the next."""
        for tour in self.cloud.state.jobs["job"].tours:
            self.toured(tour.number, tour.site)
        self.close()
        self.plan()

    def toured(self, number: int, name: str, round_=1, now=0.0) -> list[Any]:
        """Report a tour's result from its site, and fetch it."""
        ref = result(number, round_)
        self.receive(site(name), Toured(TourId("job", round_, number, 1), {"model": ref}, 5, REPORTS, 0), now)
        self.handle(Pulled(ref.digest), now)
        return self.handle(Pulled(REPORTS.digest), now)

    def close(self, now=0.0, accuracy=0.5) -> list[Any]:
        def closed(work: CloseRound):
            report = RoundReport(work.state.round, accuracy, 1.0, 2, 2, 0, 0, 1.0, {})
            return RoundClosed(work.state.name, {"model": MODEL}, {"model": MODEL}, (), report)

        return self.did(CloseRound, closed, now)


def records(effects) -> list[type]:
    return [type(effect.record) for effect in effects if isinstance(effect, Append)]


def place(effects, wanted) -> int:
    return next(at for at, effect in enumerate(effects) if wanted(effect))
