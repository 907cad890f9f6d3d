"""What operators ask about mandates: a job's kit to sign, to take what they signed, and to withdraw it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from coordinator.machine.mandate_rules import last_serial
from coordinator.mandate_records import JobMandated, MandateWithdrawn
from sojourn import __version__
from sojourn.about import About
from sojourn.node.machine import Append, Say, Send
from sojourn.protocol.mandate_messages import KitTold, Recall
from sojourn.protocol.messages import Inspect, Refused
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.mandate_rules import MandateRules
    from coordinator.machine.operator_requests import OperatorRequests
    from coordinator.machine.sites import Sites
    from sojourn.node.machine import Effect
    from sojourn.protocol.mandate_messages import ReadKit, SignJob, WithdrawJob


class MandateRequests:
    """Answers operators, and hands withdrawals to sites."""

    def __init__(self, queue: JobQueue, sites: Sites, requests: OperatorRequests, rules: MandateRules) -> None:
        self._queue, self._sites, self._requests, self._rules = queue, sites, requests, rules

    def read(self, operator: Address, message: ReadKit, now: float) -> list[Effect]:
        """Tell a job's kit."""
        state = self._queue.durable.jobs.get(message.job)
        if state is None:
            return self._view(operator, message.ticket, message.job, now)
        if state.kit is None:
            return [Send(operator, Refused(message.ticket, f"job {state.name!r} is {state.status}: it has no kit yet"))]
        told = KitTold(
            message.ticket,
            state.name,
            state.kit,
            state.normalisation or None,
            compilers(),
            last_serial(self._queue.durable, state),
        )
        return [Send(operator, told)]

    def sign(self, operator: Address, message: SignJob, now: float) -> list[Effect]:
        """Let a job go to devices with what was signed for it."""
        mandate, durable = message.mandate.read(), self._queue.durable
        state = durable.jobs.get(mandate.job) if mandate else None
        if mandate is None or state is None:
            name = mandate.job if mandate else "?"
            return self._view(operator, message.ticket, name, now)
        if state.signed != message.ticket:  # else it is asked again
            if why := self._rules.objection(durable, state, message.mandate, self._queue.date(now)):
                return [Send(operator, Refused(message.ticket, why))]
            effects = self._queue.signed(state, JobMandated(state.name, message.mandate, message.ticket), now)
            return [*effects, *self._view(operator, message.ticket, state.name, now)]
        return self._view(operator, message.ticket, state.name, now)

    def withdraw(self, operator: Address, message: WithdrawJob, now: float) -> list[Effect]:
        """End a job, and have all sites tell their devices that its mandates hold no longer."""
        if why := self._rules.objection_to(message.withdrawal):
            return [Send(operator, Refused(message.ticket, why))]
        it, durable = message.withdrawal.read(), self._queue.durable
        assert it is not None  # noqa: S101  # or there was an objection
        effects: list[Effect] = []
        known = (durable.withdrawals or {}).get(it.job)
        if known != message.withdrawal:
            record = MandateWithdrawn(it.job, message.withdrawal, self._queue.date(now))
            durable.apply(record)
            effects = [
                Append(record, sync=True),
                Say(f"the mandates of job {it.job} are withdrawn", about=About(it.job)),
            ]
        state = durable.jobs.get(it.job)
        if state is not None:
            effects += self._queue.end(state, "stop", f"its mandate was withdrawn by {it.operator}", now)
        effects += [Send(Address("edge", site), Recall(message.withdrawal)) for site in sorted(self._sites.reach())]
        return [*effects, *self._view(operator, message.ticket, it.job, now)]

    def born(self, site: str, now: float) -> list[Effect]:
        """A site is here again: it hears of all withdrawals that matter still."""
        date = self._queue.date(now)
        known = [(signed, signed.read()) for signed in (self._queue.durable.withdrawals or {}).values()]
        return [Send(Address("edge", site), Recall(signed)) for signed, it in known if it and it.ends > date]

    def _view(self, operator: Address, ticket: str, job: str, now: float) -> list[Effect]:
        return [Send(operator, self._requests.inspect(Inspect(ticket, job), now))]


def compilers() -> tuple[str, ...]:
    """What kits are made with here, without loading it."""
    found = [f"sojourn {__version__}"]
    for name in ("torch", "onnx", "onnxscript"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return tuple(found)
