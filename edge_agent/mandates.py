"""Checks the mandates of operators before a visit loads anything, stores them, and ends them when they expire.

A part of the agent's machine; its only I/O is reading the system clock. That clock may jump, so the latest time ever
seen counts (`ClockSeen`): setting the clock back does not revive an expired mandate. Without configured keys, no
mandate is required or checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edge_agent.records import MANDATES_KEPT, AgentState, ClockSeen, HeldMandate, MandateEnded, MandateTaken
from edge_agent.training.messages import Trained
from sojourn.logs import About
from sojourn.node.machine import Append, Effect, Log
from sojourn.protocol.mandates import Mandate, SignedMandate, SignedWithdrawal, beyond, unlike
from sojourn.protocol.messages import Prepare, Visit
from sojourn.protocol.wire import VisitReason

Refusal = tuple[VisitReason, str]

CLOCK_CHECK_SECONDS = 600.0
"""Maximum seconds between two checks of the clock while a mandate is in force; each check is recorded."""
UNSIGNED = (
    "no mandate: this device accepts only jobs that an operator signed. To do: `sojourn job sign`; if the job is "
    "signed, update the edge server, which does not forward mandates"
)


@dataclass
class Mandates:
    """The trusted operators and the mandates that they signed. `keys`: operator names by public key."""

    fleet: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    sites: frozenset[str] = frozenset()
    """The sites that this device belongs to, from its settings."""
    clock: Callable[[], float] = time.time
    _verified: dict[bytes, str] = field(default_factory=dict)
    """The key name of each mandate verified since the start, by mandate and signature."""
    _next_check: float | None = None

    @property
    def demanded(self) -> bool:
        """Whether this device requires mandates."""
        return bool(self.keys)

    def now(self, state: AgentState) -> float:
        """Return the current time, or the latest time seen if the clock was set back."""
        return max(self.clock(), state.mandates.seen)

    def wake_at(self) -> float | None:
        """Return when to check the clock again."""
        return self._next_check

    # --- checks

    def refusal(self, state: AgentState, edge: str, order: Visit) -> Refusal | None:
        """Return why a visit is not covered by a mandate; None if it is covered or none is required."""
        if not self.demanded:
            return None
        if order.mandate is None:
            return "unsupported", UNSIGNED  # an old edge server does not know the reason `mandate`
        found = self._objection(state, edge, order.id.job, order.mandate, order)
        if found is None and (mandate := order.mandate.read()):
            known = state.mandates.held.get(mandate.job)
            if order.id.round > mandate.rounds:
                found = f"the mandate ends with round {mandate.rounds}"
            elif known is None and state.mandates.is_full(self.now(state)):
                found = f"this device already stores {MANDATES_KEPT} mandates, the maximum"
            elif known and known.serial == mandate.serial and known.visits >= mandate.visits:
                found = f"{known.visits} results were sent under it, and it allows {mandate.visits}"
        return ("mandate", f"not covered: {found}") if found else None

    def allows(self, state: AgentState, edge: str, message: Prepare) -> bool:
        """Whether the worker may be warmed up, which loads a graph."""
        if not self.demanded:
            return True
        mandate = message.mandate
        return mandate is not None and not self._objection(state, edge, message.job, mandate, message)

    def _objection(
        self, state: AgentState, edge: str, job: str, signed: SignedMandate, order: Visit | Prepare
    ) -> str | None:
        mandate = signed.read()
        if mandate is None:
            return "the mandate cannot be read: a newer version wrote it, or it is damaged"
        if self._signer(signed) is None:
            return "the mandate is not signed with the key of a trusted operator"
        return (
            (f"the mandate is for the fleet {mandate.fleet!r}" if mandate.fleet != self.fleet else None)
            or _superseded_or_expired(mandate, state.mandates.held.get(mandate.job), self.now(state))
            or self._wrong_site(mandate, edge)
            or unlike(mandate, job, order.kit.digest, order.task)
        )

    def _signer(self, signed: SignedMandate) -> str | None:
        """Return the name of the trusted key that signed a mandate, or None; each mandate is verified once."""
        known = signed.mandate + signed.signature
        if known not in self._verified:
            key = signed.signer(self.keys)
            if key is None:
                return None
            if len(self._verified) >= MANDATES_KEPT:
                self._verified.clear()
            self._verified[known] = self.keys[key]
        return self._verified[known]

    def _wrong_site(self, mandate: Mandate, edge: str) -> str | None:
        if not mandate.sites:
            return None
        where = ", ".join(mandate.sites[:10])
        if not self.sites:
            return f"the mandate is for {where}, and this device has no site: set `site` in [mandate] of its agent.toml"
        if self.sites.isdisjoint(mandate.sites) or edge not in mandate.sites:
            own = ", ".join(sorted(self.sites))
            return f"the mandate is for {where}; the order came from {edge}, and this device belongs to {own}"
        return None

    def in_force(self, state: AgentState, job: str) -> Mandate | None:
        """Return the mandate of a job that is in force now, or None."""
        held = state.mandates.held.get(job)
        mandate = held.signed.read() if held and held.signed and not held.ended else None
        return mandate if mandate and mandate.ends > self.now(state) else None

    def result_objection(self, state: AgentState, job: str, outcome: Trained) -> str | None:
        """Return why a result must not be sent; None if the mandate covers it. The training process is not trusted."""
        if not self.demanded:
            return None
        mandate = self.in_force(state, job)
        if mandate is None:
            return "not covered: the mandate has ended"
        found = beyond(mandate, outcome.vectors, len(outcome.signature or ()))
        return f"not covered: {found}" if found else None

    # --- stored mandates

    def take(self, state: AgentState, order: Visit, now: float) -> list[Effect]:
        """Store the mandate of an accepted visit if it is new."""
        if not self.demanded or order.mandate is None:
            return []
        mandate, held = order.mandate.read(), state.mandates.held.get(order.id.job)
        by = self._signer(order.mandate)
        if mandate is None or by is None or (held and held.serial == mandate.serial):
            return []
        record = MandateTaken(mandate.job, mandate.serial, by, order.mandate, mandate.ends, self.now(state))
        state.apply(record)
        self._plan_check(state, now)
        until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(mandate.ends))
        return [
            Append(record, sync=True),
            Log(f"mandate {mandate.serial} for job {mandate.job} until {until}, by {by}", about=About(mandate.job)),
        ]

    def start(self, state: AgentState, now: float) -> list[Effect]:
        """End the mandates that expired while the agent was off, or whose key is no longer trusted."""
        if not self.demanded:
            return []
        effects: list[Effect] = []
        for job, held in list(state.mandates.held.items()):
            if held.signed and not held.ended and self._signer(held.signed) is None:
                effects += self._end(state, job, held.serial, held.until, "its key is no longer trusted on this device")
        return [*effects, *self.check_clock(state, now)]

    def check_clock(self, state: AgentState, now: float) -> list[Effect]:
        """Record the time of the clock, and end the mandates that have expired."""
        effects: list[Effect] = []
        for job, held in list(state.mandates.held.items()):
            if held.signed and not held.ended and self.in_force(state, job) is None:
                effects += self._end(state, job, held.serial, held.until, "expired")
        if self._in_force(state):
            record = ClockSeen(self.now(state))
            state.apply(record)
            effects.append(Append(record))
        self._plan_check(state, now)
        return effects

    def recalled(self, state: AgentState, signed: SignedWithdrawal) -> tuple[str, list[Effect]]:
        """Handle a withdrawal; return the job whose mandate it ends (empty if none) and the effects."""
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
            text = f"a withdrawal for job {it.job} is not signed by a trusted operator"
            return "", [Log(text, about=About(it.job))]
        return it.job, self._end(state, it.job, it.serial, it.ends, f"withdrawn by {self.keys[key]}", forget=True)

    def _end(
        self, state: AgentState, job: str, serial: int, until: float, why: str, *, forget: bool = False
    ) -> list[Effect]:
        record = MandateEnded(job, serial, why, until, self.now(state), forget)
        state.apply(record)
        return [Append(record, sync=True), Log(f"the mandate for job {job} has ended: {why}", about=About(job))]

    def _in_force(self, state: AgentState) -> list[Mandate]:
        found = [held.signed.read() for held in state.mandates.held.values() if held.signed and not held.ended]
        return [mandate for mandate in found if mandate]

    def _plan_check(self, state: AgentState, now: float) -> None:
        ends = [mandate.ends for mandate in self._in_force(state)]
        left = min(ends) - self.now(state) if ends else None
        self._next_check = None if left is None else now + max(1.0, min(CLOCK_CHECK_SECONDS, left))


def describe_trusted_keys(keys: Mapping[str, str]) -> str:
    """Describe for the owner which operators may let jobs train on this device."""
    if not keys:
        return (
            "not required: this device trains any job of the fleet's coordinator (to change that, set [mandate] in "
            "agent.toml)"
        )
    return f"required, signed by one of: {', '.join(sorted(keys.values()))}"


def _superseded_or_expired(mandate: Mandate, known: HeldMandate | None, now: float) -> str | None:
    """Return why a mandate is no longer in force; None if it is."""
    if known and mandate.serial <= known.serial and known.ended:
        return known.ended
    if known and mandate.serial < known.serial:
        return f"the mandate {known.serial} replaced it"
    if mandate.ends <= now:
        return "the mandate has expired"
    return None
