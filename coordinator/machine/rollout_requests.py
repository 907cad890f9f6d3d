"""Answer operators' requests about releases: start and steer rollouts, and show their status."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from coordinator.machine.answers import drop_oldest, refuse
from coordinator.machine.rollout_progress import RolloutEvent
from coordinator.machine.rollouts import Rollouts
from coordinator.releases.orders import CardChecked, CheckCard, misfit, unsigned
from coordinator.rollout_records import LineState, ReleasePayload, RolloutBegun
from sojourn.node.machine import Append, Effect, Log, Pull, Send, StartWork, WorkFailed
from sojourn.protocol.release import Order
from sojourn.protocol.release_messages import CardDetails, InspectReleases, ReadCard, Releases, Rollout, Steer
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.state import CoordinatorState

NO_KEY = "this coordinator has no release key (release_key_file in its settings)"
MAX_LINES = 32
"""Maximum model lines of a fleet: all of them fit in one message."""
MAX_STEERED = 64
"""Number of steering requests remembered; the oldest is dropped first."""


class _PendingRollout(msgspec.Struct):
    """A requested rollout whose blobs are being fetched."""

    operator: Address
    rollout: Rollout
    missing: set[bytes]
    checking: bool = False
    """Whether all blobs are here and the card is being read."""


class RolloutRequests:
    """Answers operators' requests. Volatile: a client repeats a request that got no answer."""

    def __init__(self, rollouts: Rollouts, fleet: str, key: str) -> None:
        """`key` is the public half of the fleet's release key; without it, the coordinator verifies nothing."""
        self._rollouts, self._fleet, self._key = rollouts, fleet, key
        self._pending: dict[str, _PendingRollout] = {}
        """Rollouts whose blobs are being fetched from the operator, by line."""
        self._steered: dict[str, None] = {}
        """Tickets of completed steering requests, oldest first, so that a late repeat changes nothing."""

    @property
    def _durable(self) -> CoordinatorState:
        return self._rollouts.durable

    def live(self) -> set[bytes]:
        """The blobs that are being fetched."""
        return {ref.digest for it in self._pending.values() for ref in (it.rollout.graph, it.rollout.card)}

    def inspect(self, operator: Address, message: InspectReleases, _now: float) -> list[Effect]:
        """Send the view of one line, or of all. A new line has no view."""
        lines = self._durable.lines
        wanted = [lines[message.line]] if message.line in lines else [] if message.line else list(lines.values())
        since = None if message.line is None else message.since or 0
        views = tuple(self._rollouts.view(line, since) for line in wanted)
        return [Send(operator, Releases(message.ticket, views))]

    def card(self, operator: Address, message: ReadCard, _now: float) -> list[Effect]:
        """Send the card of a release that is available here."""
        line = self._durable.lines.get(message.line)
        for payload in (line.forward, line.back) if line else ():
            if payload.card is not None and payload.read.goods and payload.read.version == message.version:
                return [Send(operator, CardDetails(message.ticket, payload.card, payload.read.goods.graph))]
        reason = f"the release {message.line} {message.version} is no longer available here"
        return refuse(operator, message.ticket, reason)

    def steer(self, operator: Address, message: Steer, now: float) -> list[Effect]:
        """Pause, resume or roll back; a repeat of a completed request is confirmed."""
        line = self._durable.lines.get(message.line)
        if line is None:
            known = ", ".join(self._durable.lines) or "none"
            return refuse(operator, message.ticket, f"there is no model line {message.line!r}; the lines are: {known}")
        done, event = message.ticket in self._steered, RolloutEvent(message.action)
        if not done and not self._rollouts.knows(line, event):
            version = line.forward.read.version
            reason = f"the rollout of {message.line} {version} is {line.status}: {_not_possible(line, message.action)}"
            return refuse(operator, message.ticket, reason)
        if not done and message.action == "resume" and self._key and not line.forward.order.signed_by(self._key):
            reason = f"its order is not signed with the fleet's release key: `sojourn release rollback {message.line}`"
            return refuse(operator, message.ticket, reason)
        effects: list[Effect] = []
        if not done and self._rollouts.changes(line, event):
            detail = "" if message.action == "resume" else f"{message.action} by {operator.name}"
            effects = self._rollouts.turn(line, event, detail, now)
        self._steered[message.ticket] = None
        drop_oldest(self._steered, MAX_STEERED)
        return [*effects, self._answer(operator, message.ticket, line)]

    def rollout(self, operator: Address, message: Rollout, _now: float) -> list[Effect]:
        """Start a rollout, unless it is inconsistent or conflicts with another; its blobs are fetched first."""
        forward, back = message.forward.read(), message.back.read()
        if forward is None or back is None:
            return refuse(operator, message.ticket, "the orders cannot be read")
        name = forward.line
        known = self._durable.lines.get(name)
        if known and known.ticket == message.ticket:  # a repeated request
            return [self._answer(operator, message.ticket, known)]
        if why := self._refusal_reason(message, forward, back):
            return refuse(operator, message.ticket, why)
        pending = self._pending.get(name)
        if pending is None or pending.rollout.ticket != message.ticket:
            pending = _PendingRollout(operator, message, {message.graph.digest, message.card.digest})
            self._pending[name] = pending
        return [Pull(ref, operator) for ref in (message.graph, message.card) if ref.digest in pending.missing]

    def pulled(self, digest: bytes, now: float) -> list[Effect]:
        """Start a rollout when all its blobs are here and, with a release key, its card has been checked."""
        effects: list[Effect] = []
        for name, pending in list(self._pending.items()):
            pending.missing.discard(digest)
            if pending.missing or pending.checking:
                continue
            if self._key:
                pending.checking, it = True, pending.rollout
                forward = it.forward.read()
                assert forward is not None  # noqa: S101  # it was read when it came
                effects.append(StartWork(_work_key(it.ticket), CheckCard(it.ticket, forward, it.card)))
            else:
                del self._pending[name]
                effects += self._begin(pending, name, now)
        return effects

    def checked(self, outcome: CardChecked, now: float) -> list[Effect]:
        """Start the rollout if its card matches the release, otherwise refuse it."""
        pending = self._pending.get(outcome.line)
        if pending is None or pending.rollout.ticket != outcome.ticket:
            return []
        del self._pending[outcome.line]
        if outcome.objection:
            return refuse(pending.operator, outcome.ticket, outcome.objection)
        return self._begin(pending, outcome.line, now)

    def not_checked(self, event: WorkFailed) -> list[Effect] | None:
        """Refuse the rollout because its card could not be read; None if other work failed."""
        for name, pending in self._pending.items():
            if event.key == _work_key(pending.rollout.ticket):
                del self._pending[name]
                reason = f"the card that came with the release cannot be read: {event.detail[:500]}"
                return refuse(pending.operator, pending.rollout.ticket, reason)
        return None

    def pull_failed(self, digest: bytes) -> None:
        """Drop the rollout; an operator that is still connected repeats the request."""
        self._pending = {name: it for name, it in self._pending.items() if digest not in it.missing}

    def _begin(self, pending: _PendingRollout, name: str, now: float) -> list[Effect]:
        it, known = pending.rollout, self._durable.lines.get(name)
        forward = ReleasePayload(it.forward, it.graph, it.card)
        back = (
            ReleasePayload(it.back, known.serves.graph, known.serves.card)
            if known
            else ReleasePayload(it.back, None, None)
        )
        if why := self._refusal_reason(it, forward.read, back.read):  # another rollout may have started meanwhile
            return refuse(pending.operator, it.ticket, why)
        record = RolloutBegun(name, it.ticket, forward, back, it.stages, it.rules, it.undo)
        self._durable.apply(record)
        line = self._durable.lines[name]
        order = forward.read
        text = f"release {name} {order.version}: rollout begun by {pending.operator.name}, order {order.serial}"
        lines = [Log(text)]
        if not self._key:
            lines.append(Log(f"release {name}: only the devices verify its orders: {NO_KEY}", "warning"))
        written = Append(record, sync=True, blobs=(it.graph.digest, it.card.digest))
        return [written, *lines, *self._rollouts.begun(line, now), self._answer(pending.operator, it.ticket, line)]

    def _refusal_reason(self, message: Rollout, forward: Order, back: Order) -> str | None:
        known = self._durable.lines.get(forward.line)
        if (forward.fleet, forward.line) != (back.fleet, back.line) or forward.fleet != self._fleet:
            return f"the orders are not both for one model line of the fleet {self._fleet!r}"
        if self._key and (why := unsigned(message, self._key)):
            return why
        if why := misfit(message, forward, known.back.read.serial if known else 0):
            return why
        if any(a >= b for a, b in pairwise(message.stages)) or message.stages[-1] != 1.0:
            return "each stage must reach more devices than the one before, and the last stage must reach all"
        if not forward.version or not back.rollback or back.serial <= forward.serial:
            return "the order back must be a rollback with a higher serial number than the order that it undoes"
        if known is None:
            wrong = back.goods is not None or len(self._durable.lines) >= MAX_LINES
            return (
                f"this fleet has {MAX_LINES} model lines already, or the order back names a release" if wrong else None
            )
        if not known.over:
            version = known.forward.read.version
            return (
                f"the rollout of {forward.line} {version} is {known.status}: let it end, or roll it back with "
                f"`sojourn release rollback {forward.line}`"
            )
        serves = known.serves.read
        same = (back.version, back.goods) == (serves.version, serves.goods)
        if forward.serial <= known.back.read.serial or not same:
            return "another rollout was started in the meantime: check `sojourn release status` and try again"
        if forward.version <= max(known.forward.read.version, serves.version):
            last = known.forward.read.version
            return f"{forward.line} {last} was already rolled out: a release needs a higher version"
        return None

    def _answer(self, operator: Address, ticket: str, line: LineState) -> Send:
        return Send(operator, Releases(ticket, (self._rollouts.view(line, 0),)))


def _work_key(ticket: str) -> str:
    return f"card {ticket}"


def _not_possible(line: LineState, action: str) -> str:
    """Return why an action is not possible for a rollout in this state, and which one is."""
    match action, line.status:
        case "resume", "halted":
            return "use `rollback`; a rollout with other rules needs a new version"
        case _, "rolling-back" | "rolled-back":
            return "it is being rolled back, or was"
        case _:
            return f"there is nothing to {action}"
