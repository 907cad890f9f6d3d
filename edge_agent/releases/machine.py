"""Releases on a device: takes signed orders, has their goods fetched, tried and served, and says how that went.

A part of the agent's machine, without I/O. For each model line only the newest order counts; what it was and how it
ended is durable, so an order is obeyed once and an old one never again. What is served is not touched before the new
release was fetched whole, verified and tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.records import ReleaseEnded, ReleaseOrdered, Served
from edge_agent.releases.work import Install, Installed, Withdraw
from sojourn.node.machine import Append, Do, Pull, Say, Send, Undo
from sojourn.protocol.release import ENDS, Health
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref

if TYPE_CHECKING:
    from edge_agent.records import AgentState, ReleaseLine
    from edge_agent.releases.work import Usage
    from sojourn.node.machine import Did, DidNot, Effect
    from sojourn.protocol.release import Order, ReleaseState
    from sojourn.protocol.release_messages import Release

LINES = 16
"""A device serves at most so many model lines."""


class _Task(msgspec.Struct, frozen=True):
    """Work for the installer, and the order that it is for."""

    work: Install | Withdraw
    serial: int
    restores: bool = False
    """Whether it only makes sure of what is served anyway: then there is nothing to tell of its end."""

    @property
    def key(self) -> str:
        """Its name, which no other work has: what is late of an older one is not taken for this one's."""
        version = self.work.version if isinstance(self.work, Install) else 0
        return f"release {self.work.line} {self.serial}.{version}"

    @property
    def tries(self) -> bool:
        """Whether it takes the processor: training waits for it, and it for training."""
        return isinstance(self.work, Install) and not self.work.known


class Releases:
    """What a device serves. `key` is the public key of whom it takes orders from; empty for nobody."""

    def __init__(self, fleet: str, key: str) -> None:
        self._fleet, self._key = fleet, key
        self._lacking: dict[str, set[bytes]] = {}
        """What is being fetched, by line."""
        self._waiting: dict[str, _Task] = {}
        """What is to be done as soon as it may be, by line."""
        self._working: dict[str, _Task] = {}
        """What is under way, by line: one piece of work at a time."""
        self._live: dict[str, tuple[int, Health]] = {}
        """How programs use a line, by version."""
        self._edges: dict[str, str] = {}
        """Who asked last, by line: a device may have moved to another site since it took the order."""

    @property
    def trying(self) -> bool:
        """Whether a release is being tried."""
        return any(task.tries for task in self._working.values())

    def start(self, state: AgentState) -> list[Effect]:
        """Take up what was ordered and did not end, and make sure of what is served where that is not certain."""
        effects: list[Effect] = []
        for line in state.lines.values():
            if line.state not in ENDS:
                effects += self._begin(line)
            elif line.unsure:
                self._restore(line)
        return effects

    def linked(self, state: AgentState) -> list[Effect]:
        """The edge server may not have heard of us for a while."""
        return [self._report(line) for line in state.lines.values()]

    def ordered(self, state: AgentState, edge: Address, message: Release) -> list[Effect]:
        """An order came: obey it, answer it again, or say why not."""
        order = message.order.read()
        if order is None:
            return [Say(f"{edge} sent an order that cannot be read", "warning")]
        if why := self._untrusted(message, order):
            report = ReleaseReport(order.line, order.serial, _version(state, order.line), "refused", why)
            return [Send(edge, report), Say(f"refused release {order.line} {order.version}: {why}", "warning")]
        known = state.lines.get(order.line)
        if known is None and len(state.lines) >= LINES:
            why = f"this device serves {LINES} model lines already"
            return [Send(edge, ReleaseReport(order.line, order.serial, 0, "refused", why))]
        if known and order.serial <= known.order.serial:
            return self._again(known, order, edge.name)
        self._edges[order.line] = edge.name
        effects = self._drop(order.line)
        record = ReleaseOrdered(edge.name, order)
        state.apply(record)
        line = state.lines[order.line]
        told = f"release {order.line} {order.version or 'none'}, order {order.serial} from {edge.name}"
        return [*effects, Append(record, sync=True), Say(told), *self._obey(state, line)]

    def pulled(self, digest: bytes, state: AgentState) -> None:
        """Something is here: the release may be tried when all of it is."""
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            self._lacking[name].discard(digest)
            if not self._lacking[name]:
                del self._lacking[name]
                order = state.lines[name].order
                assert order.goods is not None  # noqa: S101  # or nothing would be fetched
                self._waiting[name] = _Task(Install(name, order.version, order.goods), order.serial)

    def pull_failed(self, digest: bytes, reason: str, state: AgentState) -> list[Effect]:
        """What the edge server has no more it is asked for again when it repeats the order; a full disk ends it."""
        effects: list[Effect] = []
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            del self._lacking[name]
            if reason == "disk":
                effects += self._end(state, name, "failed", "the disk is full")
        return effects

    def go_on(self, *, busy: bool) -> list[Effect]:
        """Begin the work that may begin: a release is tried while no visit and no other has the processor."""
        effects: list[Effect] = []
        for name, task in list(self._waiting.items()):
            if name in self._working or (task.tries and (busy or self.trying)):
                continue
            self._working[name] = self._waiting.pop(name)
            effects.append(Do(task.key, task.work))
        return effects

    def did(self, event: Did, state: AgentState) -> list[Effect] | None:
        """Work on a release is done, if it was that."""
        task = self._done(event.key)
        if task is None:
            return None
        line = state.lines[task.work.line]
        if task.restores or task.serial != line.order.serial:
            return []
        if isinstance(task.work, Withdraw):
            return self._end(state, task.work.line, "withdrawn", "")
        tried = event.outcome.health if isinstance(event.outcome, Installed) else None
        health = line.health if line.serves_as_ordered else tried  # what is served already was tried when it came
        return self._end(state, task.work.line, "serving", "", health)

    def did_not(self, event: DidNot, state: AgentState) -> list[Effect] | None:
        """Work on a release failed, if it was that: what was served before is served still."""
        task = self._done(event.key)
        if task is None:
            return None
        name = task.work.line
        line = state.lines[name]
        if task.restores:
            return [Say(f"release {name}: what was served before is not served again: {event.detail}", "warning")]
        if task.serial != line.order.serial:
            return []
        if isinstance(task.work, Install) and task.work.known:  # it is not here any more, or damaged
            return [Say(f"release {name} is fetched anew: {event.detail}", "warning"), *self._fetch(line)]
        return self._end(state, name, "failed", event.detail[:2000])

    def used(self, usage: Usage, state: AgentState) -> list[Effect]:
        """Programs told how they use a release; where they cannot load it, the one before is current again for all."""
        line = state.lines.get(usage.line)
        if line is None or line.serving is None or line.serving.version != usage.version:
            return []
        if usage.failure and line.state in ENDS and line.state != "fell-back":
            return self._end(state, usage.line, "fell-back", usage.failure[:2000])
        self._live[usage.line] = (usage.version, usage.health)
        return [self._report(line)]

    def _untrusted(self, message: Release, order: Order) -> str | None:
        if not self._key:
            return "this device has no release key: name its file in the table [release] of its agent.toml"
        if not message.order.signed_by(self._key):
            return "the order is not signed with the fleet's release key"
        if order.fleet != self._fleet:
            return f"the order is for the fleet {order.fleet!r}"
        return None

    def _again(self, known: ReleaseLine, order: Order, edge: str) -> list[Effect]:
        """An order that we know, or an older one: say where we are, and fetch on if that came to a halt."""
        name = order.line
        moved = self._edge(known) != edge
        self._edges[name] = edge
        effects: list[Effect] = []
        if order.serial == known.order.serial and known.state not in ENDS:
            if name not in self._lacking and name not in self._waiting and name not in self._working:
                effects = self._begin(known)
            elif moved and name in self._lacking:
                effects = self._fetch(known)
        return [*effects, self._report(known)]

    def _obey(self, state: AgentState, line: ReleaseLine) -> list[Effect]:
        order, served = line.order, line.serving
        if served and not order.rollback and order.version < served.version:
            why = f"version {order.version} is older than {served.version}, which is served: that takes a rollback"
            return self._end(state, order.line, "refused", why)
        if line.serves_as_ordered and not line.unsure:
            return self._end(state, order.line, "serving", "", line.health)
        return [*self._begin(line), self._report(line)]

    def _begin(self, line: ReleaseLine) -> list[Effect]:
        """Fetch what is not here, or go straight to work."""
        order = line.order
        if order.goods is None:
            self._waiting[order.line] = _Task(Withdraw(order.line), order.serial)
            return []
        ordered = Served(order.version, order.goods)
        if ordered in (line.serving, line.previous):
            self._waiting[order.line] = _Task(Install(order.line, *ordered.parts, known=True), order.serial)
            return []
        return self._fetch(line)

    def _fetch(self, line: ReleaseLine) -> list[Effect]:
        goods = line.order.goods
        assert goods is not None  # noqa: S101  # callers have looked
        parcels = dict.fromkeys((goods.graph, goods.card))
        self._lacking[line.order.line] = {parcel.digest for parcel in parcels}
        source = Address("edge", self._edge(line))
        return [Pull(Ref(parcel.digest, parcel.size), source) for parcel in parcels]

    def _restore(self, line: ReleaseLine) -> None:
        """See to it that what should be served is: a trial that was ended may have swapped it just before."""
        name, served = line.order.line, line.serving
        work = Install(name, *served.parts, known=True) if served else Withdraw(name)
        self._waiting[name] = _Task(work, line.order.serial, restores=True)

    def _done(self, key: str) -> _Task | None:
        name = next((name for name, task in self._working.items() if task.key == key), None)
        return None if name is None else self._working.pop(name)

    def _drop(self, name: str) -> list[Effect]:
        """A newer order takes the place of one that did not end; what takes no time is let be, and waited for."""
        self._lacking.pop(name, None)
        self._waiting.pop(name, None)
        task = self._working.get(name)
        if task is None or not task.tries:
            return []
        del self._working[name]
        return [Undo(task.key)]

    def _end(
        self, state: AgentState, name: str, how: ReleaseState, detail: str, health: Health | None = None
    ) -> list[Effect]:
        line = state.lines[name]
        record = ReleaseEnded(name, how, detail, health)
        state.apply(record)
        if line.unsure:
            self._restore(line)
        text = f"release {name} {line.order.version}: {how}{': ' if detail else ''}{detail}"
        told = Say(text, "warning" if detail else "info")
        return [Append(record, sync=True), told, self._report(line)]

    def _edge(self, line: ReleaseLine) -> str:
        return self._edges.get(line.order.line, line.source)

    def _report(self, line: ReleaseLine) -> Send:
        order, version = line.order, line.serving.version if line.serving else 0
        name = order.line
        tried = name not in self._lacking and (name in self._waiting or name in self._working)
        state = "checking" if line.state == "fetching" and tried else line.state
        health, live = line.health or Health(), self._live.get(name)
        if live and live[0] == version:
            used = live[1]
            health = msgspec.structs.replace(
                health, predictions=used.predictions, live=used.live, live_before=used.live_before,
                live_drift=used.live_drift, errors=used.errors, mix=used.mix,
            )  # fmt: skip
        report = ReleaseReport(name, order.serial, version, state, line.detail, health)
        return Send(Address("edge", self._edge(line)), report)


def _version(state: AgentState, line: str) -> int:
    known = state.lines.get(line)
    return known.serving.version if known and known.serving else 0
