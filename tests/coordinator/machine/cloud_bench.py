"""A coordinator on a bench: its work is done by hand, and a twin made of its journal is compared after each step."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.audit_records import ActLogged
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.records import JobCompiled, RoundClosed
from coordinator.rounds.planning import PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import Append, Did, Do, Present, Pulled, Received, Undo
from sojourn.protocol.messages import Birth, Death, Presence, Roster, Submit, Toured
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
OFFER = Offer("1", "m", "r", 4, 0, ("sgd",), "npz")


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
    """Whether an effect is an entry of the audit log: these have tests of their own."""
    return isinstance(effect, Append) and isinstance(effect.record, ActLogged)


class Bench:
    """A coordinator whose every record is kept, whose work is done by hand, and whose replayed twin is compared."""

    def __init__(self) -> None:
        self.cloud = Coordinator("c")
        self.records: list[bytes] = []
        self.work: dict[str, Any] = {}

    def tell(self, event, now=0.0) -> list[Any]:
        return self.note(self.cloud.handle(event, now))

    def note(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            match effect:
                case Append():
                    self.records.append(msgspec.msgpack.encode(effect.record))
                case Do():
                    self.work[effect.key] = effect.work
                case Undo():
                    self.work.pop(effect.key, None)
        assert self.replayed().snapshot() == self.cloud.snapshot()
        return [effect for effect in effects if not is_logged(effect)]

    @property
    def changes(self) -> list[bytes]:
        """The records of what was done, without those of who asked for it."""
        return [record for record in self.records if b"act-logged/1" not in record]

    def replayed(self, cut=0) -> Coordinator:
        return replayed(Coordinator("c"), self.records, cut)

    def hear(self, sender, message, now=0.0, epoch=BOOT) -> list[Any]:
        return self.tell(Received(sender, epoch, message), now)

    def did(self, form, outcome, now=0.0) -> list[Any]:
        """The piece of work of this kind is done."""
        key = next(key for key, work in self.work.items() if isinstance(work, form))
        work = self.work.pop(key)
        return self.tell(Did(key, outcome(work) if callable(outcome) else outcome), now)

    def join(self, name: str, devices=(), epoch=BOOT, revision=1, now=0.0) -> list[Any]:
        """A site is born and tells its roster."""
        self.tell(Present(site(name), epoch, Birth()), now)
        members = ref_of(f"{name} {devices} {revision}".encode())
        self.hear(site(name), Roster(revision, members), now, epoch)
        self.tell(Pulled(members.digest), now)
        listed = tuple(Member(device, epoch, OFFER) for device in devices)
        return self.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, listed), now)

    def compile(self, now=0.0, **also) -> list[Any]:
        held = {"model": MODEL}
        return self.did(PrepareJob, lambda work: JobCompiled(work.name, KIT, held, held, EXEMPLARS, TEST, **also), now)

    def plan(self, now=0.0) -> list[Any]:
        return self.did(PlanRound, lambda work: plan_round(work, MemoryBlobs()), now)

    def running(self, joined=0.0, **changes) -> list[Any]:
        """A job with one tour at each of two sites that came at `joined`; returns the effects of its plan."""
        self.join("s1", ("a",), now=joined)
        self.join("s2", ("b",), now=joined)
        self.hear(OPERATOR, Submit("t", text(**changes)))
        self.compile()
        return self.plan()

    def trained(self) -> None:
        """The first round of the job has a result, and the next is under way."""
        for tour in self.cloud.state.jobs["job"].tours:
            self.toured(tour.number, tour.site)
        self.close()
        self.plan()

    def toured(self, number: int, name: str, round_=1, now=0.0) -> list[Any]:
        """A site brings a tour's result, and it is fetched."""
        ref = result(number, round_)
        self.hear(site(name), Toured(TourId("job", round_, number, 1), {"model": ref}, 5, REPORTS, 0), now)
        self.tell(Pulled(ref.digest), now)
        return self.tell(Pulled(REPORTS.digest), now)

    def close(self, now=0.0, accuracy=0.5) -> list[Any]:
        def closed(work: CloseRound):
            report = RoundReport(work.state.round, accuracy, 1.0, 2, 2, 0, 0, 1.0, {})
            return RoundClosed(work.state.name, {"model": MODEL}, {"model": MODEL}, (), report)

        return self.did(CloseRound, closed, now)


def records(effects) -> list[type]:
    return [type(effect.record) for effect in effects if isinstance(effect, Append)]


def place(effects, wanted) -> int:
    return next(at for at, effect in enumerate(effects) if wanted(effect))
