"""A device that requires a mandate gets no task without one; all others get tasks in any case."""

from __future__ import annotations

import msgspec

from sojourn.parts import SizeEstimator, Training
from sojourn.protocol.task import ABILITIES, MANDATE, able, asked
from sojourn.protocol.wire import Offer

PLAIN = Offer("1", "m", "r", 1, 0, ("sgd",), "npz", abilities=ABILITIES)
GUARDED = msgspec.structs.replace(PLAIN, abilities=(*ABILITIES, MANDATE))


def test_only_device_with_operator_keys_demands_a_mandate() -> None:
    assert MANDATE not in ABILITIES
    words = asked("float32", Training(), SizeEstimator())
    assert [able(offer, "sgd", words) for offer in (PLAIN, GUARDED)] == [True, False]
    signed = asked("float32", Training(), SizeEstimator(), (MANDATE,))
    assert [able(offer, "sgd", signed) for offer in (PLAIN, GUARDED)] == [True, True]
    assert not able(GUARDED, "prox", signed)
    assert not able(GUARDED, "sgd", signed | {"model unheard of"})
