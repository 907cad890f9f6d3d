"""Releases on a device: accepts signed orders, has them fetched, tried and served, and reports the outcome.

A part of the agent's machine, without I/O. For each model line only the newest order counts. The order and its outcome
are durable, so an order is performed once and an old one never again. The served release stays in place until the new
one is completely fetched, verified and tried. Each transition of an order is a row of `edge_agent.releases.orders`.
"""

from __future__ import annotations

import msgspec

from edge_agent.records import AgentState, ReleaseEnded, ReleaseLine, ReleaseOrdered, ServedRelease
from edge_agent.releases.orders import (
    DEVICE_RELEASE,
    REPORTED,
    DeviceReleaseEvent,
    DeviceReleaseState,
    Install,
    Installed,
    ReleaseTask,
    Usage,
    Withdraw,
    work_for,
)
from sojourn.node.machine import Append, CancelWork, Effect, Log, Pull, Send, StartWork, WorkDone, WorkFailed
from sojourn.protocol.release import ENDS, Health, Order
from sojourn.protocol.release_messages import Release, ReleaseReport
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref, VisitReason

MAX_LINES = 16
"""Maximum number of model lines that a device serves."""


class ReleaseMachine:
    """The releases that a device serves. `key`: the public key that orders must be signed with; empty to refuse all."""

    def __init__(self, fleet: str, key: str) -> None:
        self._fleet, self._key = fleet, key
        self._states: dict[str, DeviceReleaseState] = {}
        """The state of each line's newest order, if it has changed since the start."""
        self._lacking: dict[str, set[bytes]] = {}
        """The digests that are being fetched, by line."""
        self._waiting: dict[str, ReleaseTask] = {}
        """The tasks that are ready to start, by line."""
        self._working: dict[str, ReleaseTask] = {}
        """The active task of each line."""
        self._live: dict[str, tuple[int, Health]] = {}
        """The version in use and its health, by line, as programs report them."""
        self._early: dict[str, Usage] = {}
        """The usage of a version that programs load before its installation is reported, by line."""
        self._edges: dict[str, str] = {}
        """The edge server that asked last, by line: a device may have moved to another site since the order."""

    @property
    def trying(self) -> bool:
        """Whether a release is being tried."""
        return bool(self._working) and any(task.tries for task in self._working.values())

    @property
    def waits(self) -> bool:
        """Whether a task is ready to start."""
        return bool(self._waiting)

    def start(self, state: AgentState) -> list[Effect]:
        """Resume the orders that have not ended, and restore the served release where it is uncertain."""
        effects: list[Effect] = []
        for line in state.lines.values():
            if line.state not in ENDS:
                effects += self._begin(line)
            elif line.unsure:
                self._restore(line)
        return effects

    def on_link_up(self, state: AgentState) -> list[Effect]:
        """Report every line, since the edge server may have missed earlier reports."""
        return [self._report(line) for line in state.lines.values()]

    def ordered(self, state: AgentState, edge: Address, message: Release) -> list[Effect]:
        """Handle an order: perform it, repeat its outcome, or refuse it with the reason."""
        order = message.order.read()
        if order is None:
            return [Log(f"{edge} sent an order that cannot be read", "warning")]
        if why := self._untrusted(message, order):
            report = ReleaseReport(order.line, order.serial, _version(state, order.line), "refused", why)
            return [Send(edge, report), Log(f"refused release {order.line} {order.version}: {why}", "warning")]
        known = state.lines.get(order.line)
        if known is None and len(state.lines) >= MAX_LINES:
            why = f"this device already serves {MAX_LINES} model lines, the maximum"
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
        return [*effects, Append(record, sync=True), Log(text), *self._obey(state, line)]

    def pulled(self, digest: bytes, state: AgentState) -> None:
        """Handle the arrival of a blob: a release with all blobs is ready to be tried."""
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            self._lacking[name].discard(digest)
            if not self._lacking[name]:
                del self._lacking[name]
                self._step(name, state.lines[name], DeviceReleaseEvent.ALL_FETCHED)
                order = state.lines[name].order
                assert order.goods is not None  # noqa: S101  # only an order with goods fetches blobs
                self._waiting[name] = ReleaseTask(Install(name, order.version, order.goods), order.serial)

    def pull_failed(self, digest: bytes, reason: VisitReason, state: AgentState) -> list[Effect]:
        """Handle a failed fetch: a full disk ends the order; otherwise it waits until the edge server repeats it."""
        effects: list[Effect] = []
        for name in [line for line, lacking in self._lacking.items() if digest in lacking]:
            del self._lacking[name]
            if reason == "disk":
                effects += self._end(state, name, DeviceReleaseEvent.DISK_FULL, "the disk is full")
            else:
                self._step(name, state.lines[name], DeviceReleaseEvent.GONE)
        return effects

    def advance(self, state: AgentState, *, busy: bool) -> list[Effect]:
        """Start the tasks that may start: a release is tried only while no visit and no other trial is active."""
        effects: list[Effect] = []
        for name, task in list(self._waiting.items()):
            if name in self._working or (task.tries and (busy or self.trying)):
                continue
            self._working[name] = self._waiting.pop(name)
            if not task.restores:
                self._step(name, state.lines[name], DeviceReleaseEvent.BEGUN)
            effects.append(StartWork(task.key, task.work))
        return effects

    def on_work_done(self, event: WorkDone, state: AgentState) -> list[Effect] | None:
        """Handle finished work; return None if it was not work on a release."""
        task = self._done(event.key)
        if task is None:
            return None
        line = state.lines[task.work.line]
        if task.restores or task.serial != line.order.serial:
            return []
        if isinstance(task.work, Withdraw):
            return self._end(state, task.work.line, DeviceReleaseEvent.TAKEN_DOWN)
        tried = event.outcome.health if isinstance(event.outcome, Installed) else None
        health = line.health if line.serves_as_ordered else tried  # the served release was already tried
        effects = self._end(state, task.work.line, DeviceReleaseEvent.INSTALLED, "", health)
        early = self._early.pop(task.work.line, None)
        return [*effects, *(self.on_usage(early, state) if early else ())]

    def on_work_failed(self, event: WorkFailed, state: AgentState) -> list[Effect] | None:
        """Handle failed work, which leaves the served release in place; return None if it was not on a release."""
        task = self._done(event.key)
        if task is None:
            return None
        name = task.work.line
        line = state.lines[name]
        self._early.pop(name, None)
        if task.restores:
            return [Log(f"release {name}: the previous release could not be restored: {event.detail}", "warning")]
        if task.serial != line.order.serial:
            return []
        if isinstance(task.work, Install) and task.work.known:  # its files are missing or damaged
            self._step(name, line, DeviceReleaseEvent.DAMAGED)
            return [Log(f"release {name} is fetched again: {event.detail}", "warning"), *self._fetch(line)]
        return self._end(state, name, DeviceReleaseEvent.NOT_DONE, event.detail[:2000])

    def on_usage(self, usage: Usage, state: AgentState) -> list[Effect]:
        """Handle the usage that programs report; if they cannot load a release, serve the previous one again."""
        line = state.lines.get(usage.line)
        if line is None or line.serving is None or line.serving.version != usage.version:
            task = self._working.get(usage.line)
            if line and task and not task.restores and line.order.version == usage.version:
                self._early[usage.line] = usage  # programs load it before the installation is reported
            return []
        if usage.failure and DEVICE_RELEASE.knows(self._state_of(line), DeviceReleaseEvent.NOT_LOADED):
            return self._end(state, usage.line, DeviceReleaseEvent.NOT_LOADED, usage.failure[:2000])
        self._live[usage.line] = (usage.version, usage.health)
        return [self._report(line)]

    def _untrusted(self, message: Release, order: Order) -> str | None:
        if not self._key:
            return "this device has no release key: set `key_file` in [release] of its agent.toml"
        if not message.order.signed_by(self._key):
            return "the order is not signed with the fleet's release key"
        if order.fleet != self._fleet:
            return f"the order is for the fleet {order.fleet!r}"
        return None

    def _again(self, known: ReleaseLine, order: Order, edge: str) -> list[Effect]:
        """Handle a known or older order: report the state, and resume fetching if it had stopped."""
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
            why = f"version {order.version} is older than the served version {served.version}: use a rollback"
            return self._end(state, order.line, DeviceReleaseEvent.OLDER, why)
        if line.serves_as_ordered and not line.unsure:
            return self._end(state, order.line, DeviceReleaseEvent.SERVED_ALREADY, "", line.health)
        return [*self._begin(line), self._report(line)]

    def _begin(self, line: ReleaseLine) -> list[Effect]:
        """Fetch the release if it is not on this device; otherwise queue the work."""
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
        assert goods is not None  # noqa: S101  # callers have checked
        blobs = dict.fromkeys((goods.graph, goods.card))
        self._lacking[line.order.line] = {blob.digest for blob in blobs}
        source = Address("edge", self._edge(line))
        return [Pull(Ref(blob.digest, blob.size), source) for blob in blobs]

    def _restore(self, line: ReleaseLine) -> None:
        """Queue a task that restores the served release: a cancelled trial may already have replaced it."""
        name = line.order.line
        self._waiting[name] = ReleaseTask(work_for(name, line.serving), line.order.serial, restores=True)

    def _done(self, key: str) -> ReleaseTask | None:
        name = next((name for name, task in self._working.items() if task.key == key), None)
        return None if name is None else self._working.pop(name)

    def _drop(self, name: str) -> list[Effect]:
        """Cancel the work on an older order; quick work is not cancelled."""
        self._lacking.pop(name, None)
        self._waiting.pop(name, None)
        self._early.pop(name, None)
        task = self._working.get(name)
        if task is None or not task.tries:
            return []
        del self._working[name]
        return [CancelWork(task.key)]

    def _state_of(self, line: ReleaseLine | None) -> DeviceReleaseState:
        if line is None:
            return DeviceReleaseState.NONE
        durable = DeviceReleaseState(line.state) if line.state in ENDS else DeviceReleaseState.ORDERED
        return self._states.get(line.order.line, durable)

    def _step(self, name: str, line: ReleaseLine | None, event: DeviceReleaseEvent) -> DeviceReleaseState:
        """Change the state of a line's order by an event, and return it."""
        self._states[name] = DEVICE_RELEASE.step(self._state_of(line), event)
        return self._states[name]

    def _end(
        self, state: AgentState, name: str, event: DeviceReleaseEvent, detail: str = "", health: Health | None = None
    ) -> list[Effect]:
        """Record and report the outcome of the order."""
        line = state.lines[name]
        how = REPORTED[self._step(name, line, event)]
        record = ReleaseEnded(name, how, detail, health)
        state.apply(record)
        if line.unsure:
            self._restore(line)
        text = f"release {name} {line.order.version}: {how}{': ' if detail else ''}{detail}"
        return [Append(record, sync=True), Log(text, "warning" if detail else "info"), self._report(line)]

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
