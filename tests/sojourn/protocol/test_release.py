"""Signed orders, health rules, and the maximum size of release messages."""

from __future__ import annotations

from math import inf, nan, nextafter

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.rollout_progress import MAX_DEVICES_PER_MESSAGE
from sojourn.errors import InvalidMessage
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import map_refs, refs
from sojourn.protocol.release import (
    BlobRef,
    Goods,
    Health,
    HealthRules,
    Order,
    Pace,
    SignedOrder,
    TaskHealth,
    complaint,
    sign,
)
from sojourn.protocol.release_messages import Release, ReleaseReport, Ship
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref

SIGNER, OTHER = Signer(Ed25519PrivateKey.generate()), Signer(Ed25519PrivateKey.generate())
GOODS = Goods(BlobRef(bytes(32), 10), BlobRef(bytes(range(32)), 20))
ORDER = Order("bakery", "digits", 7, 3, GOODS)
MOST = (1 << 53) - 1
LONGEST_NAME = "x" * 63
LONGEST_ORDER = Order(LONGEST_NAME, LONGEST_NAME, MOST, (1 << 31) - 1, Goods(*[BlobRef(bytes(32), 1 << 40)] * 2), True)
EPOCH = Epoch(MOST, bytes(8))
CLOUD, EDGE, DEVICE = Address("cloud", "c"), Address("edge", "e"), Address("device", "d")


def test_signed_order_round_trips_and_verifies_its_signer() -> None:
    signed = sign(ORDER, SIGNER)
    assert signed.read() == ORDER
    assert signed.signed_by(SIGNER.public)
    assert not signed.signed_by(OTHER.public)


def test_any_changed_byte_invalidates_the_signature() -> None:
    signed = sign(ORDER, SIGNER)
    for at in range(len(signed.order)):
        changed = bytearray(signed.order)
        changed[at] ^= 1
        assert not SignedOrder(bytes(changed), signed.signature).signed_by(SIGNER.public)
    for at in range(len(signed.signature)):
        changed = bytearray(signed.signature)
        changed[at] ^= 1
        assert not SignedOrder(signed.order, bytes(changed)).signed_by(SIGNER.public)


def test_signature_is_valid_for_one_order_only() -> None:
    for change in ({"fleet": "brewery"}, {"line": "faces"}, {"serial": 8}, {"version": 4}, {"rollback": True}):
        other = msgspec.structs.replace(ORDER, **change)
        mixed = SignedOrder(sign(other, SIGNER).order, sign(ORDER, SIGNER).signature)
        assert mixed.read() == other
        assert not mixed.signed_by(SIGNER.public)


def test_signature_without_order_context_is_invalid() -> None:
    data = msgspec.msgpack.encode(ORDER)
    assert not SignedOrder(data, SIGNER._key.sign(data)).signed_by(SIGNER.public)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_decode_to_an_order_or_none(data) -> None:
    found = SignedOrder(data, bytes(64)).read()
    assert found is None or isinstance(found, Order)


def test_non_utf8_names_are_rejected() -> None:
    data = msgspec.msgpack.encode(ORDER).replace(b"bakery", b"bak\xff\xfey")
    assert SignedOrder(data, bytes(64)).read() is None


@pytest.mark.parametrize(
    "change", [{"serial": 0}, {"serial": 1 << 53}, {"version": -1}, {"version": 1 << 31}, {"fleet": "No"}, {"line": ""}]
)
def test_order_beyond_its_limits_is_rejected(change) -> None:
    assert sign(msgspec.structs.replace(ORDER, **change), SIGNER).read() is None


def test_order_encoding_is_deterministic() -> None:
    assert sign(ORDER, SIGNER).order == sign(ORDER, SIGNER).order
    assert msgspec.msgpack.decode(sign(ORDER, SIGNER).order)[:4] == ["bakery", "digits", 7, 3]


def above(value: float) -> float:
    return nextafter(value, inf)


RULES = HealthRules(latency=2.0, accuracy=0.25, drift=0.5, errors=3)


@pytest.mark.parametrize(
    ("fine", "unhealthy", "output"),
    [
        (
            Health(pace=Pace(9, 2000.0), pace_before=Pace(1, 1000.0)),
            Health(pace=Pace(1, above(2000.0)), pace_before=Pace(1, 1000.0)),
            "2.0 times as slow as before on the same inputs (2.0 ms, before 1.0 ms)",
        ),
        (
            Health(live=Pace(9, 3000.0), live_before=Pace(1, 1500.0)),
            Health(live=Pace(1, above(3000.0)), live_before=Pace(1, 1500.0)),
            "2.0 times as slow as before in use (3.0 ms, before 1.5 ms)",
        ),
        (
            Health(rows=8, accuracy=0.5, accuracy_before=0.75),
            Health(rows=8, accuracy=0.499, accuracy_before=0.75),
            "accuracy fell by 25.1 points on 8 local samples (75.0 % to 49.9 %)",
        ),
        (Health(drift=0.5), Health(drift=above(0.5)), "the mix of predicted classes moved by 50 % on the same inputs"),
        (
            Health(live_drift=0.5),
            Health(live_drift=0.51),
            "the mix of predicted classes moved by 51 % on inputs in use",
        ),
        (Health(errors=3), Health(errors=4), "programs reported 4 errors"),
    ],
)
def test_every_health_rule_is_enforced_at_its_limit(fine, unhealthy, output) -> None:
    assert complaint(fine, RULES) is None
    assert complaint(unhealthy, RULES) == output


@pytest.mark.parametrize(
    ("unhealthy", "looser"),
    [
        (Health(pace=Pace(1, 2100.0), pace_before=Pace(1, 1000.0)), HealthRules(latency=2.1)),
        (Health(live=Pace(1, 2100.0), live_before=Pace(1, 1000.0)), HealthRules(latency=2.1)),
        (Health(accuracy=0.5, accuracy_before=0.75), HealthRules(accuracy=0.25)),
        (Health(drift=0.4), HealthRules(drift=0.4)),
        (Health(live_drift=0.4), HealthRules(drift=0.4)),
        (Health(errors=1), HealthRules(errors=1)),
    ],
)
def test_every_health_rule_can_be_relaxed(unhealthy, looser) -> None:
    assert complaint(unhealthy, HealthRules()) is not None
    assert complaint(unhealthy, looser) is None


@pytest.mark.parametrize(
    "health",
    [
        Health(),
        Health(pace=Pace(1, 1e9)),
        Health(pace_before=Pace(1, 1.0)),
        Health(live=Pace(1, 1e9), pace_before=Pace(1, 1.0)),
        Health(accuracy=0.0),
        Health(accuracy_before=1.0),
        Health(accuracy=nan, accuracy_before=nan),
        Health(accuracy=1.0, accuracy_before=0.5),
        Health(pace=Pace(1, 17.0), pace_before=Pace(1, 7.0)),  # the scheduler affects microseconds
        Health(live=Pace(1, 101.0), live_before=Pace(1, 1.0)),
    ],
)
def test_unknown_or_improved_health_is_no_complaint(health) -> None:
    assert complaint(health, HealthRules()) is None


@pytest.mark.parametrize(
    ("measure", "metric", "before", "output"),
    [
        ("rmse", 0.6, 0.5, "RMSE became worse by 20 % on 9 local samples (0.5 to 0.6)"),
        ("rmse", 0.5, 0.6, None),
        ("rmse", 0.54, 0.5, None),
        ("macro_f1", 0.4, 0.8, "macro F1 became worse by 50 % on 9 local samples (80.0 % to 40.0 %)"),
        ("macro_f1", 0.8, 0.4, None),
        ("r2", -0.5, -0.25, "R2 became worse by 100 % on 9 local samples (-0.25 to -0.5)"),
        ("loss", 0.1, 0.0, "loss became worse by inf % on 9 local samples (0 to 0.1)"),
        ("loss", 0.0, 0.0, None),
        ("rmse", nan, 0.5, None),
        ("rmse", 0.5, nan, None),
        ("a-future-metric", 9.0, 0.5, None),
    ],
)
def test_main_metric_may_worsen_by_a_share(measure, metric, before, output) -> None:
    health = Health(rows=9, task=TaskHealth(measure=measure, metric=metric, before=before))
    assert complaint(health, HealthRules()) == output
    assert complaint(health, HealthRules(worse=1e9)) == (output if "inf" in str(output) else None)


def test_prediction_drift_of_other_tasks_is_limited() -> None:
    health = Health(drift=0.31, task=TaskHealth(measure="rmse"))
    assert complaint(health, HealthRules()) == "the mix of predicted answers moved by 31 % on the same inputs"


def test_zero_pace_before_causes_no_division_by_zero() -> None:
    output = complaint(Health(pace=Pace(1, 200.0), pace_before=Pace(0, 0.0)), HealthRules())
    assert output == "inf times as slow as before on the same inputs (200 us, before 0 us)"


def test_complete_health_report_is_under_a_kilobyte() -> None:
    pace = Pace(1 / 3, 2 / 3)
    health = Health(
        rows=1 << 40, pace=pace, pace_before=pace, accuracy=1 / 3, accuracy_before=2 / 3, drift=1 / 3,
        predictions=1 << 40, live=pace, live_before=pace, live_drift=1 / 3, errors=1 << 40, mix=(1 / 64,) * 64,
    )  # fmt: skip
    assert all(getattr(health, field.name) != field.default for field in msgspec.structs.fields(Health)[:-1])
    of_task = msgspec.structs.replace(
        health, accuracy=nan, accuracy_before=nan, task=TaskHealth("perplexity", 1 / 3, 2 / 3, 1 / 7)
    )
    assert len(pack(Packet(MOST, EPOCH, ReleaseReport(LONGEST_NAME, MOST, 1 << 30, "fell-back", "", of_task)))) < 1024
    report = ReleaseReport(LONGEST_NAME, MOST, (1 << 31) - 1, "fell-back", "", health)
    data = pack(Packet(MOST, EPOCH, report))
    assert len(data) < 1024
    assert unpack(data, DEVICE, EDGE).message == report
    mixed = msgspec.structs.replace(report, health=msgspec.structs.replace(health, mix=(1 / 65,) * 65))
    with pytest.raises(InvalidMessage):
        unpack(pack(Packet(1, EPOCH, mixed)), DEVICE, EDGE)


def test_longest_order_fits_its_limit() -> None:
    signed = sign(LONGEST_ORDER, SIGNER)
    assert signed.read() == LONGEST_ORDER
    assert len(signed.order) <= 1000


def shipped(count: int, inline: int) -> Ship:
    ref = Ref(bytes(32), inline, inline=bytes(inline))
    return Ship(sign(LONGEST_ORDER, SIGNER), ref, ref, (LONGEST_NAME,) * count)


def test_order_for_maximum_group_fits_any_packet() -> None:
    room = PORTABLE_PAYLOAD // 2  # the space that a node has for inline blobs
    data = pack(Packet(MOST, EPOCH, shipped(MAX_DEVICES_PER_MESSAGE, room // 2)))
    assert len(data) <= PORTABLE_PAYLOAD
    assert unpack(data, CLOUD, EDGE)
    assert len(pack(Packet(MOST, EPOCH, shipped(MAX_DEVICES_PER_MESSAGE + 100, room // 2)))) > PORTABLE_PAYLOAD
    with pytest.raises(InvalidMessage):
        unpack(pack(Packet(MOST, EPOCH, shipped(MAX_DEVICES_PER_MESSAGE + 1, 0))), CLOUD, EDGE)
    with pytest.raises(InvalidMessage):
        unpack(pack(Packet(MOST, EPOCH, shipped(0, 0))), CLOUD, EDGE)


def test_absent_release_payloads_have_no_references() -> None:
    signed, ref = sign(ORDER, SIGNER), Ref(bytes(32), 5)
    assert refs(Release(signed, ref, None)) == [ref]
    assert refs(Release(signed, None, None)) == []
    other = Ref(bytes(32), 6)
    assert map_refs(Release(signed, None, ref), lambda _ref: other) == Release(signed, None, other)
    assert map_refs(Release(signed, None, None), lambda _ref: other) == Release(signed, None, None)
