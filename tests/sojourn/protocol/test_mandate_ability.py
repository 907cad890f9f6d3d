"""Who demands a mandate is asked for nothing without one, and all others are asked with it or without."""

from __future__ import annotations

import msgspec

from sojourn.parts import SizeEstimator, Training
from sojourn.protocol.abilities import ABILITIES, MANDATE, able, asked
from sojourn.protocol.wire import Offer

PLAIN = Offer("0.6.0", "m", "r", 1, 0, ("sgd",), "npz", abilities=ABILITIES)
GUARDED = msgspec.structs.replace(PLAIN, abilities=(*ABILITIES, MANDATE))
FIRST = msgspec.structs.replace(PLAIN, abilities=msgspec.UNSET)


def test_only_who_has_keys_demands_one() -> None:
    assert MANDATE not in ABILITIES
    words = asked("float32", Training(), SizeEstimator())
    assert [able(offer, "sgd", words) for offer in (PLAIN, FIRST, GUARDED)] == [True, True, False]
    signed = asked("float32", Training(), SizeEstimator(), (MANDATE,))
    assert [able(offer, "sgd", signed) for offer in (PLAIN, FIRST, GUARDED)] == [True, True, True]
    assert not able(GUARDED, "prox", signed)
    assert not able(GUARDED, "sgd", signed | {"model unheard of"})
