"""When a job may go to devices: whether it has a mandate that holds, and whether one that is given is fit for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.rounds.lacking import moment
from coordinator.rounds.orders import all_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.state import CoordinatorState, JobState
    from sojourn.protocol.mandate import Mandate, SignedMandate, SignedWithdrawal


@dataclass(frozen=True)
class MandateRules:
    """The operators whose mandates count in a fleet, by their public keys; without keys jobs go out unsigned."""

    fleet: str = "sojourn"
    keys: Mapping[str, str] = field(default_factory=dict)

    def lacking(self, durable: CoordinatorState, state: JobState, now: float) -> str | None:
        """What a job lacks to go on, with the command to type; None where it may. `now` is the time of the day."""
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

    def objection(self, durable: CoordinatorState, state: JobState, signed: SignedMandate, now: float) -> str | None:
        """Why a mandate is of no use to a job: devices would refuse it, or what the job asks is not in it."""
        mandate = signed.read()
        if mandate is None:
            return "the mandate cannot be read: it is damaged, or of a newer version"
        return (
            self._unsigned(signed, mandate)
            or (f"the mandate ended {moment(mandate.ends)}: look at your clock" if mandate.ends <= now else None)
            or _unfit(state, mandate)
            or _old(mandate, last_serial(durable, state))
        )

    def _unsigned(self, signed: SignedMandate, mandate: Mandate) -> str | None:
        if self.keys and signed.signer(self.keys) is None:
            return "the mandate is not signed with a key of this coordinator's mandate_keys_file"
        return None if mandate.fleet == self.fleet else f"the mandate is for the fleet {mandate.fleet!r}"

    def objection_to(self, signed: SignedWithdrawal) -> str | None:
        """Why devices would not take a withdrawal."""
        it = signed.read()
        if it is None:
            return "the withdrawal cannot be read"
        if self.keys and signed.signer(self.keys) is None:
            return "the withdrawal is not signed with a key of this coordinator's mandate_keys_file"
        return None if it.fleet == self.fleet else f"the withdrawal is for the fleet {it.fleet!r}"


def _unfit(state: JobState, mandate: Mandate) -> str | None:
    if state.kit is None:
        return f"job {state.name!r} is {state.status}: it has no kit yet that could be signed"
    if mandate.kit != state.kit.digest:
        return f"the mandate is for the kit {mandate.kit.hex()[:12]}, and the job has {state.kit.digest.hex()[:12]}"
    if not all(task in mandate.tasks for task in all_tasks(state.settings)):
        return "the mandate does not hold for all that the job asks of devices: sign it as it is now"
    return None


def _old(mandate: Mandate, least: int) -> str | None:
    return None if mandate.serial > least else f"its number {mandate.serial} is not higher than {least}: sign it again"


def last_serial(durable: CoordinatorState, state: JobState) -> int:
    """The highest number of a mandate or a withdrawal of a job; 0 for none."""
    before = state.mandate.read() if state.mandate else None
    return max(before.serial if before else 0, _withdrawn(durable, state.name))


def _withdrawn(durable: CoordinatorState, job: str) -> int:
    """The number up to which a job's mandates were withdrawn; 0 for none."""
    signed = (durable.withdrawals or {}).get(job)
    it = signed.read() if signed else None
    return it.serial if it else 0
