"""A coordinator with the fleet's public key verifies orders, serials and cards before a rollout."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.authorization import Trust
from coordinator.machine.coordinator import Coordinator
from coordinator.releases.file import LARGEST_GRAPH
from coordinator.releases.orders import CardChecked, CheckCard, check_card
from coordinator.rollout_records import AHEAD
from sojourn.node.machine import Log, Pull, Pulled, WorkFailed
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.release import BlobRef, Goods, Order, SignedOrder, sign
from sojourn.protocol.release_messages import Releases, Rollout
from sojourn.protocol.signing import Signer
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.rollout_bench import SIGNER, RolloutBench, goods, refs, rollout
from tests.coordinator.machine.test_rollout_requests import pulls, refusal
from tests.coordinator.machine.test_rollouts import TEN
from tests.edge_agent.releases.releases_made import card_of
from tests.sojourn.store.replays import replayed, sends

THIEF = Signer(Ed25519PrivateKey.generate())


def bench() -> RolloutBench:
    return RolloutBench(TEN, 2, key=SIGNER.public)


def begin(it: RolloutBench, message: Rollout, objection: str | None = None) -> list[Any]:
    """Start a rollout, deliver its blobs, and read its card."""
    it.receive(OPERATOR, message)
    for ref in (message.graph, message.card):
        it.handle(Pulled(ref.digest))
    return it.did(CheckCard, lambda work: CardChecked(work.ticket, work.order.line, objection))


def resigned(which: str, signer: Signer = SIGNER, plain: Rollout | None = None, **changes: Any) -> Rollout:
    plain = plain or rollout()
    order = msgspec.structs.replace(getattr(plain, which).read(), **changes)
    return msgspec.structs.replace(plain, **{which: sign(order, signer)})


def test_signed_rollout_starts_after_card_is_read() -> None:
    it = bench()
    message = rollout()
    assert pulls(it.receive(OPERATOR, message)) == [ref.digest for ref in refs(1)]
    it.handle(Pulled(refs(1)[0].digest))
    it.handle(Pulled(refs(1)[1].digest))
    assert it.cloud.state.lines == {}
    assert it.cloud.live() >= {ref.digest for ref in refs(1)}
    assert it.receive(OPERATOR, message) == []  # in progress
    effects = it.did(CheckCard, lambda work: CardChecked(work.ticket, work.order.line, None))
    assert it.line().status == "running"
    assert [message for message in sends(effects) if isinstance(message, Releases)]
    assert not any("verifies" in effect.text for effect in effects if isinstance(effect, Log))


@pytest.mark.parametrize("which", ["forward", "back"])
def test_order_signed_with_another_key_is_refused_unfetched(which) -> None:
    it = bench()
    effects = it.receive(OPERATOR, resigned(which, THIEF))
    reason = refusal(effects)
    assert f"the order {which} is not signed with the fleet's release key" in reason
    assert SIGNER.public in reason
    assert (it.of_releases(), it.work, it.cloud.live()) == ([], {}, set())
    begin(it, rollout(ticket="good"))
    assert it.line().ticket == "good"


def test_order_changed_after_signing_is_refused() -> None:
    it, plain = bench(), rollout()
    order = msgspec.msgpack.encode(Order("sojourn", "l", 1000, 1, goods(1)))
    forged = msgspec.structs.replace(plain, forward=SignedOrder(order, plain.forward.signature))
    assert "not signed" in refusal(it.receive(OPERATOR, forged))


def test_signed_order_of_other_fleet_or_old_serial_is_refused() -> None:
    it = bench()
    begin(it, rollout(stages=(1.0,)))
    it.through()
    following = rollout(2, before=1, serial=3, ticket="u")
    for message, why in (
        (rollout(fleet="other", ticket="u"), "not both for one model line"),
        (rollout(2, before=1, serial=2, ticket="u"), "in the meantime"),
        (rollout(2, before=0, serial=3, ticket="u"), "in the meantime"),
        (resigned("back", plain=following, serial=3), "higher serial number"),
        (resigned("back", plain=following, goods=goods(7)), "in the meantime"),
    ):
        assert why in refusal(it.receive(OPERATOR, message))
    begin(it, following)
    assert it.line().forward.read.version == 2


@pytest.mark.parametrize("key", ["", SIGNER.public], ids=["without a key", "with a key"])
def test_order_with_a_far_serial_number_is_refused(key) -> None:
    it = RolloutBench(TEN, 2, key=key)
    assert "serial numbers would run out" in refusal(it.receive(OPERATOR, rollout(serial=AHEAD + 1)))
    assert "serial numbers would run out" in refusal(it.receive(OPERATOR, rollout(serial=(1 << 53) - 2)))
    assert isinstance(it.receive(OPERATOR, rollout(serial=AHEAD))[0], Pull)


def test_file_sizes_must_match_order_and_device_limit() -> None:
    graph, card = refs(1)
    plain = msgspec.structs.replace(rollout(), graph=Ref(graph.digest, graph.size + 1))
    assert "other sizes" in refusal(bench().receive(OPERATOR, plain))
    large = Ref(graph.digest, LARGEST_GRAPH + 1)
    named = Goods(BlobRef(large.digest, large.size), BlobRef(card.digest, card.size))
    plain = msgspec.structs.replace(resigned("forward", goods=named), graph=large)
    assert "the release is too large" in refusal(bench().receive(OPERATOR, plain))


def test_card_of_another_release_is_refused() -> None:
    it = bench()
    effects = begin(it, rollout(), "the card is of m 1, and the order is of l 1")
    assert refusal(effects) == "the card is of m 1, and the order is of l 1"
    assert (it.of_releases(), it.cloud.live()) == ([], set())


def test_unreadable_card_is_refused_and_other_failures_ignored() -> None:
    it = bench()
    it.receive(OPERATOR, rollout())
    it.handle(Pulled(refs(1)[0].digest))
    it.handle(Pulled(refs(1)[1].digest))
    (key,) = it.work
    assert not [m for m in sends(it.handle(WorkFailed("plan", "failed", ""))) if isinstance(m, Refused)]
    assert "cannot be read: the disk" in refusal(it.handle(WorkFailed(key, "failed", "the disk")))
    assert it.cloud.live() == set()


def checked(line: str, version: int, card: bytes) -> str | None:
    blobs, ref = MemoryBlobs(), ref_of(card)
    blobs.put(card, ref.digest)
    found = check_card(CheckCard("t", Order("sojourn", line, 1, version, goods(1)), ref), blobs)
    assert (found.ticket, found.line) == ("t", line)
    return found.objection


def test_card_must_match_line_and_version_of_order() -> None:
    card = card_of(3)
    data = msgspec.msgpack.encode(card)
    assert checked(card.line, 3, data) is None
    assert checked(card.line, 4, data) == f"the card is of {card.line} 3, and the order is of {card.line} 4"
    assert "and the order is of other 3" in (checked("other", 3, data) or "")
    assert "is invalid" in (checked(card.line, 3, b"\xc1" * 50) or "")


def test_missing_release_key_logs_a_warning() -> None:
    it = RolloutBench(TEN, 2)
    (warning,) = [effect.text for effect in it.begin() if isinstance(effect, Log) and effect.level == "warning"]
    assert "this coordinator has no release key" in warning


def test_unverified_rollout_cannot_resume_but_can_roll_back() -> None:
    it = RolloutBench(TEN, 2)
    forged = resigned("forward", THIEF)
    it.receive(OPERATOR, forged)
    for ref in refs(1):
        it.handle(Pulled(ref.digest))
    it.steer("pause", "p")
    it.cloud = replayed(Coordinator("c", trust=Trust(SIGNER.public)), it.records)
    it.note(it.cloud.start(it.now))
    assert "not signed with the fleet's release key" in refusal(it.steer("resume", "r"))
    it.steer("rollback", "u")
    assert it.line().status == "rolling-back"
