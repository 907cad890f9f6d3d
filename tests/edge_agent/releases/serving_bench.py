"""A device that performs release orders, without real fetching and trials."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.agent import Agent
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.orders import Installed
from sojourn.node.machine import (
    Pulled,
    StartWork,
    WorkDone,
)
from sojourn.protocol.release import BlobRef, Goods, Health, Order, Pace, sign
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
    return Goods(BlobRef(graph.digest, graph.size), BlobRef(card.digest, card.size))


def order(serial: int, version: int, line="l", fleet="f", *, rollback=False) -> Order:
    return Order(fleet, line, serial, version, goods(version) if version else None, rollback)


def release(serial: int, version: int, signer=SIGNER, **how) -> Release:
    it = order(serial, version, **how)
    refs = [Ref(parcel.digest, parcel.size) for parcel in (it.goods.graph, it.goods.card)] if it.goods else [None, None]
    return Release(sign(it, signer), *refs)


class ServingBench(Bench):
    """An agent that trusts a release key."""

    def __init__(self, public: str) -> None:
        super().__init__(releases=None)
        self._public = public
        self.agent = self._newborn()

    def reborn(self) -> Agent:
        """Return the same device after a power cut."""
        self.agent = replayed(self._newborn(), self.records)
        return self.agent

    def _newborn(self) -> Agent:
        return Agent("d", OFFER, releases=ReleaseMachine("f", self._public))


def bench(key: str | None = None) -> ServingBench:
    return ServingBench(SIGNER.public if key is None else key)


def arrive(it: Bench, version: int, now=0.0) -> list[Any]:
    """Deliver the graph and the card of a version."""
    parcels = (goods(version).graph, goods(version).card)
    return [effect for parcel in parcels for effect in it.handle(Pulled(parcel.digest), now)]


def works(effects) -> list[Any]:
    return [effect.work for effect in effects if isinstance(effect, StartWork)]


def reports(effects) -> list[tuple[int, int, str]]:
    return [(r.serial, r.version, r.state) for r in sends(effects, ReleaseReport)]


def installed(it: Bench, health=FINE, now=0.0) -> list[Any]:
    return it.handle(WorkDone(it.work, Installed(health)), now)


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
