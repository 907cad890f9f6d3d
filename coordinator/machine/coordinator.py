"""The coordinator: queues jobs, plans rounds, sends tours to sites, and makes the next model from their results.

This is a machine without I/O (`sojourn.node.machine`). It contains no strategy: a worker plans and closes rounds.
It processes one job at a time; the others wait. Durable state changes only in `apply`. `job_queue` moves a job from
step to step, `finished_work` applies the outcomes of its work, `tours` follows the tours in progress, `sites` tracks
connected sites, `fleet_view` records which devices connect, and `rollouts` brings releases to the fleet.
`job_requests`, `fleet_view` and `rollout_requests` answer operators.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from coordinator import recovery
from coordinator.machine.answers import refuse
from coordinator.machine.authorization import RequestAuthorizer, Trust
from coordinator.machine.change_watch import ChangeWatch
from coordinator.machine.finished_work import FinishedWork
from coordinator.machine.fleet_view import FleetRequests, FleetWatch
from coordinator.machine.job_queue import JobQueue
from coordinator.machine.job_requests import CheckJob, OperatorRequests
from coordinator.machine.kept_models import KeepSettings
from coordinator.machine.mandates import MandateRequests, MandateRules
from coordinator.machine.metrics import FleetMetrics, RolloutMetrics, RunMetrics
from coordinator.machine.rollout_requests import RolloutRequests
from coordinator.machine.rollouts import Rollouts
from coordinator.machine.sites import RosterRead, Sites
from coordinator.machine.tours import RoundTours
from coordinator.machine.work import ModelExported, ReleaseBuilt
from coordinator.records import Record
from coordinator.releases.orders import CardChecked
from coordinator.state import CoordinatorState
from sojourn.node.machine import (
    Effect,
    Event,
    LinkUp,
    Log,
    Present,
    Pulled,
    PullFailed,
    Received,
    TimerFired,
    WorkDone,
    WorkFailed,
    WorkProgress,
    earliest,
)
from sojourn.node.pending import Outbox
from sojourn.protocol.limits import decoded
from sojourn.protocol.mandates import ReadKit, SignJob, WithdrawJob
from sojourn.protocol.messages import Birth, Roster, RosterAsk, Toured, TourProgress
from sojourn.protocol.operator_messages import (
    AwaitChange,
    Continue,
    Export,
    ForgetDevice,
    Inspect,
    InspectFleet,
    ReadJob,
    Remove,
    Stop,
    Submit,
)
from sojourn.protocol.operators import REFUSED, AuditEntry, InspectAudit
from sojourn.protocol.registry import Message, OperatorRequest
from sojourn.protocol.release_messages import DeviceReport, InspectReleases, MakeRelease, ReadCard, Rollout, Steer
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Offer

Handler = Callable[[Address, Any, float], "list[Effect]"]
"""Handles an operator's request at a given time; returns the effects, including the answer."""


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
        keep: KeepSettings = KeepSettings(),  # noqa: B008  # frozen
        check_job: CheckJob = lambda _: None,
    ) -> None:
        """Create a coordinator without jobs.

        trust: the keys to trust. wall: the time in seconds since 1970 at which `now` is 0, used for dates that
        operators see. keep: which models of finished rounds to keep. check_job: returns why a job cannot be accepted if
        it names something that this machine does not have.
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
        self._queue = JobQueue(self.sites, self._tours, self._watch, rules)
        self._finished = FinishedWork(self._queue, keep)
        self._changes = ChangeWatch(wall)
        self._fleet_requests = FleetRequests(self._queue, self.sites, self._watch, self._tours, self._changes)
        self._changes.rows = self._fleet_requests.changed_devices
        self._requests = OperatorRequests(self._queue, self.sites, self._tours, check_job)
        self._mandate_requests = MandateRequests(self._queue, self.sites, self._requests, rules)
        self._rollouts = Rollouts(self.sites, self.state, wall)
        self._authorizer = RequestAuthorizer(fleet, name, self._queue, trust.roles)
        self._rollout_requests = RolloutRequests(self._rollouts, fleet, trust.release_key)
        self._handlers: dict[type[OperatorRequest[Any]], Handler] = {
            Submit: self._requests.submit,
            Inspect: self._requests.inspect,
            Stop: self._requests.stop,
            Continue: self._requests.continue_job,
            Remove: self._requests.remove,
            ReadJob: self._requests.read,
            Export: self._requests.make,
            MakeRelease: self._requests.make,
            ReadKit: self._mandate_requests.read,
            SignJob: self._mandate_requests.sign,
            WithdrawJob: self._mandate_requests.withdraw,
            InspectFleet: self._fleet_requests.inspect,
            ForgetDevice: self._fleet_requests.forget,
            AwaitChange: self._changes.wait,
            InspectAudit: self._authorizer.inspect,
            Rollout: self._rollout_requests.rollout,
            Steer: self._rollout_requests.steer,
            InspectReleases: self._rollout_requests.inspect,
            ReadCard: self._rollout_requests.card,
        }

    @property
    def state(self) -> CoordinatorState:
        """The durable state."""
        return self._queue.durable

    @property
    def unanswered(self) -> int:
        """The number of requests without an answer so far."""
        return len(self._outbox)

    def metrics(self) -> tuple[FleetMetrics, RunMetrics, RolloutMetrics]:
        """The sources of metrics about the fleet, its jobs and its rollouts."""
        return FleetMetrics(self, self._tours), RunMetrics(self, self._tours), RolloutMetrics(self._rollouts)

    def role_of(self, sender: str) -> Role | None:
        """Operators are known by name and have the role cloud; every other permitted sender is an edge server."""
        return "cloud" if sender in self._operators or self._authorizer.knows(sender) else "edge"

    def restore(self, snapshot: bytes) -> None:
        """Restore the durable state from a snapshot."""
        self._queue.durable = self._rollouts.durable = decoded(snapshot, CoordinatorState)

    def snapshot(self) -> bytes:
        """Return the durable state as a snapshot."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    remedy = (
        "Jobs continue from the last readable state, and ask sites again. If `sojourn job list` no longer shows a job, "
        "submit it again; if a rollout is missing, start it again. Or restore the last backup: "
        "sojourn coordinator restore FILE --force."
    )

    def validation_error(self, record: Record) -> str | None:
        """Return why a record does not fit the current state, or None."""
        return recovery.validation_error(self.state, record)

    def reserve_newer_attempts(self, boots: int) -> None:
        """After records were lost, number new tours above all that sites may have seen."""
        self.state.renumber(boots)

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Continue without blobs that are missing."""
        lost = recovery.drop_missing_blobs(self.state, missing)
        self._queue.incomplete = {state.name for state in self.state.jobs.values() if state.live() & missing}
        return lost

    def live(self) -> AbstractSet[bytes]:
        """All blobs that a job, its previous round, a result in transfer, a roster, a release or an export uses."""
        live = self.sites.live() | self._requests.exported | self._tours.live() | self._rollout_requests.live()
        live |= self._queue.superseded
        lines = self.state.lines.values()
        return live.union(*(state.live() for state in self.state.jobs.values()), *(line.live() for line in lines))

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None:
        """Count the bytes between the cloud and the sites; a site that sends its result is alive."""
        if peer.role != "edge":
            return
        self._queue.traffic += traffic
        if sign_of_life:
            self._tours.received_from(peer.name, now)

    def wake_at(self) -> float | None:
        """The time of the next resend, lease end or timeout."""
        parts = (self._outbox, self._tours, self._queue, self._rollouts, self._changes)
        return earliest(self._watch.look_at, *(part.wake_at() for part in parts))

    def start(self, now: float) -> list[Effect]:
        """Resume the job and the rollouts that were in progress."""
        self._rollouts.start(now)
        self._watch.start(self.state, now)
        self._changes.start(now)
        return self._queue.start(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event; operators' actions are recorded before they are answered."""
        before = self._changes.mark
        effects = self._react(event, now)
        if self._authorizer.has_pending:
            effects = self._authorizer.with_entries(effects, self._queue.date(now))
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
            case WorkDone():
                return self._did(event, now)
            case WorkFailed():
                return self._did_not(event, now)
            case WorkProgress():
                self._queue.work.note(event)
                return []
            case LinkUp():
                return [*self._outbox.resend_now(now)]
            case TimerFired():
                seen = self._watch.woke(self.state, now)
                return [*self._outbox.due(now), *seen, *self._queue.woke(now), *self._rollouts.woke(now)]
            case _:
                return []

    def _asked(self, sender: Address, message: OperatorRequest[Any], now: float) -> list[Effect]:
        """Handle an operator's request once, if it is permitted."""
        date = self._queue.date(now)
        received = self._authorizer.authorize(sender, message, date)
        if isinstance(received, str):
            return self._authorizer.refuse(sender, message, received, date)
        if earlier := self._authorizer.find_performed(received):
            return self._again(sender, received.message, earlier, now)
        self._authorizer.track(received)
        return self._handlers[type(received.message)](sender, received.message, now)

    def _again(self, sender: Address, message: OperatorRequest[Any], earlier: AuditEntry, now: float) -> list[Effect]:
        """Answer a repeated action with the current state, without performing it again."""
        if earlier.outcome == REFUSED:
            return refuse(sender, earlier.ticket, earlier.detail)
        match message:
            case Submit():
                message = Inspect(message.ticket, message.subject)
            case Stop() | Continue():
                message = Inspect(message.ticket, message.job)
            case Steer():
                message = InspectReleases(message.ticket, message.line)
            case _:
                pass  # their handlers detect repeats, or produce the same result again
        return self._handlers[type(message)](sender, message, now)

    def _receive(self, sender: Address, epoch: Epoch, message: Message, now: float) -> list[Effect]:
        if sender.role == "cloud":
            return self._asked(sender, message, now) if isinstance(message, OperatorRequest) else []
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

    def _present(self, event: Present, now: float) -> list[Effect]:
        """An edge server connected or disconnected."""
        born, site = self.sites.present(event, now), event.node.name
        effects: list[Effect] = [*self._outbox.resend_now(now, event.node)]
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
        return [Log(f"a blob could not be fetched ({event.reason})", "warning")]

    def _did(self, event: WorkDone, now: float) -> list[Effect]:
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
                return self._finished.done(event, now)

    def _did_not(self, event: WorkFailed, now: float) -> list[Effect]:
        if refused := self._requests.failed(event):
            return [refused]
        unread = self._rollout_requests.not_checked(event)
        return unread if unread is not None else self._finished.failed(event, now)
