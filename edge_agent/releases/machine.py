"""Releases on a device: takes signed orders, has their goods fetched, tried and served, and says how that went.

A part of the agent's machine, without I/O. For each model line only the newest order counts; what it was and how it
ended is durable, so an order is obeyed once and an old one never again. What is served is not touched before the new
release was fetched whole, verified and tried. Each change of an order is a row of `edge_agent.releases.table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.records import ReleaseEnded, ReleaseOrdered, ServedRelease
from edge_agent.releases.table import DEVICE_RELEASE, REPORTED, DeviceReleaseEvent, DeviceReleaseState
from edge_agent.releases.tasks import ReleaseTask, work_for
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
    from sojourn.protocol.release import Order
    from sojourn.protocol.release_messages import Release

LINES = 16
"""A device serves at most this many model lines."""


class ReleaseMachine:
    """What a device serves. `key` is the public key of whom it takes orders from; empty for nobody."""

    def __init__(self, fleet: str, key: str) -> None:
        self._fleet, self._key = fleet, key
        self._states: dict[str, DeviceReleaseState] = {}
        """Where the newest order of a line is, as far as this process has seen to it."""
        self._lacking: dict[str, set[bytes]] = {}
        """What is being fetched, by line."""
        self._waiting: dict[str, ReleaseTask] = {}
        """What is to be done as soon as it may be, by line."""
        self._working: dict[str, ReleaseTask] = {}
        """What is under way, by line: one piece of work at a time."""
        self._live: dict[str, tuple[int, Health]] = {}
        """How programs use a line, by version."""
        self._early: dict[str, Usage] = {}
        """What programs report of a version on the disk whose installation has not ended here, by line."""
        self._edges: dict[str, str] = {}
        """Who asked last, by line: a device may have moved to another site since it took the order."""

    @property
    def trying(self) -> bool:
        """Whether a release is being tried."""
        return bool(self._working) and any(task.tries for task in self._working.values())

    @property
    def waits(self) -> bool:
        """Whether something is to be done as soon as it may be."""
        return bool(self._waiting)

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
        """The link is up: report every line, since the edge server may not have heard of us for a while."""
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
        self._step(order.line, known, DeviceReleaseEvent.ORDERED)
        effects = self._drop(order.line)
        record = ReleaseOrdered(edge.name, order)
        state.apply(record)
        line = state.lines[order.line]
        text = f"release {order.line} {order.version or 'none'}, order {order.serial} from {edge.name}"
        return [*effects, Append(record, sync=True), Say(text), *self._obey(state, line)]

    def pulled(self, digest: bytes, state: AgentState) -> None:
        """A blob came: a release of which all blobs are here may be tried."""
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            self._lacking[name].discard(digest)
            if not self._lacking[name]:
                del self._lacking[name]
                self._step(name, state.lines[name], DeviceReleaseEvent.ALL_FETCHED)
                order = state.lines[name].order
                assert order.goods is not None  # noqa: S101  # or nothing would be fetched
                self._waiting[name] = ReleaseTask(Install(name, order.version, order.goods), order.serial)

    def pull_failed(self, digest: bytes, reason: str, state: AgentState) -> list[Effect]:
        """A blob cannot be had: the order waits until the edge server repeats it; a full disk ends it."""
        effects: list[Effect] = []
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            del self._lacking[name]
            if reason == "disk":
                effects += self._end(state, name, DeviceReleaseEvent.DISK_FULL, "the disk is full")
            else:
                self._step(name, state.lines[name], DeviceReleaseEvent.GONE)
        return effects

    def go_on(self, state: AgentState, *, busy: bool) -> list[Effect]:
        """Begin the work that may begin: a release is tried while no visit and no other has the processor."""
        effects: list[Effect] = []
        for name, task in list(self._waiting.items()):
            if name in self._working or (task.tries and (busy or self.trying)):
                continue
            self._working[name] = self._waiting.pop(name)
            if not task.restores:
                self._step(name, state.lines[name], DeviceReleaseEvent.BEGUN)
            effects.append(Do(task.key, task.work))
        return effects

    def did(self, event: Did, state: AgentState) -> list[Effect] | None:
        """Work is done; None if it was not work on a release."""
        task = self._done(event.key)
        if task is None:
            return None
        line = state.lines[task.work.line]
        if task.restores or task.serial != line.order.serial:
            return []
        if isinstance(task.work, Withdraw):
            return self._end(state, task.work.line, DeviceReleaseEvent.TAKEN_DOWN)
        tried = event.outcome.health if isinstance(event.outcome, Installed) else None
        health = line.health if line.serves_as_ordered else tried  # what is served already was tried when it came
        effects = self._end(state, task.work.line, DeviceReleaseEvent.INSTALLED, "", health)
        early = self._early.pop(task.work.line, None)
        return [*effects, *(self.used(early, state) if early else ())]

    def did_not(self, event: DidNot, state: AgentState) -> list[Effect] | None:
        """Work failed, and what was served before is served still; None if it was not work on a release."""
        task = self._done(event.key)
        if task is None:
            return None
        name = task.work.line
        line = state.lines[name]
        self._early.pop(name, None)
        if task.restores:
            return [Say(f"release {name}: what was served before is not served again: {event.detail}", "warning")]
        if task.serial != line.order.serial:
            return []
        if isinstance(task.work, Install) and task.work.known:  # it is not here any more, or damaged
            self._step(name, line, DeviceReleaseEvent.DAMAGED)
            return [Say(f"release {name} is fetched anew: {event.detail}", "warning"), *self._fetch(line)]
        return self._end(state, name, DeviceReleaseEvent.NOT_DONE, event.detail[:2000])

    def used(self, usage: Usage, state: AgentState) -> list[Effect]:
        """Programs told how they use a release; where they cannot load it, the one before is current again for all."""
        line = state.lines.get(usage.line)
        if line is None or line.serving is None or line.serving.version != usage.version:
            task = self._working.get(usage.line)
            if line and task and not task.restores and line.order.version == usage.version:
                self._early[usage.line] = usage  # programs see the new version before its installation has ended here
            return []
        if usage.failure and DEVICE_RELEASE.knows(self._state_of(line), DeviceReleaseEvent.NOT_LOADED):
            return self._end(state, usage.line, DeviceReleaseEvent.NOT_LOADED, usage.failure[:2000])
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
        if order.serial == known.order.serial:
            at = self._step(name, known, DeviceReleaseEvent.REPEATED)
            if at == DeviceReleaseState.ORDERED:
                effects = self._begin(known)
            elif at == DeviceReleaseState.FETCHING and moved:
                effects = self._fetch(known)
        return [*effects, self._report(known)]

    def _obey(self, state: AgentState, line: ReleaseLine) -> list[Effect]:
        order, served = line.order, line.serving
        if served and not order.rollback and order.version < served.version:
            why = f"version {order.version} is older than {served.version}, which is served: that takes a rollback"
            return self._end(state, order.line, DeviceReleaseEvent.OLDER, why)
        if line.serves_as_ordered and not line.unsure:
            return self._end(state, order.line, DeviceReleaseEvent.SERVED_ALREADY, "", line.health)
        return [*self._begin(line), self._report(line)]

    def _begin(self, line: ReleaseLine) -> list[Effect]:
        """Fetch what is not here, or go straight to work."""
        order = line.order
        ordered = ServedRelease(order.version, order.goods) if order.goods else None
        if ordered and ordered not in (line.serving, line.previous):
            self._step(order.line, line, DeviceReleaseEvent.NOT_HERE)
            return self._fetch(line)
        self._step(order.line, line, DeviceReleaseEvent.HERE)
        self._waiting[order.line] = ReleaseTask(work_for(order.line, ordered), order.serial)
        return []

    def _fetch(self, line: ReleaseLine) -> list[Effect]:
        goods = line.order.goods
        assert goods is not None  # noqa: S101  # callers have looked
        parcels = dict.fromkeys((goods.graph, goods.card))
        self._lacking[line.order.line] = {parcel.digest for parcel in parcels}
        source = Address("edge", self._edge(line))
        return [Pull(Ref(parcel.digest, parcel.size), source) for parcel in parcels]

    def _restore(self, line: ReleaseLine) -> None:
        """See to it that what should be served is: a trial that was ended may have swapped it just before."""
        name = line.order.line
        self._waiting[name] = ReleaseTask(work_for(name, line.serving), line.order.serial, restores=True)

    def _done(self, key: str) -> ReleaseTask | None:
        name = next((name for name, task in self._working.items() if task.key == key), None)
        return None if name is None else self._working.pop(name)

    def _drop(self, name: str) -> list[Effect]:
        """Give up what is under way for an older order; work that takes no time is waited for instead."""
        self._lacking.pop(name, None)
        self._waiting.pop(name, None)
        self._early.pop(name, None)
        task = self._working.get(name)
        if task is None or not task.tries:
            return []
        del self._working[name]
        return [Undo(task.key)]

    def _state_of(self, line: ReleaseLine | None) -> DeviceReleaseState:
        if line is None:
            return DeviceReleaseState.NONE
        durable = DeviceReleaseState(line.state) if line.state in ENDS else DeviceReleaseState.ORDERED
        return self._states.get(line.order.line, durable)

    def _step(self, name: str, line: ReleaseLine | None, event: DeviceReleaseEvent) -> DeviceReleaseState:
        """Go to the state that follows for the order of a line."""
        self._states[name] = DeviceReleaseState(DEVICE_RELEASE.step(self._state_of(line), event))
        return self._states[name]

    def _end(
        self, state: AgentState, name: str, event: DeviceReleaseEvent, detail: str = "", health: Health | None = None
    ) -> list[Effect]:
        """Keep and report what became of the order."""
        line = state.lines[name]
        how = REPORTED[self._step(name, line, event)]
        record = ReleaseEnded(name, how, detail, health)
        state.apply(record)
        if line.unsure:
            self._restore(line)
        text = f"release {name} {line.order.version}: {how}{': ' if detail else ''}{detail}"
        return [Append(record, sync=True), Say(text, "warning" if detail else "info"), self._report(line)]

    def _edge(self, line: ReleaseLine) -> str:
        return self._edges.get(line.order.line, line.source)

    def _report(self, line: ReleaseLine) -> Send:
        order, version = line.order, line.serving.version if line.serving else 0
        name = order.line
        health, live = line.health or Health(), self._live.get(name)
        if live and live[0] == version:
            used = live[1]
            health = msgspec.structs.replace(
                health,
                predictions=used.predictions,
                live=used.live,
                live_before=used.live_before,
                live_drift=used.live_drift,
                errors=used.errors,
                mix=used.mix,
            )
        report = ReleaseReport(name, order.serial, version, REPORTED[self._state_of(line)], line.detail, health)
        return Send(Address("edge", self._edge(line)), report)


def _version(state: AgentState, line: str) -> int:
    known = state.lines.get(line)
    return known.serving.version if known and known.serving else 0
