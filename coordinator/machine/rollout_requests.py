"""What operators ask about releases: to begin a rollout, to steer it, and how it goes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from coordinator.releases.verifying import CheckCard, misfit, unsigned
from coordinator.rollout_records import Cargo, RolloutBegun
from sojourn.node.machine import Append, Do, Pull, Say, Send
from sojourn.protocol.messages import Refused
from sojourn.protocol.release_messages import CardTold, InspectReleases, Releases, Rollout, Steer
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from coordinator.machine.rollouts import Rollouts
    from coordinator.releases.verifying import CardChecked
    from coordinator.rollout_records import LineState
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import DidNot, Effect
    from sojourn.protocol.release import Order
    from sojourn.protocol.release_messages import ReadCard

NO_KEY = "this coordinator has no release key (release_key_file in its settings)"
LINES = 32
"""Model lines of a fleet: all of them fit in one message."""
STEERED = 64
"""At most this many steering requests are remembered; the oldest goes first."""


class _Coming(msgspec.Struct):
    """A rollout that was asked for and whose goods are being fetched."""

    operator: Address
    rollout: Rollout
    lacking: set[bytes]
    checking: bool = False
    """Whether all is here and its card is being read."""


class RolloutRequests:
    """Answers operators. Volatile: an operator whose question got no answer asks again."""

    def __init__(self, rollouts: Rollouts, fleet: str, key: str = "") -> None:
        """`key` is the public half of the fleet's release key; without it nothing is verified here."""
        self._rollouts, self._fleet, self._key = rollouts, fleet, key
        self._coming: dict[str, _Coming] = {}
        """Rollouts whose goods are being fetched from the operator, by line."""
        self._steered: dict[str, None] = {}
        """Tickets of steering requests already done, oldest first: a repeat that comes late changes nothing."""

    @property
    def _durable(self) -> CoordinatorState:
        return self._rollouts.durable

    def live(self) -> set[bytes]:
        """The goods that are being fetched."""
        return {ref.digest for it in self._coming.values() for ref in (it.rollout.graph, it.rollout.card)}

    def inspect(self, operator: Address, message: InspectReleases) -> list[Effect]:
        """What there is to say of one line, or of all. A line that nobody knows has no view: it is new."""
        lines = self._durable.lines
        wanted = [lines[message.line]] if message.line in lines else [] if message.line else list(lines.values())
        since = None if message.line is None else message.since or 0
        views = tuple(self._rollouts.view(line, since) for line in wanted)
        return [Send(operator, Releases(message.ticket, views))]

    def card(self, message: ReadCard) -> CardTold | Refused:
        """The card of a release that is here."""
        line = self._durable.lines.get(message.line)
        for cargo in (line.forward, line.back) if line else ():
            if cargo.card is not None and cargo.read.goods and cargo.read.version == message.version:
                return CardTold(message.ticket, cargo.card, cargo.read.goods.graph)
        return Refused(message.ticket, f"the release {message.line} {message.version} is not here any more")

    def steer(self, operator: Address, message: Steer, now: float) -> list[Effect]:
        """Pause, resume or undo; asked again after it was done, say so."""
        line = self._durable.lines.get(message.line)
        if line is None:
            known = ", ".join(self._durable.lines) or "none"
            reason = f"there is no model line {message.line!r}; the lines are: {known}"
            return [Send(operator, Refused(message.ticket, reason))]
        done = message.ticket in self._steered
        if not done and not self._rollouts.knows(line, message.action):
            version = line.forward.read.version
            reason = f"the rollout of {message.line} {version} is {line.status}: {_why_not(line, message.action)}"
            return [Send(operator, Refused(message.ticket, reason))]
        if not done and message.action == "resume" and self._key and not line.forward.order.signed_by(self._key):
            reason = f"its order is not signed with the fleet's release key: `sojourn release rollback {message.line}`"
            return [Send(operator, Refused(message.ticket, reason))]
        effects: list[Effect] = []
        if not done and self._rollouts.changes(line, message.action):
            detail = "" if message.action == "resume" else f"{message.action} by {operator.name}"
            effects = self._rollouts.turn(line, message.action, detail, now)
        self._steered[message.ticket] = None
        while len(self._steered) > STEERED:
            del self._steered[next(iter(self._steered))]
        return [*effects, self._answer(operator, message.ticket, line)]

    def rollout(self, operator: Address, message: Rollout) -> list[Effect]:
        """Begin a rollout, unless it contradicts itself or what is known; its goods are fetched first."""
        forward, back = message.forward.read(), message.back.read()
        if forward is None or back is None:
            return [Send(operator, Refused(message.ticket, "the orders cannot be read"))]
        name = forward.line
        known = self._durable.lines.get(name)
        if known and known.ticket == message.ticket:  # asked again
            return [self._answer(operator, message.ticket, known)]
        if why := self._objection(message, forward, back):
            return [Send(operator, Refused(message.ticket, why))]
        coming = self._coming.get(name)
        if coming is None or coming.rollout.ticket != message.ticket:
            coming = _Coming(operator, message, {message.graph.digest, message.card.digest})
            self._coming[name] = coming
        return [Pull(ref, operator) for ref in (message.graph, message.card) if ref.digest in coming.lacking]

    def pulled(self, digest: bytes, now: float) -> list[Effect]:
        """Goods are here: the rollout begins when all are, and with a key when their card was found to be theirs."""
        effects: list[Effect] = []
        for name, coming in list(self._coming.items()):
            coming.lacking.discard(digest)
            if coming.lacking or coming.checking:
                continue
            if self._key:
                coming.checking, it = True, coming.rollout
                forward = it.forward.read()
                assert forward is not None  # noqa: S101  # it was read when it came
                effects.append(Do(_work_key(it.ticket), CheckCard(it.ticket, forward, it.card)))
            else:
                del self._coming[name]
                effects += self._begin(coming, name, now)
        return effects

    def checked(self, outcome: CardChecked, now: float) -> list[Effect]:
        """The card was read."""
        coming = self._coming.get(outcome.line)
        if coming is None or coming.rollout.ticket != outcome.ticket:
            return []
        del self._coming[outcome.line]
        if outcome.objection:
            return [Send(coming.operator, Refused(outcome.ticket, outcome.objection))]
        return self._begin(coming, outcome.line, now)

    def not_checked(self, event: DidNot) -> list[Effect] | None:
        """The card could not be read; None if it was other work that failed."""
        for name, coming in self._coming.items():
            if event.key == _work_key(coming.rollout.ticket):
                del self._coming[name]
                reason = f"the card that came with the release cannot be read: {event.detail[:500]}"
                return [Send(coming.operator, Refused(coming.rollout.ticket, reason))]
        return None

    def pull_failed(self, digest: bytes) -> None:
        """The operator is gone; who is still there asks again."""
        self._coming = {name: it for name, it in self._coming.items() if digest not in it.lacking}

    def _begin(self, coming: _Coming, name: str, now: float) -> list[Effect]:
        it, known = coming.rollout, self._durable.lines.get(name)
        forward = Cargo(it.forward, it.graph, it.card)
        back = Cargo(it.back, known.serves.graph, known.serves.card) if known else Cargo(it.back, None, None)
        if why := self._objection(it, forward.read, back.read):  # somebody was quicker while the goods came
            return [Send(coming.operator, Refused(it.ticket, why))]
        record = RolloutBegun(name, it.ticket, forward, back, it.stages, it.rules, it.undo)
        self._durable.apply(record)
        line = self._durable.lines[name]
        order = forward.read
        text = f"release {name} {order.version}: rollout begun by {coming.operator.name}, order {order.serial}"
        said = [Say(text)]
        if not self._key:
            said.append(Say(f"release {name}: nobody but the devices verifies its orders: {NO_KEY}", "warning"))
        written = Append(record, sync=True, blobs=(it.graph.digest, it.card.digest))
        return [written, *said, *self._rollouts.begun(line, now), self._answer(coming.operator, it.ticket, line)]

    def _objection(self, message: Rollout, forward: Order, back: Order) -> str | None:
        known = self._durable.lines.get(forward.line)
        if (forward.fleet, forward.line) != (back.fleet, back.line) or forward.fleet != self._fleet:
            return f"the orders are not both for one model line of the fleet {self._fleet!r}"
        if self._key and (why := unsigned(message, self._key)):
            return why
        if why := misfit(message, forward, known.back.read.serial if known else 0):
            return why
        if any(a >= b for a, b in pairwise(message.stages)) or message.stages[-1] != 1.0:
            return "each stage must reach more devices than the one before, and the last all of them"
        if not forward.version or not back.rollback or back.serial <= forward.serial:
            return "the order back must be a rollback with a higher serial number than the order that it undoes"
        if known is None:
            wrong = back.goods is not None or len(self._durable.lines) >= LINES
            return f"this fleet has {LINES} model lines already, or the order back names a release" if wrong else None
        if not known.over:
            version = known.forward.read.version
            return (
                f"the rollout of {forward.line} {version} is {known.status}: let it end, or undo it with "
                f"`sojourn release rollback {forward.line}`"
            )
        serves = known.serves.read
        same = (back.version, back.goods) == (serves.version, serves.goods)
        if forward.serial <= known.back.read.serial or not same:
            return "another rollout was begun in the meantime: look at `sojourn release status` and try again"
        if forward.version <= max(known.forward.read.version, serves.version):
            last = known.forward.read.version
            return f"{forward.line} {last} was rolled out already: a release needs a higher version"
        return None

    def _answer(self, operator: Address, ticket: str, line: LineState) -> Send:
        return Send(operator, Releases(ticket, (self._rollouts.view(line, 0),)))


def _work_key(ticket: str) -> str:
    return f"card {ticket}"


def _why_not(line: LineState, action: str) -> str:
    """Why an action is not for a rollout in this state, and what is."""
    match action, line.status:
        case "resume", "halted":
            return "undo it with `rollback`; a rollout with other rules needs a new version"
        case _, "rolling-back" | "rolled-back":
            return "it is being undone, or was"
        case _:
            return f"there is nothing to {action}"
