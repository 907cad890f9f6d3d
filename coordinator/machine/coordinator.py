"""The coordinator: queues jobs, plans rounds, hands tours to sites, and makes the next model of what comes back.

A machine without I/O (`sojourn.node.machine`). It knows nothing of strategies: planning and closing a round is work
that it has done. One job is worked on at a time; the others wait. What is durable changes only in `apply`.
`job_queue` takes a job from one step to the next, `tours` follows what is out, `sites` knows who is there,
`fleet_watch` takes down who comes and goes, `rollouts` leads releases to the fleet, and `operator_requests`,
`fleet_requests` and `rollout_requests` answer operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator import lost_pieces
from coordinator.machine.acts import NEEDED, job_name
from coordinator.machine.change_watch import ChangeWatch
from coordinator.machine.fleet_figures import FleetFigures
from coordinator.machine.fleet_requests import FleetRequests
from coordinator.machine.fleet_watch import FleetWatch
from coordinator.machine.job_queue import JobQueue
from coordinator.machine.mandate_requests import MandateRequests
from coordinator.machine.mandate_rules import MandateRules
from coordinator.machine.operator_desk import OperatorDesk
from coordinator.machine.operator_requests import OperatorRequests
from coordinator.machine.rollout_figures import RolloutFigures
from coordinator.machine.rollout_requests import RolloutRequests
from coordinator.machine.rollouts import Rollouts
from coordinator.machine.run_figures import RunFigures
from coordinator.machine.sites import RosterRead, Sites
from coordinator.machine.tours import RoundTours
from coordinator.machine.trust import Trust
from coordinator.machine.work import ModelExported, ReleaseBuilt
from coordinator.records import Record
from coordinator.releases.verifying import CardChecked
from coordinator.state import CoordinatorState
from sojourn.node.machine import (
    Did,
    DidNot,
    Doing,
    Linked,
    Present,
    Pulled,
    PullFailed,
    Received,
    Say,
    Send,
    Woke,
    soonest,
)
from sojourn.node.outbox import Outbox
from sojourn.protocol.audit import REFUSED, InspectAudit
from sojourn.protocol.fleet_messages import AwaitChange, ForgetDevice, InspectFleet
from sojourn.protocol.job_messages import Continue, ReadJob, Remove
from sojourn.protocol.mandate_messages import ReadKit, SignJob, WithdrawJob
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import (
    Birth,
    Export,
    Inspect,
    Refused,
    Roster,
    RosterAsk,
    Stop,
    Submit,
    Toured,
    TourProgress,
)
from sojourn.protocol.operators import SignedRequest
from sojourn.protocol.release_messages import DeviceReport, InspectReleases, MakeRelease, ReadCard, Rollout, Steer
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from coordinator.machine.kept_rounds import KeepSettings
    from coordinator.machine.operator_requests import CheckJob
    from sojourn.node.machine import Effect, Event
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Role
    from sojourn.protocol.wire import Epoch, Offer


class Coordinator:
    """The state machine of the cloud."""

    def __init__(
        self,
        name: str,
        operators: frozenset[str] = frozenset({"operator"}),
        *,
        fleet: str = "sojourn",
        trust: Trust = Trust(),  # noqa: B008  # frozen
        wall: float = 0.0,
        keep: KeepSettings | None = None,
        check_job: CheckJob = lambda _: None,
    ) -> None:
        """A coordinator that knows no job yet.

        trust: whose signatures count. wall: what a clock on the wall shows, in seconds since 1970, when `now` is 0;
        people are told times by it. keep: which models of finished rounds are kept. check_job: says why a job cannot
        be taken, where it names what this machine does not have.
        """
        self.address = Address("cloud", name)
        self.offer: Offer | None = None
        self.watches: tuple[Role, ...] = ("edge",)
        self.record_form: Any = Record
        self.sites = Sites()
        self._operators = operators
        self._outbox = Outbox()
        self._tours = RoundTours(self._outbox, trust.device_keys)
        self._watch = FleetWatch(self.sites, wall)
        rules = MandateRules(fleet, trust.mandate_keys)
        self._queue = JobQueue(self.sites, self._tours, self._watch, keep, rules)
        self._changes = ChangeWatch(wall)
        self._fleet_requests = FleetRequests(self.sites, self._watch, self._tours, self._changes)
        self._changes.rows = lambda mark, now: self._fleet_requests.changed_devices(self.state, mark, now)
        self._requests = OperatorRequests(self._queue, self.sites, self._tours, check_job)
        self._mandate_requests = MandateRequests(self._queue, self.sites, self._requests, rules)
        self._rollouts = Rollouts(self.sites, self.state, wall)
        self._desk = OperatorDesk(fleet, name, trust.roles)
        self._rollout_requests = RolloutRequests(self._rollouts, fleet, trust.release_key)

    @property
    def state(self) -> CoordinatorState:
        """The durable state."""
        return self._queue.durable

    @property
    def unanswered(self) -> int:
        """How many requests wait for their answers."""
        return len(self._outbox)

    def figures(self) -> tuple[FleetFigures, RunFigures, RolloutFigures]:
        """Who can tell how the fleet, its jobs and its rollouts are, in numbers."""
        return FleetFigures(self, self._tours), RunFigures(self, self._tours), RolloutFigures(self._rollouts)

    def role_of(self, sender: str) -> Role | None:
        """Operators are known by name and speak as the cloud does; everybody else who may write here is an edge."""
        return "cloud" if sender in self._operators or self._desk.knows(sender) else "edge"

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self._queue.durable = self._rollouts.durable = read_record(snapshot, CoordinatorState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    remedy = (
        "Jobs go on from the last state that could be read, and ask sites again. A job that `sojourn job list` does "
        "not show any more is to be submitted again, and a rollout that is missing to be ordered again. Or restore the "
        "last backup: sojourn coordinator restore FILE --force."
    )

    def objection(self, record: Record) -> str | None:
        """Why a record does not follow what is here."""
        return lost_pieces.objection(self.state, record)

    def mend(self, boots: int) -> None:
        """Records were lost: let tours be newer than all that sites have seen."""
        self.state.renumber(boots)

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Go on without blobs that are gone."""
        lost = lost_pieces.do_without(self.state, missing)
        self._queue.incomplete = {state.name for state in self.state.jobs.values() if state.live() & missing}
        return lost

    def live(self) -> AbstractSet[bytes]:
        """All that a job, its round before, a result on its way, a roster, a release or an export refers to."""
        live = self.sites.live() | self._requests.exported | self._tours.live() | self._rollout_requests.live()
        live |= self._queue.superseded
        lines = self.state.lines.values()
        return live.union(*(state.live() for state in self.state.jobs.values()), *(line.live() for line in lines))

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Count the bytes between the cloud and the sites; a site that sends its result is alive."""
        if peer.role != "edge":
            return
        self._queue.traffic += traffic
        if spoke:
            self._tours.heard_from(peer.name, now)

    def wake_at(self) -> float | None:
        """The next resend, lease or end of patience."""
        parts = (self._outbox, self._tours, self._queue, self._rollouts, self._changes)
        return soonest(self._watch.look_at, *(part.wake_at() for part in parts))

    def start(self, now: float) -> list[Effect]:
        """Take up the job and the rollouts that were under way."""
        self._rollouts.start(now)
        self._watch.start(self.state, now)
        self._changes.start(now)
        return self._queue.start(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React; what operators did is written down before they are answered."""
        before = self._changes.mark
        effects = self._react(event, now)
        if self._desk.waits:
            effects = self._desk.with_entries(self.state, effects, self._queue.date(now))
        self._changes.note(event, effects, self.state)
        return [*effects, *self._changes.answers(before, now)]

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.epoch, event.message, now)
            case Present():
                return self._present(event, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event)
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Doing():
                self._queue.doing(event)
                return []
            case Linked():
                return [*self._outbox.hasten(now)]
            case Woke():
                seen = self._watch.woke(self.state, now)
                return [*self._outbox.due(now), *seen, *self._queue.woke(now), *self._rollouts.woke(now)]
            case _:
                return []

    def _asked(self, sender: Address, message: Message, now: float) -> list[Effect]:
        """An operator asks: do it if that is allowed, once."""
        if type(message) not in NEEDED and not isinstance(message, SignedRequest):
            return []
        date = self._queue.date(now)
        asked = self._desk.admitted(sender, message, date)
        if isinstance(asked, str):
            return self._desk.refuse(self.state, sender, message, asked, date)
        if earlier := self._desk.earlier(self.state.audit, asked):
            return self._again(sender, asked.message, earlier, now)
        self._desk.expect(asked)
        return self._of_jobs(sender, asked.message, now)

    def _again(self, sender: Address, message: Message, earlier: AuditEntry, now: float) -> list[Effect]:
        """An act that was answered comes again: say how things are, and do nothing."""
        if earlier.outcome == REFUSED:
            return [Send(sender, Refused(earlier.ticket, earlier.detail))]
        match message:
            case Submit():
                return [Send(sender, self._requests.inspect(Inspect(message.ticket, job_name(message.job)), now))]
            case Stop() | Continue():
                return [Send(sender, self._requests.inspect(Inspect(message.ticket, message.job), now))]
            case Steer():
                return self._rollout_requests.inspect(sender, InspectReleases(message.ticket, message.line))
            case _:  # these know their tickets themselves, or make the same again
                return self._of_jobs(sender, message, now)

    def _receive(self, sender: Address, epoch: Epoch, message: Message, now: float) -> list[Effect]:
        if sender.role == "cloud":
            return self._asked(sender, message, now)
        match message:
            case Roster():
                self._outbox.answered(("roster", sender.name))
                return self.sites.roster(sender, epoch, message)
            case TourProgress():
                return self._tours.progressed(self._queue.current, sender, message, now)
            case Toured():
                return self._tours.toured(self.state, self._queue.current, sender, message)
            case DeviceReport():
                return self._rollouts.reported(sender.name, message, now)
            case _:
                return []

    def _of_jobs(self, sender: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Submit():
                return self._requests.submit(sender, message, now)
            case Inspect():
                return [Send(sender, self._requests.inspect(message, now))]
            case AwaitChange():
                return self._changes.wait(sender, message, now)
            case InspectFleet():
                return [Send(sender, self._fleet_requests.inspect(self.state, message, now))]
            case Stop():
                return self._requests.stop(sender, message, now)
            case Export() | MakeRelease():
                return self._requests.make(sender, message, now)
            case Continue():
                return self._requests.go_on(sender, message, now)
            case Remove():
                return self._requests.remove(sender, message, now)
            case ReadJob():
                return [Send(sender, self._requests.read(message))]
            case _:
                return self._of_mandates(sender, message, now)

    def _of_mandates(self, sender: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case ForgetDevice():
                return self._fleet_requests.forget(self.state, sender, message, now)
            case ReadKit():
                return self._mandate_requests.read(sender, message, now)
            case SignJob():
                return self._mandate_requests.sign(sender, message, now)
            case WithdrawJob():
                return self._mandate_requests.withdraw(sender, message, now)
            case InspectAudit():
                return self._desk.tell(self.state, sender, message)
            case _:
                return self._of_releases(sender, message, now)

    def _of_releases(self, sender: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Rollout():
                return self._rollout_requests.rollout(sender, message)
            case Steer():
                return self._rollout_requests.steer(sender, message, now)
            case InspectReleases():
                return self._rollout_requests.inspect(sender, message)
            case ReadCard():
                return [Send(sender, self._rollout_requests.card(message))]
            case _:
                return []

    def _present(self, event: Present, now: float) -> list[Effect]:
        """An edge server came or went."""
        born, site = self.sites.present(event, now), event.node.name
        effects: list[Effect] = [*self._outbox.hasten(now, event.node)]
        if isinstance(event.state, Birth):
            effects += self._outbox.ask(("roster", site), event.node, RosterAsk(), now)
        else:
            self._outbox.answered(("roster", site))
        state = self._queue.current
        if state and born:
            effects += self._tours.ask_again(state, site, now)
        if born:
            effects += [*self._rollouts.fleet_changed(now, site), *self._mandate_requests.born(site, now)]
        return [*effects, *self._watch.look(self.state, now), *self._queue.reconsider(now)]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        effects = [*self.sites.pulled(digest), *self._rollout_requests.pulled(digest, now)]
        for toured in self._tours.pulled(digest):
            effects += self._queue.arrived(toured, now)
        return effects

    def _pull_failed(self, event: PullFailed) -> list[Effect]:
        self.sites.pull_failed(event.digest)
        self._tours.pull_failed(event.digest)
        self._rollout_requests.pull_failed(event.digest)
        return [Say(f"a blob could not be fetched ({event.reason})", "warning")]

    def _did(self, event: Did, now: float) -> list[Effect]:
        match event.outcome:
            case ModelExported() | ReleaseBuilt():
                return self._requests.finish(event.outcome)
            case CardChecked():
                return self._rollout_requests.checked(event.outcome, now)
            case RosterRead():
                effects = [*self.sites.take(event.outcome, now), *self._watch.look(self.state, now)]
                effects += self._queue.reconsider(now)
                return [*effects, *self._rollouts.fleet_changed(now)]
            case _:
                return self._queue.did(event, now)

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        if refused := self._requests.failed(event):
            return [refused]
        unread = self._rollout_requests.not_checked(event)
        return unread if unread is not None else self._queue.did_not(event, now)
