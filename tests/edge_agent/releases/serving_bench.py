"""A device that obeys orders on releases, on a bench: nothing is fetched or tried."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.agent import Agent
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.work import Installed
from sojourn.node.machine import (
    Did,
    Do,
    Pulled,
)
from sojourn.protocol.release import Goods, Health, Order, Pace, Parcel, sign
from sojourn.protocol.release_messages import Release, ReleaseReport
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import ref_of
from tests.edge_agent.agent_bench import OFFER, Bench
from tests.sojourn.store.replays import replayed, sends

SIGNER, OTHER = Signer(Ed25519PrivateKey.generate()), Signer(Ed25519PrivateKey.generate())
FINE = Health(rows=5, pace=Pace(1.0, 2.0))
ELSEWHERE = Address("edge", "other")


def goods(version: int) -> Goods:
    graph, card = ref_of(b"graph %d" % version), ref_of(b"card %d" % version)
    return Goods(Parcel(graph.digest, graph.size), Parcel(card.digest, card.size))


def order(serial: int, version: int, line="l", fleet="f", *, rollback=False) -> Order:
    return Order(fleet, line, serial, version, goods(version) if version else None, rollback)


def release(serial: int, version: int, signer=SIGNER, **how) -> Release:
    it = order(serial, version, **how)
    refs = [Ref(parcel.digest, parcel.size) for parcel in (it.goods.graph, it.goods.card)] if it.goods else [None, None]
    return Release(sign(it, signer), *refs)


class ServingBench(Bench):
    """An agent that obeys the holder of a key."""

    def __init__(self, public: str) -> None:
        super().__init__(releases=None)
        self._public = public
        self.agent = self._newborn()

    def reborn(self) -> Agent:
        """The same device after a power cut."""
        self.agent = replayed(self._newborn(), self.records)
        return self.agent

    def _newborn(self) -> Agent:
        return Agent("d", OFFER, releases=ReleaseMachine("f", self._public))


def bench(key: str | None = None) -> ServingBench:
    return ServingBench(SIGNER.public if key is None else key)


def arrive(it: Bench, version: int, now=0.0) -> list[Any]:
    """Both goods of a version come."""
    parcels = (goods(version).graph, goods(version).card)
    return [effect for parcel in parcels for effect in it.tell(Pulled(parcel.digest), now)]


def works(effects) -> list[Any]:
    return [effect.work for effect in effects if isinstance(effect, Do)]


def reports(effects) -> list[tuple[int, int, str]]:
    return [(r.serial, r.version, r.state) for r in sends(effects, ReleaseReport)]


def installed(it: Bench, health=FINE, now=0.0) -> list[Any]:
    return it.tell(Did(it.work, Installed(health)), now)


def serving(version=1, serial=1) -> ServingBench:
    it = bench()
    it.ask(release(serial, version))
    arrive(it, version)
    installed(it)
    return it


def line(it: Bench, name="l"):
    return it.agent.state.lines[name]


def served(it: Bench) -> int:
    now = line(it).serving
    return now.version if now else 0
