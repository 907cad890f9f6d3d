"""Mutated packets into whole fleets in the middle of a job: `python -m tests.fuzz 1000000 --seed 7` sends many.

Half of them are valid except for one field. No node may crash, every record in every journal must be readable, and
after a restart of all nodes the job must end.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec

from coordinator.machine.coordinator import Coordinator
from coordinator.records import ENDED
from coordinator.state import CoordinatorState
from edge_agent.agent import Agent
from edge_agent.records import AgentState
from fleet_sim.world.memory_fleet import CLOUD, FLEET
from hierarchy.edge.records import EdgeState
from hierarchy.edge.server import EdgeServer
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.operator_messages import Stop
from sojourn.protocol.wire import Epoch
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet, fedavg, job, visit
from tests.fleet_sim.test_kills import after
from tests.sojourn.protocol.examples import EXAMPLES

if TYPE_CHECKING:
    from sojourn.links.link import Link
    from sojourn.node.node import Node

STATES: dict[type, Any] = {Agent: AgentState, EdgeServer: EdgeState, Coordinator: CoordinatorState}
PACKETS = 2500
"""The number of packets in one fleet."""
TOGETHER = 25
LEASES: dict[str, Any] = {"tours__lease": 60, "tours__site_lease": 120}
JOBS = (
    fedavg(rounds=12, **LEASES),
    visit(rounds=8, **LEASES),
    job(strategy="scaffold", rounds=12, **LEASES),
    job(strategy="hierfavg", rounds=12, **LEASES),
)
NUMBERS = (
    0, 1, -1, 2, 255, 1 << 31, 1 << 32, 1 << 40, (1 << 40) + 1, 1 << 50, (1 << 53) - 1, 1 << 53,
    (1 << 64) - 1, -(1 << 63),
    0.0, -0.5, 1e-300, 1e38, 1e39, 1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, "", "x", "x" * 3000, "\x1b]0;owned\x07[red]", "\u202e", b"",
    bytes(32), bytes(9000), [], {}, [[]], {"a": 1},
)  # fmt: skip


class Fuzzing:
    """One fleet with a job, and packets similar to those that it sends."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.fleet = SmallFleet(TWO_SITES)
        self.given: Counter[str] = Counter()
        self._seen: deque[tuple[str, bytes]] = deque(_examples(), maxlen=400)
        for broker in set(self.fleet.brokers.values()):
            self._listen(broker)
        self.fleet.submit(JOBS[seed % len(JOBS)])

    def _listen(self, broker: Any) -> None:
        publish = broker.publish

        def received(topic: str, payload: bytes, *, retain: bool) -> None:
            self._seen.append((topic, payload))
            publish(topic, payload, retain=retain)

        broker.publish = received

    def run(self, packets: int) -> None:
        """Process events, with packets in between."""
        for _ in range(0, packets, TOGETHER):
            after(self.fleet, self._draw.randint(0, 7))
            for _ in range(TOGETHER):
                self._give()

    def _give(self) -> None:
        topic, payload = self._draw.choice(self._seen)
        route = topics.read(FLEET, topic)
        if route is None or (route.sender and route.node.name not in self.fleet.nodes):
            return
        to = [route.node.name] if route.sender else [*TWO_SITES] if route.node.role == "device" else [CLOUD]
        name = self._draw.choice(to)
        node = self.fleet.nodes[name].node
        changed, data = self._mutated(payload)
        link = _link(node, route)
        if link is not None:
            self.given[changed] += 1
            self.fleet.nodes[name].arrived(link, topic, data)

    def _mutated(self, payload: bytes) -> tuple[str, bytes]:
        draw = self._draw
        match draw.randrange(10):
            case 0:
                return "cut", payload[: draw.randrange(len(payload))]
            case 1 | 2:
                made = bytearray(payload)
                for _ in range(draw.randint(1, 4)):
                    made[draw.randrange(len(made))] = draw.randrange(256)
                return "bytes", bytes(made)
            case 3:
                return "rubbish", draw.randbytes(draw.randrange(200))
            case 4:
                return "as it was", payload
            case _:
                fields = msgpack.unpackb(payload, strict_map_key=False)
                return "one field", msgpack.packb(self._changed(fields))

    def _changed(self, value: Any) -> Any:
        """Return the value with one thing in it changed."""
        draw = self._draw
        if isinstance(value, dict | list) and value and draw.random() < 0.9:
            made: Any = dict(value) if isinstance(value, dict) else list(value)
            key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
            made[key] = self._changed(value[key])
            return made
        numeric = isinstance(value, int | float) and draw.random() < 0.8
        return draw.choice(NUMBERS if numeric else (*NUMBERS, *OTHERS))

    def check(self) -> str:
        """Check that every journal is readable, restart all nodes, and end the job; return how it ended."""
        was = self.fleet.job("job").status
        for name in self.fleet.nodes:
            self.fleet.kill(name)
            machine = self.fleet.nodes[name].node.machine
            snapshot, records = self.fleet.stores[name].load()
            for record in records:
                msgspec.msgpack.decode(record, type=machine.record_form)
            for state in (snapshot, machine.snapshot()):
                if state is not None:
                    msgspec.msgpack.decode(state, type=STATES[type(machine)])
        for name in self.fleet.nodes:
            self.fleet.start(name)
        status = self.fleet.run("job", 20_000).status
        assert status in ENDED, status
        return f"{was}, then {status}"


def _examples() -> list[tuple[str, bytes]]:
    """Return one packet of each kind, from and to nodes of the fleet."""
    names = {"device": "dev-0", "edge": "site-a", "cloud": CLOUD}
    found = []
    for message in EXAMPLES:
        if isinstance(message, Stop):  # that would end the job, as it should
            continue
        sender, to = min(message.routes)
        who = "operator" if (sender, to) == ("cloud", "cloud") else names[sender]
        topic = topics.inbox(FLEET, topics.Address(to, names[to]), who)
        found.append((topic, pack(Packet(1, Epoch(1, bytes(8)), message))))
    for role in ("device", "edge"):
        state = topics.state(FLEET, topics.Address(role, names[role]))
        found += [(state, pack(Packet(1, Epoch(1, bytes(8)), it))) for it in (Birth(wire=2), Death())]
    return found


def _link(node: Node, route: topics.Route) -> Link | None:
    """Return the link over which a packet of this sender reaches a node."""
    role = node.machine.role_of(route.sender) if route.sender else route.node.role
    return node.links.get(role) if role else None


def main() -> int:
    """Send the requested number of packets, one fleet after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packets", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="Stop after this many minutes.")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, given, ends = time.monotonic(), Counter[str](), Counter[str]()
    seed = asked.seed
    while given.total() < asked.packets and time.monotonic() < began + 60 * asked.minutes:
        fuzzing = Fuzzing(seed)
        try:
            fuzzing.run(PACKETS)
            ends[fuzzing.check()] += 1
        except Exception:
            sys.stderr.write(f"with the seed {seed}:\n")
            raise
        given += fuzzing.given
        seed += 1
    print(f"{given.total():,} packets in {seed - asked.seed} fleets, {time.monotonic() - began:.0f} s: {dict(given)}")  # noqa: T201
    print(f"jobs: {dict(ends)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
