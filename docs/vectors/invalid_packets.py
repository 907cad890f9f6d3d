"""Invalid packets, each a valid one with one change, and the class of the error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgpack

from docs.vectors.cast import CLOUD, DEVICE, EDGE, EPOCHS, KIT, SEED, TASK, TOUR, VISIT
from sojourn.parts import Gate, TourPolicy
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.messages import Birth, Progress, Tour, Visit, Visited

if TYPE_CHECKING:
    from sojourn.protocol.topics import Address

    Dropped = tuple[str, str, tuple[Address, Address], Any]
    """Name, class of the reason, sender and receiver, the packet or its fields."""

UP, DOWN = (DEVICE, EDGE), (EDGE, DEVICE)
GOOD = pack(Packet(1, EPOCHS[DEVICE], Progress(VISIT, "training", 3, 8)))
ASKED = pack(Packet(1, EPOCHS[EDGE], Visit(VISIT, KIT, {"model": KIT}, TASK, SEED, 60.0)))


def make() -> dict[str, Any]:
    """Return the packets by their key in vectors.json."""
    made = [*_progress(), *_visits(), *_tours(), *_results(), *_roles()]
    return {
        "invalid": [
            {
                "name": name,
                "class": why,
                "from": str(sender),
                "to": str(to),
                "hex": (content if isinstance(content, bytes) else msgpack.packb(content)).hex(),
            }
            for name, why, (sender, to), content in made
        ]
    }


def _progress() -> list[Dropped]:
    fields = msgpack.unpackb(GOOD)

    def without(key: str) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != key}

    return [
        ("nothing", "msgpack", UP, b""),
        ("cut short", "msgpack", UP, GOOD[:-1]),
        ("a byte too many", "msgpack", UP, GOOD + b"\0"),
        ("a number as a map's key", "msgpack", UP, {**fields, 5: 1}),
        ("a string that is not UTF-8", "msgpack", UP, GOOD.replace(b"training", b"train\xff\xff\xff")),
        ("an extension type with content", "msgpack", UP, {**fields, "new": msgpack.ExtType(1, b"x")}),
        ("nested too deep", "msgpack", UP, b"\x91" * 2000 + b"\x01"),
        ("an array instead of a map", "map", UP, [1, 2, 3]),
        ("no kind", "kind", UP, without("kind")),
        ("an unknown kind", "kind", UP, {**fields, "kind": "dance"}),
        ("a kind as bytes", "kind", UP, {**fields, "kind": b"progress"}),
        ("a birth in an inbox", "kind", UP, pack(Packet(1, EPOCHS[DEVICE], Birth()))),
        ("no id", "field", UP, without("id")),
        ("no epoch", "field", UP, without("epoch")),
        ("a nonce of seven bytes", "field", UP, {**fields, "epoch": [3, b"1234567"]}),
        ("a nonce as text", "field", UP, {**fields, "epoch": [3, "12345678"]}),
        ("a missing field", "field", UP, without("steps")),
        ("a float where an integer belongs", "field", UP, {**fields, "step": 3.0}),
        ("a boolean where an integer belongs", "field", UP, {**fields, "step": True}),
        ("a negative number", "field", UP, {**fields, "step": -1}),
        ("a number of 2^53", "field", UP, {**fields, "step": 1 << 53}),
        ("more steps than there are", "field", UP, {**fields, "step": (1 << 40) + 1}),
        ("a hop that no tour has", "field", UP, {**fields, "visit": ["digits", 1, 0, 2_500_001, [1, 1]]}),
        ("an unknown stage", "field", UP, {**fields, "stage": "resting"}),
        ("a visit as a map", "field", UP, {**fields, "visit": {"job": "digits"}}),
        ("a visit that is too short", "field", UP, {**fields, "visit": ["digits", 1, 0, 0]}),
        ("three numbers as an attempt", "field", UP, {**fields, "visit": ["digits", 1, 0, 0, [1, 1, 1]]}),
        ("a job with a capital", "field", UP, {**fields, "visit": ["Digits", 1, 0, 0, [1, 1]]}),
    ]


def _visits() -> list[Dropped]:
    visit = msgpack.unpackb(ASKED)
    training, own = visit["task"]["training"], {"name": "own", "part": "shelf.pulls:Gentle"}

    def asked(**changes: Any) -> dict[str, Any]:
        return {**visit, "task": {**visit["task"], **changes}}

    return [
        ("a lease of nothing", "field", DOWN, {**visit, "lease": 0}),
        ("a digest of 31 bytes", "field", DOWN, {**visit, "kit": {"digest": KIT.digest[1:], "size": 3}}),
        ("seventeen vectors", "field", DOWN, {**visit, "vectors": {str(n): visit["kit"] for n in range(17)}}),
        ("an unknown setting", "field", DOWN, asked(training={**training, "clip": 1.0})),
        ("an unknown optimiser", "field", DOWN, asked(training={**training, "optimiser": "lion"})),
        ("a momentum of 1", "field", DOWN, asked(training={**training, "momentum": 1.0})),
        ("an unknown objective", "field", DOWN, asked(objective={"name": "dance"})),
        ("an objective without a name", "field", DOWN, asked(objective={"mu": 0.1})),
        ("a setting of another objective", "field", DOWN, asked(objective={"name": "sgd", "mu": 0.1})),
        ("FedDyn without a pull", "field", DOWN, asked(objective={"name": "dyn", "a": 0.0})),
        ("a pool of nothing", "field", DOWN, asked(objective={"name": "elmy", "models": 0})),
        ("all samples held out", "field", DOWN, asked(objective={"name": "elmy", "validation": 1.0})),
        ("an own objective without a part", "field", DOWN, asked(objective={"name": "own"})),
        ("a part without a class", "field", DOWN, asked(objective={**own, "part": "shelf.pulls"})),
        ("an unknown estimator", "field", DOWN, asked(estimator={"name": "guess"})),
        ("an unknown place", "field", DOWN, asked(estimator={"name": "signature", "where": "moon"})),
        ("an unknown task", "field", DOWN, asked(kind="evaluate")),
        ("a number of threads as text", "field", DOWN, asked(threads="none")),
        ("a number of visits before that is negative", "field", DOWN, {**visit, "earlier": -1}),
    ]


def _tours() -> list[Dropped]:
    tour = Tour(TOUR, KIT, {"model": KIT}, ("pi-1",), (), TASK, 7, TourPolicy(), Gate(), ())
    led = msgpack.unpackb(pack(Packet(1, EPOCHS[CLOUD], tour)))
    return [
        ("1001 merges", "field", (CLOUD, EDGE), {**led, "merges": 1001}),
        ("an unknown weighting", "field", (CLOUD, EDGE), {**led, "weighting": "loudness"}),
    ]


def _results() -> list[Dropped]:
    result = msgpack.unpackb(pack(Packet(1, EPOCHS[DEVICE], Visited(VISIT, {}, 60, {}))))
    return [
        ("more samples than there are", "field", UP, {**result, "samples": (1 << 53) - 1}),
        ("a loss that is no number", "field", UP, {**result, "metrics": {"loss": math.nan}}),
        ("an infinite loss", "field", UP, {**result, "metrics": {"loss": math.inf}}),
        ("a metric with a space in its name", "field", UP, {**result, "metrics": {"my loss": 1.0}}),
        ("an infinite signature", "field", UP, {**result, "signature": [0.5, math.inf]}),
    ]


def _roles() -> list[Dropped]:
    return [
        ("progress from an edge server", "role", DOWN, GOOD),
        ("a visit from a device", "role", UP, ASKED),
    ]
