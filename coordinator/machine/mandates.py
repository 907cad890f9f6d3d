"""Mandates of jobs: when a job may be sent to devices, and operators' requests about its signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from coordinator.job_state import JobState
from coordinator.machine.answers import refuse
from coordinator.machine.job_table import JobEvent
from coordinator.machine.sites import Sites
from coordinator.records import JobMandated, MandateWithdrawn
from coordinator.rounds.orders import all_tasks
from coordinator.rounds.round_messages import moment
from coordinator.state import CoordinatorState
from sojourn import __version__
from sojourn.logs import About
from sojourn.node.machine import Append, Effect, Log, Send
from sojourn.protocol.mandates import KitDetails, Recall
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.job_requests import OperatorRequests
    from sojourn.protocol.mandates import Mandate, ReadKit, SignedMandate, SignedWithdrawal, SignJob, WithdrawJob


@dataclass(frozen=True)
class MandateRules:
    """The public keys of the operators whose mandates count in a fleet; without keys, jobs are sent unsigned."""

    fleet: str = "sojourn"
    keys: Mapping[str, str] = field(default_factory=dict)

    def missing_signature(self, durable: CoordinatorState, state: JobState, now: float) -> str | None:
        """Return why a job may not continue, with the command to run, or None. `now` is in seconds since 1970."""
        if not self.keys and not state.mandate:
            return None
        mandate = state.mandate.read() if state.mandate else None
        if mandate is None:
            why = "waiting for a signature"
        elif mandate.ends <= now:
            why = f"waiting for a new signature: its mandate ended {moment(mandate.ends)}"
        elif state.round > mandate.rounds:
            why = f"waiting for a new signature: its mandate ends with round {mandate.rounds}"
        elif mandate.serial <= _withdrawn(durable, state.name):
            why = "waiting for a new signature: its mandate was withdrawn"
        elif state.kit and mandate.kit != state.kit.digest:
            why = "waiting for a new signature: its mandate is for another kit"
        elif self.keys and state.mandate and state.mandate.signer(self.keys) is None:
            why = "waiting for a new signature: its key is no longer in this coordinator's mandate_keys_file"
        else:
            return None
        return f"{why}: sojourn job sign {state.name} --key operator.key"

    def refusal_reason(
        self, durable: CoordinatorState, state: JobState, signed: SignedMandate, now: float
    ) -> str | None:
        """Return why a job cannot use a mandate: devices would refuse it, or it does not cover the job's needs."""
        mandate = signed.read()
        if mandate is None:
            return "the mandate cannot be read: it is damaged or from a newer version"
        last = last_serial(durable, state)
        return (
            self._unsigned(signed, mandate)
            or (f"the mandate ended {moment(mandate.ends)}: check your clock" if mandate.ends <= now else None)
            or _mismatch(state, mandate)
            or (
                f"its serial {mandate.serial} is not higher than {last}: sign it again"
                if mandate.serial <= last
                else None
            )
        )

    def _unsigned(self, signed: SignedMandate, mandate: Mandate) -> str | None:
        if self.keys and signed.signer(self.keys) is None:
            return "the mandate is not signed with a key of this coordinator's mandate_keys_file"
        return None if mandate.fleet == self.fleet else f"the mandate is for the fleet {mandate.fleet!r}"

    def withdrawal_refusal_reason(self, signed: SignedWithdrawal) -> str | None:
        """Return why devices would not accept a withdrawal, or None."""
        it = signed.read()
        if it is None:
            return "the withdrawal cannot be read"
        if self.keys and signed.signer(self.keys) is None:
            return "the withdrawal is not signed with a key of this coordinator's mandate_keys_file"
        return None if it.fleet == self.fleet else f"the withdrawal is for the fleet {it.fleet!r}"


def _mismatch(state: JobState, mandate: Mandate) -> str | None:
    if state.kit is None:
        return f"job {state.name!r} is {state.status}: it has no kit yet that could be signed"
    if mandate.kit != state.kit.digest:
        return f"the mandate is for the kit {mandate.kit.hex()[:12]}, and the job has {state.kit.digest.hex()[:12]}"
    if not all(task in mandate.tasks for task in all_tasks(state.settings)):
        return "the mandate does not cover everything that the job requires of devices: sign the current job"
    return None


def last_serial(durable: CoordinatorState, state: JobState) -> int:
    """Return the highest serial of a job's mandates and withdrawals; 0 for none."""
    before = state.mandate.read() if state.mandate else None
    return max(before.serial if before else 0, _withdrawn(durable, state.name))


def _withdrawn(durable: CoordinatorState, job: str) -> int:
    """Return the highest withdrawn serial of a job's mandates; 0 for none."""
    signed = durable.withdrawals.get(job)
    it = signed.read() if signed else None
    return it.serial if it else 0


class MandateRequests:
    """Answers operators, and sends withdrawals to sites."""

    def __init__(self, queue: JobQueue, sites: Sites, requests: OperatorRequests, rules: MandateRules) -> None:
        self._queue, self._sites, self._requests, self._rules = queue, sites, requests, rules

    def read(self, operator: Address, message: ReadKit, now: float) -> list[Effect]:
        """Answer with a job's kit."""
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return self._requests.view_for(operator, message.ticket, message.job, now)
        if state.kit is None or state.normalisation is None:
            return refuse(operator, message.ticket, f"job {state.name!r} is {state.status}: it has no kit yet")
        details = KitDetails(
            message.ticket,
            state.name,
            state.kit,
            state.normalisation,
            compilers(),
            last_serial(self._queue.durable, state),
        )
        return [Send(operator, details)]

    def sign(self, operator: Address, message: SignJob, now: float) -> list[Effect]:
        """Send a job to devices with the mandate that was signed for it."""
        mandate, durable = message.mandate.read(), self._queue.durable
        state = durable.jobs.get(mandate.job) if mandate else None
        if mandate is None or state is None:
            return self._requests.view_for(operator, message.ticket, mandate.job if mandate else "?", now)
        effects: list[Effect] = []
        if state.signed != message.ticket:  # otherwise a repeated request
            if why := self._rules.refusal_reason(durable, state, message.mandate, self._queue.date(now)):
                return refuse(operator, message.ticket, why)
            effects = self._queue.signed(state, JobMandated(state.name, message.mandate, message.ticket), now)
        return [*effects, *self._requests.view_for(operator, message.ticket, state.name, now)]

    def withdraw(self, operator: Address, message: WithdrawJob, now: float) -> list[Effect]:
        """End a job, and have all sites notify their devices that its mandates are withdrawn."""
        if why := self._rules.withdrawal_refusal_reason(message.withdrawal):
            return refuse(operator, message.ticket, why)
        it, durable = message.withdrawal.read(), self._queue.durable
        assert it is not None  # noqa: S101  # otherwise it was refused above
        effects: list[Effect] = []
        known = durable.withdrawals.get(it.job)
        if known != message.withdrawal:
            record = MandateWithdrawn(it.job, message.withdrawal, self._queue.date(now))
            durable.apply(record)
            effects = [
                Append(record, sync=True),
                Log(f"the mandates of job {it.job} are withdrawn", about=About(it.job)),
            ]
        state = durable.jobs.get(it.job)
        if state is not None:
            effects += self._queue.end(state, JobEvent.STOP, f"its mandate was withdrawn by {it.operator}", now)
        effects += [Send(Address("edge", site), Recall(message.withdrawal)) for site in sorted(self._sites.reach())]
        return [*effects, *self._requests.view_for(operator, message.ticket, it.job, now)]

    def born(self, site: str, now: float) -> list[Effect]:
        """Send all withdrawals that still matter to a site that connected."""
        date = self._queue.date(now)
        known = [(signed, signed.read()) for signed in self._queue.durable.withdrawals.values()]
        return [Send(Address("edge", site), Recall(signed)) for signed, it in known if it and it.ends > date]


def compilers() -> tuple[str, ...]:
    """Return the versions of the packages that compile kits here, without importing them."""
    found = [f"sojourn {__version__}"]
    for name in ("torch", "onnx", "onnxscript"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return tuple(found)
