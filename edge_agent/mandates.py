"""What operators allow on a device: mandates are checked before anything is loaded, kept, and ended in time.

A part of the agent's machine, without I/O but for the clock on the wall. That clock may jump: what counts is the latest
time that it ever showed (`ClockSeen`), so that setting it back does not revive what has ended. Without keys nothing is
demanded and nothing is looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from edge_agent.mandate_records import MANDATES_KEPT, ClockSeen, MandateEnded, MandateTaken
from sojourn.about import About
from sojourn.node.machine import Append, Say
from sojourn.protocol.mandate import beyond, unlike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edge_agent.mandate_records import HeldMandate
    from edge_agent.records import AgentState
    from edge_agent.training.work import Trained
    from sojourn.node.machine import Effect
    from sojourn.protocol.mandate import Mandate, SignedMandate, SignedWithdrawal
    from sojourn.protocol.messages import Prepare, Visit
    from sojourn.protocol.wire import VisitReason

    Refusal = tuple[VisitReason, str]

LOOK_EVERY = 600.0
"""Seconds after which the clock is looked at and noted, at the latest, while a mandate holds."""
UNSIGNED = (
    "no mandate: this device does only what an operator signed. To do: `sojourn job sign`; where the job is signed, "
    "update the edge server, which does not pass it on"
)


@dataclass
class Mandates:
    """The operators whose word counts here, and what they allow. `keys`: public keys, with whose they are."""

    fleet: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    sites: frozenset[str] = frozenset()
    """The sites that this device belongs to, by its own settings."""
    clock: Callable[[], float] = time.time
    _verified: dict[bytes, str] = field(default_factory=dict)
    """What was verified since the start, by what was signed and its signature: the name of its key."""
    _look_at: float | None = None

    @property
    def demanded(self) -> bool:
        """Whether only what was signed is done here."""
        return bool(self.keys)

    def now(self, state: AgentState) -> float:
        """The time that counts: never earlier than what was seen before."""
        return max(self.clock(), state.mandates.seen)

    def wake_at(self) -> float | None:
        """When to look at the clock again."""
        return self._look_at

    # --- checks

    def refusal(self, state: AgentState, edge: str, order: Visit) -> Refusal | None:
        """Why a visit is not done, if it is not what was signed."""
        if not self.demanded:
            return None
        if isinstance(order.mandate, msgspec.UnsetType):
            return "unsupported", UNSIGNED  # an edge server that passes no mandate on knows no other word
        found = self._objection(state, edge, order.id.job, order.mandate, order)
        if found is None and (mandate := order.mandate.read()):
            known = state.mandates.held.get(mandate.job)
            if order.id.round > mandate.rounds:
                found = f"it ends with round {mandate.rounds}"
            elif known is None and state.mandates.is_full(self.now(state)):
                found = f"this device keeps {MANDATES_KEPT} mandates already"
            elif known and known.serial == mandate.serial and known.visits >= mandate.visits:
                found = f"{known.visits} results were given under it, and {mandate.visits} may be"
        return ("mandate", f"not covered: {found}") if found else None

    def allows(self, state: AgentState, edge: str, message: Prepare) -> bool:
        """Whether the worker may be made ready: that loads a graph."""
        if not self.demanded:
            return True
        mandate = message.mandate
        return not isinstance(mandate, msgspec.UnsetType) and not self._objection(
            state, edge, message.job, mandate, message
        )

    def _objection(
        self, state: AgentState, edge: str, job: str, signed: SignedMandate, asked: Visit | Prepare
    ) -> str | None:
        mandate = signed.read()
        if mandate is None:
            return "it cannot be read: a newer version made it, or it is damaged"
        if self._signer(signed) is None:
            return "it is not signed with a key of an operator whom this device trusts"
        return (
            (f"it is for the fleet {mandate.fleet!r}" if mandate.fleet != self.fleet else None)
            or _over(mandate, state.mandates.held.get(mandate.job), self.now(state))
            or self._elsewhere(mandate, edge)
            or unlike(mandate, job, asked.kit.digest, asked.task)
        )

    def _signer(self, signed: SignedMandate) -> str | None:
        """Whose key signed it, if it is one of those that count here; each mandate is verified once."""
        known = signed.mandate + signed.signature
        if known not in self._verified:
            key = signed.signer(self.keys)
            if key is None:
                return None
            if len(self._verified) >= MANDATES_KEPT:
                self._verified.clear()
            self._verified[known] = self.keys[key]
        return self._verified[known]

    def _elsewhere(self, mandate: Mandate, edge: str) -> str | None:
        if not mandate.sites:
            return None
        where = ", ".join(mandate.sites[:10])
        if not self.sites:
            return f"it is for {where}, and this device does not know its site: name it in [mandate] of its agent.toml"
        if self.sites.isdisjoint(mandate.sites) or edge not in mandate.sites:
            return f"it is for {where}, and not for {edge} and {', '.join(sorted(self.sites))}"
        return None

    def in_force(self, state: AgentState, job: str) -> Mandate | None:
        """The mandate of a job that holds now, if there is one."""
        held = state.mandates.held.get(job)
        mandate = held.signed.read() if held and held.signed and not held.ended else None
        return mandate if mandate and mandate.ends > self.now(state) else None

    def too_much(self, state: AgentState, job: str, outcome: Trained) -> str | None:
        """How a result is more than may leave, if it is; whatever the training process says."""
        if not self.demanded:
            return None
        mandate = self.in_force(state, job)
        if mandate is None:
            return "not covered: the mandate has ended"
        found = beyond(mandate, outcome.vectors, len(outcome.signature or ()))
        return f"not covered: {found}" if found else None

    # --- what is kept

    def take(self, state: AgentState, order: Visit, now: float) -> list[Effect]:
        """Keep the mandate of a visit that passed, if it is new."""
        if not self.demanded or isinstance(order.mandate, msgspec.UnsetType):
            return []
        mandate, held = order.mandate.read(), state.mandates.held.get(order.id.job)
        by = self._signer(order.mandate)
        if mandate is None or by is None or (held and held.serial == mandate.serial):
            return []
        record = MandateTaken(mandate.job, mandate.serial, by, order.mandate, mandate.ends, self.now(state))
        state.apply(record)
        self._plan_look(state, now)
        until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(mandate.ends))
        return [
            Append(record, sync=True),
            Say(f"mandate {mandate.serial} for job {mandate.job} until {until}, by {by}", about=About(mandate.job)),
        ]

    def start(self, state: AgentState, now: float) -> list[Effect]:
        """End what has ended meanwhile, and what was signed with a key that no longer counts here."""
        if not self.demanded:
            return []
        effects: list[Effect] = []
        for job, held in list(state.mandates.held.items()):
            if held.signed and not held.ended and self._signer(held.signed) is None:
                effects += self._end(state, job, held.serial, held.until, "its key is no longer trusted here")
        return [*effects, *self.look(state, now)]

    def look(self, state: AgentState, now: float) -> list[Effect]:
        """Look at the clock: note what it shows, and end the mandates whose time is over."""
        effects: list[Effect] = []
        for job, held in list(state.mandates.held.items()):
            if held.signed and not held.ended and self.in_force(state, job) is None:
                effects += self._end(state, job, held.serial, held.until, "its time is over")
        if self._holding(state):
            record = ClockSeen(self.now(state))
            state.apply(record)
            effects.append(Append(record))
        self._plan_look(state, now)
        return effects

    def recalled(self, state: AgentState, signed: SignedWithdrawal) -> tuple[str, list[Effect]]:
        """A withdrawal was heard: the job that it ends, empty for none, and what to keep of it."""
        it = signed.read()
        if not self.demanded or it is None or it.fleet != self.fleet:
            return "", []
        held = state.mandates.held.get(it.job)
        if held and (held.serial > it.serial or (held.serial == it.serial and held.ended)):
            return "", []
        if it.ends <= self.now(state) or (held is None and state.mandates.is_full(self.now(state))):
            return "", []
        key = signed.signer(self.keys)
        if key is None:
            text = f"a withdrawal for job {it.job} is not signed by an operator whom this device trusts"
            return "", [Say(text, about=About(it.job))]
        return it.job, self._end(state, it.job, it.serial, it.ends, f"withdrawn by {self.keys[key]}", forget=True)

    def _end(
        self, state: AgentState, job: str, serial: int, until: float, why: str, *, forget: bool = False
    ) -> list[Effect]:
        record = MandateEnded(job, serial, why, until, self.now(state), forget)
        state.apply(record)
        return [Append(record, sync=True), Say(f"the mandate for job {job} has ended: {why}", about=About(job))]

    def _holding(self, state: AgentState) -> list[Mandate]:
        found = [held.signed.read() for held in state.mandates.held.values() if held.signed and not held.ended]
        return [mandate for mandate in found if mandate]

    def _plan_look(self, state: AgentState, now: float) -> None:
        ends = [mandate.ends for mandate in self._holding(state)]
        left = min(ends) - self.now(state) if ends else None
        self._look_at = None if left is None else now + max(1.0, min(LOOK_EVERY, left))


def whose_word(keys: Mapping[str, str]) -> str:
    """Who decides what is done with the data here, in words for its owner."""
    if not keys:
        return (
            "none demanded: whatever this fleet's coordinator asks is done here ([mandate] in agent.toml changes that)"
        )
    return f"only what one of these signed is done here: {', '.join(sorted(keys.values()))}"


def _over(mandate: Mandate, known: HeldMandate | None, now: float) -> str | None:
    """Why a mandate does not hold any more, if it does not."""
    if known and mandate.serial <= known.serial and known.ended:
        return known.ended
    if known and mandate.serial < known.serial:
        return f"the mandate {known.serial} has taken its place"
    if mandate.ends <= now:
        return "its time is over"
    return None
