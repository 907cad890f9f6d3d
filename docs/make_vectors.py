"""Makes docs/vectors.json and the worked examples in docs/protocol.md, from the code that is the protocol.

python -m docs.make_vectors            write both
python -m docs.make_vectors --check    say whether both are current
"""
# ruff: noqa: INP001  # a script beside the page that it serves

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import numpy as np

from docs import training_vectors
from edge_agent.objectives import NAMES
from sojourn import WIRE, topics, vectors
from sojourn.blobs import LEAF, digest_of, leaf_hashes, ref_of
from sojourn.envelope import Packet, kind, pack, pack_blob
from sojourn.exemplars import Exemplars, signature
from sojourn.graphs import probe_vector
from sojourn.messages import (
    Accepted,
    Birth,
    Cancel,
    Chunk,
    Death,
    Declined,
    Discarded,
    Export,
    Exported,
    Fetch,
    FetchHashes,
    Gone,
    Hashes,
    Inspect,
    Jobs,
    Prepare,
    Progress,
    Refused,
    Roster,
    RosterAsk,
    RosterSeen,
    Stop,
    Submit,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
    Visit,
    Visited,
)
from sojourn.parts import (
    ClassCountEstimator,
    Elmy,
    Gate,
    OwnObjective,
    Scaffold,
    Sgd,
    SignatureEstimator,
    TourPolicy,
    Training,
)
from sojourn.randomness import batches, derive, noise
from sojourn.spec import InputSpec, Kit, ModelSpec, Probe, TensorSpec
from sojourn.topics import Address
from sojourn.wire import Epoch, JobView, Member, Offer, Ref, RoundReport, Task, TourId, TourView, VisitId, VisitReport

if TYPE_CHECKING:
    from sojourn.graphs import Graphs
    from sojourn.messages import Message, Presence

HERE = Path(__file__).parent
VECTORS, PAGE = HERE / "vectors.json", HERE / "protocol.md"
EXAMPLE = re.compile(r"<!-- example ([a-z0-9-]+) -->\n.*?<!-- end -->", re.DOTALL)
SHOWN = 96
"""Bytes of a long packet that the page shows at its beginning; its end is shown on a line of its own."""

FLEET = "bakery"
DEVICE, EDGE, CLOUD, OPERATOR = (
    Address("device", "pi-1"), Address("edge", "hall"), Address("cloud", "main"), Address("cloud", "operator")
)  # fmt: skip
EPOCHS = {
    DEVICE: Epoch(3, bytes.fromhex("a1a2a3a4a5a6a7a8")),
    EDGE: Epoch(12, bytes.fromhex("e1e2e3e4e5e6e7e8")),
    CLOUD: Epoch(5, bytes.fromhex("c1c2c3c4c5c6c7c8")),
    OPERATOR: Epoch(1, bytes.fromhex("0102030405060708")),
}
SPEC = ModelSpec((TensorSpec("weight", (2, 3)), TensorSpec("bias", (2,))))
START = np.array([0.5, -0.25, 0.125, 1.0, -1.0, 0.0, 0.75, -0.5], np.float32)
END = START + np.array([0.05, -0.02, 0.0, 0.0125, -0.0499, 0.03, 0.008, -0.0021], np.float32)
LARGE = bytes(at % 251 for at in range(70_000))
"""A blob of three leaves: 28,672 + 28,672 + 12,656 bytes."""
KIT = ref_of(LARGE)
TASK = Task("train", Training(epochs=2, batch=16, lr=0.1), Sgd(), "float32", 1)
VISIT, TOUR = VisitId("digits", 1, 0, 0, (1, 1)), TourId("digits", 1, 0, 1)
SEED = derive(derive(7, "train", 1), DEVICE.name, 0)
OFFER = Offer(
    "0.1.0", "Raspberry Pi 4", "onnxruntime 1.31.1", 4, 3_900_000_000, NAMES, "npz shelf.npz", ("class-counts",)
)  # fmt: skip


def make() -> dict[str, Any]:
    """All vectors."""
    return {
        "about": "Test vectors; docs/protocol.md says how to read them. Written by docs/make_vectors.py.",
        "wire": WIRE,
        "topics": _topics(),
        "packets": [_packet(*each) for each in _messages()],
        "invalid": _invalid(),
        "blobs": _blobs(),
        "digests": _digests(),
        "encodings": _encodings(),
        "seeds": [{"seed": seed, "names": list(names), "derived": derive(seed, *names)} for seed, names in _NAMES],
        "orders": _orders(),
        "noise": _noise(),
        "probe_vector": {"size": 8, "float32": probe_vector(8).astype("<f4").tobytes().hex()},
        "signatures": _signatures(),
        **training_vectors.make(),
    }


def _topics() -> dict[str, Any]:
    inbox, state = topics.inbox(FLEET, EDGE, DEVICE.name), topics.state(FLEET, DEVICE)
    start = f"sojourn/{WIRE}/{FLEET}"
    return {
        "fleet": FLEET,
        "valid": [
            {"topic": inbox, "role": "edge", "name": "hall", "sender": "pi-1"},
            {"topic": topics.inbox(FLEET, DEVICE, EDGE.name), "role": "device", "name": "pi-1", "sender": "hall"},
            {"topic": topics.inbox(FLEET, OPERATOR, CLOUD.name), "role": "cloud", "name": "operator", "sender": "main"},
            {"topic": state, "role": "device", "name": "pi-1", "sender": None},
            {"topic": f"{start}/edge/{'x' * 63}/in/-", "role": "edge", "name": "x" * 63, "sender": "-"},
        ],
        "invalid": [
            inbox.replace("/1/", "/2/"),
            inbox.replace(FLEET, "brewery"),
            f"{start}/robot/hall/in/pi-1",
            f"{start}/edge/Hall/in/pi-1",
            f"{start}/edge/hall/in/pi_1",
            f"{start}/edge/hall/in/",
            f"{start}/edge/hall/in",
            f"{start}/edge/hall/in/pi-1/",
            f"{start}/edge/{'x' * 64}/in/pi-1",
            f"{start}/edge/hall/out/pi-1",
            f"{start}/device/pi-1/state/",
            f"/{inbox}",
            "",
        ],
    }


def _messages() -> list[tuple[str, Address, Address | None, Message | Presence]]:
    """At least one message of every kind: name, sender, receiver (None: the sender's own state topic), message."""
    model = _inline(vectors.encode(START, "float32", SPEC), "float32")
    result = _inline(vectors.encode(END, "float32", SPEC), "float32")
    delta = _inline(vectors.encode(END - START, "int8", SPEC), "int8", delta=True)
    exemplars = _inline(pack_blob(EXEMPLARS))
    members, reports = _inline(pack_blob(MEMBERS)), _inline(pack_blob(REPORTS))
    metrics = {"loss_first": 1.25, "loss": 0.75, "steps": 8.0, "seconds": 0.5}
    control = _inline(vectors.encode(START / np.float32(8), "float32", SPEC), "float32")
    moved = _inline(vectors.encode(END - START, "float32", SPEC), "float32")
    estimate = Task("estimate", Training(), Sgd(), "int8", None, SignatureEstimator(epochs=1, where="device"))
    counting = Task("estimate", Training(), Sgd(), "float32", None, ClassCountEstimator())
    steady = Task("train", Training(), Scaffold(), "float32", 1)
    pool = Task("train", Training(optimiser="adam", lr=0.001), Elmy(models=3, warmup=5), "float32", 1)
    own = OwnObjective(part="shelf.pulls:Gentle", settings={"strength": 0.5})
    foreign = Task("train", Training(), own, "float32", 1)
    hashes, last = leaf_hashes(LARGE), 2 * LEAF
    policy, gate = TourPolicy(on_lost_visit="swap"), Gate()
    tour = Tour(TOUR, KIT, {"model": model}, ("pi-1", "pi-2"), ("pi-9",), TASK, derive(7, "train", 1), policy, gate, ())
    waves = msgspec.structs.replace(tour, merges=2, weighting="uniform")
    view = JobView(
        "digits", "visit", "mlp", "running", "", 1, 10, "train", 0.5, 2,
        (TourView(0, "hall", ("pi-1", "pi-2"), 1, "pi-2", 3, 8, 0, False),),
        (RoundReport(1, 0.5, 1.5, 1, 2, 0, 123_456, 9.5, {"vts": 0.25}, ()),),
    )  # fmt: skip
    return [
        ("birth", DEVICE, None, Birth(OFFER)),
        ("birth-of-an-edge-server", EDGE, None, Birth()),
        ("death", DEVICE, None, Death()),
        ("prepare", EDGE, DEVICE, Prepare("digits", KIT, TASK)),
        ("visit", EDGE, DEVICE, Visit(VISIT, KIT, {"model": model}, TASK, SEED, 60.0)),
        (
            "visit-to-estimate", EDGE, DEVICE,
            Visit(VISIT, KIT, {"model": model, "exemplars": exemplars}, estimate, SEED, 60.0),
        ),
        ("visit-to-count-classes", EDGE, DEVICE, Visit(VISIT, KIT, {"model": model}, counting, SEED, 60.0)),
        (
            "visit-with-a-control", EDGE, DEVICE,
            Visit(VISIT, KIT, {"model": model, "control": control}, steady, SEED, 60.0),
        ),
        ("visit-for-a-pool", EDGE, DEVICE, Visit(VISIT, KIT, {"model": model}, pool, SEED, 60.0, 2)),
        ("visit-with-an-own-objective", EDGE, DEVICE, Visit(VISIT, KIT, {"model": model}, foreign, SEED, 60.0)),
        ("fetch-hashes", DEVICE, EDGE, FetchHashes(KIT.digest, 0)),
        ("hashes", EDGE, DEVICE, Hashes(KIT.digest, 0, hashes)),
        ("fetch", DEVICE, EDGE, Fetch(KIT.digest, 2, 1)),
        ("chunk", EDGE, DEVICE, Chunk(KIT.digest, 2, LARGE[last:])),
        ("gone", EDGE, DEVICE, Gone(KIT.digest)),
        ("progress", DEVICE, EDGE, Progress(VISIT, "training", 3, 8)),
        ("declined", DEVICE, EDGE, Declined(VISIT, "hot", "84 degrees")),
        ("visited", DEVICE, EDGE, Visited(VISIT, {"model": result}, 60, metrics)),
        ("visited-with-a-delta", DEVICE, EDGE, Visited(VISIT, {"model": delta}, 60, metrics)),
        ("visited-with-a-signature", DEVICE, EDGE, Visited(VISIT, {}, 60, metrics, (0.75, 0.125))),
        ("visited-with-class-counts", DEVICE, EDGE, Visited(VISIT, {}, 60, {"seconds": 0.5}, (45.0, 15.0))),
        (
            "visited-with-a-control-delta", DEVICE, EDGE,
            Visited(VISIT, {"model": result, "control_delta": moved}, 60, {**metrics, "remembered": 4.0}),
        ),
        ("accepted", EDGE, DEVICE, Accepted(VISIT)),
        ("discarded", EDGE, DEVICE, Discarded(VISIT, "this attempt is no longer wanted")),
        ("cancel", EDGE, DEVICE, Cancel(VISIT)),
        ("roster-ask", CLOUD, EDGE, RosterAsk()),
        ("roster", EDGE, CLOUD, Roster(1, members)),
        ("roster-seen", CLOUD, EDGE, RosterSeen(1)),
        ("tour", CLOUD, EDGE, tour),
        ("tour-with-merges", CLOUD, EDGE, waves),
        ("tour-progress", EDGE, CLOUD, TourProgress(TOUR, 1, 2, "pi-2", 3, 8, 0, 61_234)),
        ("toured", EDGE, CLOUD, Toured(TOUR, {"model": result}, 120, reports, 123_456)),
        ("tour-accepted", CLOUD, EDGE, TourAccepted(TOUR)),
        ("tour-discarded", CLOUD, EDGE, TourDiscarded(TOUR, "this attempt is no longer wanted")),
        ("tour-cancel", CLOUD, EDGE, TourCancel(TOUR)),
        ("submit", OPERATOR, CLOUD, Submit("t-1", 'name = "digits"\n[data]\ntest = "digits"\n')),
        ("inspect", OPERATOR, CLOUD, Inspect("t-2", "digits", 0)),
        ("jobs", CLOUD, OPERATOR, Jobs("t-2", (view,))),
        ("stop", OPERATOR, CLOUD, Stop("t-3", "digits")),
        ("export", OPERATOR, CLOUD, Export("t-4", "digits")),
        ("exported", CLOUD, OPERATOR, Exported("t-4", KIT, 0.9375)),
        ("refused", CLOUD, OPERATOR, Refused("t-5", "there is no job 'digit'; the jobs are: digits")),
    ]  # fmt: skip


def _inline(data: bytes, encoding: Any = "raw", *, delta: bool = False) -> Ref:
    return msgspec.structs.replace(ref_of(data, encoding, delta=delta), inline=data)


def _packet(name: str, sender: Address, to: Address | None, message: Message | Presence) -> dict[str, Any]:
    data = pack(Packet(1, EPOCHS[sender], message))
    return {
        "name": name,
        "topic": topics.inbox(FLEET, to, sender.name) if to else topics.state(FLEET, sender),
        "from": str(sender),
        "to": str(to) if to else None,
        "kind": kind(message),
        "fields": told(msgpack.unpackb(data)),
        "hex": data.hex(),
    }


def _invalid() -> list[dict[str, Any]]:
    """Packets that a receiver drops, each by one change to a good one, with the class of the reason."""
    good = pack(Packet(1, EPOCHS[DEVICE], Progress(VISIT, "training", 3, 8)))
    fields = msgpack.unpackb(good)
    visit = msgpack.unpackb(pack(Packet(1, EPOCHS[EDGE], Visit(VISIT, KIT, {"model": KIT}, TASK, SEED, 60.0))))
    task, training = visit["task"], visit["task"]["training"]
    tour = Tour(TOUR, KIT, {"model": KIT}, ("pi-1",), (), TASK, 7, TourPolicy(), Gate(), ())
    led = msgpack.unpackb(pack(Packet(1, EPOCHS[CLOUD], tour)))
    own = {"name": "own", "part": "shelf.pulls:Gentle"}
    up, down = (DEVICE, EDGE), (EDGE, DEVICE)

    def asked(**changes: Any) -> dict[str, Any]:
        return {**visit, "task": {**task, **changes}}

    def without(key: str) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != key}

    made: list[tuple[str, str, tuple[Address, Address], Any]] = [
        ("nothing", "msgpack", up, b""),
        ("cut short", "msgpack", up, good[:-1]),
        ("a byte too many", "msgpack", up, good + b"\0"),
        ("a number as a map's key", "msgpack", up, {**fields, 5: 1}),
        ("a string that is not UTF-8", "msgpack", up, good.replace(b"training", b"train\xff\xff\xff")),
        ("an extension type with content", "msgpack", up, {**fields, "new": msgpack.ExtType(1, b"x")}),
        ("nested too deep", "msgpack", up, b"\x91" * 2000 + b"\x01"),
        ("an array instead of a map", "map", up, [1, 2, 3]),
        ("no kind", "kind", up, without("kind")),
        ("a kind that nobody knows", "kind", up, {**fields, "kind": "dance"}),
        ("a kind as bytes", "kind", up, {**fields, "kind": b"progress"}),
        ("a birth in an inbox", "kind", up, pack(Packet(1, EPOCHS[DEVICE], Birth()))),
        ("no id", "field", up, without("id")),
        ("no epoch", "field", up, without("epoch")),
        ("a nonce of seven bytes", "field", up, {**fields, "epoch": [3, b"1234567"]}),
        ("a nonce as text", "field", up, {**fields, "epoch": [3, "12345678"]}),
        ("a missing field", "field", up, without("steps")),
        ("a float where an integer belongs", "field", up, {**fields, "step": 3.0}),
        ("a boolean where an integer belongs", "field", up, {**fields, "step": True}),
        ("a negative number", "field", up, {**fields, "step": -1}),
        ("a number of 2^53", "field", up, {**fields, "step": 1 << 53}),
        ("an unknown stage", "field", up, {**fields, "stage": "resting"}),
        ("a visit as a map", "field", up, {**fields, "visit": {"job": "digits"}}),
        ("a visit that is too short", "field", up, {**fields, "visit": ["digits", 1, 0, 0]}),
        ("three numbers as an attempt", "field", up, {**fields, "visit": ["digits", 1, 0, 0, [1, 1, 1]]}),
        ("a job with a capital", "field", up, {**fields, "visit": ["Digits", 1, 0, 0, [1, 1]]}),
        ("a lease of nothing", "field", down, {**visit, "lease": 0}),
        ("a digest of 31 bytes", "field", down, {**visit, "kit": {"digest": KIT.digest[1:], "size": 3}}),
        ("seventeen vectors", "field", down, {**visit, "vectors": {str(n): visit["kit"] for n in range(17)}}),
        ("an unknown setting", "field", down, asked(training={**training, "clip": 1.0})),
        ("an unknown optimiser", "field", down, asked(training={**training, "optimiser": "lion"})),
        ("a momentum of 1", "field", down, asked(training={**training, "momentum": 1.0})),
        ("an unknown objective", "field", down, asked(objective={"name": "dance"})),
        ("an objective without a name", "field", down, asked(objective={"mu": 0.1})),
        ("a setting of another objective", "field", down, asked(objective={"name": "sgd", "mu": 0.1})),
        ("FedDyn without a pull", "field", down, asked(objective={"name": "dyn", "a": 0.0})),
        ("a pool of nothing", "field", down, asked(objective={"name": "elmy", "models": 0})),
        ("all samples held out", "field", down, asked(objective={"name": "elmy", "validation": 1.0})),
        ("an own objective without a part", "field", down, asked(objective={"name": "own"})),
        ("a part without a class", "field", down, asked(objective={**own, "part": "shelf.pulls"})),
        ("an unknown estimator", "field", down, asked(estimator={"name": "hearsay"})),
        ("a place that nobody knows", "field", down, asked(estimator={"name": "signature", "where": "moon"})),
        ("an unknown task", "field", down, asked(kind="evaluate")),
        ("a number of threads as text", "field", down, asked(threads="none")),
        ("a number of visits before that is negative", "field", down, {**visit, "earlier": -1}),
        ("1001 merges", "field", (CLOUD, EDGE), {**led, "merges": 1001}),
        ("an unknown weighting", "field", (CLOUD, EDGE), {**led, "weighting": "loudness"}),
        ("progress from an edge server", "role", (EDGE, DEVICE), fields),
        ("a visit from a device", "role", (DEVICE, EDGE), visit),
    ]
    return [
        {
            "name": name,
            "class": why,
            "from": str(sender),
            "to": str(to),
            "hex": (content if isinstance(content, bytes) else msgpack.packb(content)).hex(),
        }
        for name, why, (sender, to), content in made
    ]


EXEMPLARS = Exemplars.of(np.array([[0, 8], [16, 4], [2, 2]], np.uint8), np.array([0, 1, 1]))
MEMBERS = (Member("pi-1", EPOCHS[DEVICE], OFFER), Member("pi-2", Epoch(1, b"\x08" * 8), None))
REPORTS = (
    VisitReport("pi-1", 0, "done", "", 60, 0.25, {"loss": 0.75}, None, 4.5),
    VisitReport("pi-2", 1, "declined", "hot: 84 degrees", 0, 0.0, {}, None, 0.5),
)
TINY_KIT = Kit(
    SPEC, InputSpec((3,)), ("cat", "dog"), ((4,),), b"train graph", b"predict graph",
    Probe(np.arange(6, dtype="<f4").tobytes(), (0, 1), 9, 0.6875, 1.5, (0, 7), (0.25, -0.5)), ("weight",),
)  # fmt: skip
"""Shows how a kit is packed; its graphs are not graphs."""


def _blobs() -> list[dict[str, Any]]:
    made: list[tuple[str, object]] = [
        ("kit", TINY_KIT), ("exemplars", EXEMPLARS), ("members", MEMBERS), ("reports", REPORTS)
    ]  # fmt: skip
    return [
        {"name": name, "fields": told(msgpack.unpackb(pack_blob(value))), "hex": pack_blob(value).hex()}
        for name, value in made
    ]


def _digests() -> list[dict[str, Any]]:
    """The content of each is the bytes i mod 251 for i from 0 to size - 1."""
    contents = [LARGE[:size] for size in (0, 1, LEAF, LEAF + 1, len(LARGE))]
    return [
        {
            "size": len(content),
            "leaves": [leaf_hashes(content)[at : at + 32].hex() for at in range(0, len(leaf_hashes(content)), 32)],
            "digest": digest_of(content).hex(),
        }
        for content in contents
    ]


def _encodings() -> list[dict[str, Any]]:
    halves = np.array([127, 0.5, 1.5, -2.5, -127, 126.4, 0.0, 0.0], np.float32)  # ties go to the even number
    extreme = np.array([1e6, -1e6, 1e-8, 3.0, 2.0, -0.1, 1e-45, -1e-45], np.float32)
    broken = np.array([1, np.nan, 2, 3, 4, 1e6, np.inf, 1], np.float32)
    named = {
        "a model": START, "a difference": END - START, "halves": halves, "extreme": extreme, "not finite": broken
    }  # fmt: skip
    made: list[dict[str, Any]] = [
        {
            "name": f"{name}, {encoding}",
            "encoding": encoding,
            "tensors": list(SPEC.sizes),
            "vector": vector.astype("<f4").tobytes().hex(),
            "hex": (data := vectors.encode(vector, encoding, SPEC)).hex(),
            "decoded": vectors.decode(data, encoding, SPEC).astype("<f4").tobytes().hex(),
        }
        for name, vector in named.items()
        for encoding in ("float32", "float16", "int8")
        if (name, encoding) != ("not finite", "int8")
    ]
    data = vectors.encode(broken, "int8", SPEC)
    # How a NaN among the scales is written is up to the machine.
    unlike = {
        "name": "not finite, int8",
        "encoding": "int8",
        "tensors": list(SPEC.sizes),
        "vector": broken.astype("<f4").tobytes().hex(),
        "hex_after_scales": data[8:].hex(),
        "scales_are_finite": [bool(finite) for finite in np.isfinite(np.frombuffer(data, "<f4", 2))],
    }
    return [*made, unlike]


_NAMES: tuple[tuple[int, tuple[str | int, ...]], ...] = (
    (0, ()),
    (7, ("train", 1)),
    (derive(7, "train", 1), ("pi-1", 0)),
    (SEED, ("order", 0)),
    (SEED, ("noise", 0)),
    ((1 << 53) - 1, ("order", 999_999)),
)


def _orders() -> list[dict[str, Any]]:
    return [
        {
            "seed": seed, "samples": samples, "size": size, "epochs": epochs,
            "batches": [[int(at) for at in index] for index in batches(seed, samples, size, epochs)],
        }
        for seed, samples, size, epochs in ((0, 1, 4, 1), (SEED, 10, 4, 2), ((1 << 53) - 1, 100, 64, 1))
    ]  # fmt: skip


def _noise() -> list[dict[str, Any]]:
    shapes: tuple[tuple[int, ...], ...] = ((3,), (2, 2))
    return [
        {
            "seed": seed, "step": step, "batch": 2, "shapes": [list(shape) for shape in shapes],
            "float32": [drawn.astype("<f4").tobytes().hex() for drawn in noise(seed, step, 2, shapes)],
        }
        for seed, step in ((SEED, 0), (SEED, 1))
    ]  # fmt: skip


class _FixedAnswers:
    """Stands in for a kit's prediction graph."""

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = np.array(rows, np.float32)

    def logits(self, _vector: object, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self._rows[: len(x)]


def _signatures() -> list[dict[str, Any]]:
    rows, classes = [[2.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.0]], 3
    answers: Graphs = _FixedAnswers(rows)  # type: ignore[assignment]
    mark = [round(value, 12) for value in signature(answers, START, EXEMPLARS, classes)]  # exp differs in its last bit
    return [{"logits": rows, "y": list(EXEMPLARS.y), "classes": classes, "signature": mark}]


def told(value: Any) -> Any:
    """A value as JSON can say it."""
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case dict():
            return {key: told(each) for key, each in value.items()}
        case list() | tuple():
            return [told(each) for each in value]
        case _:
            return value


def text_of(made: dict[str, Any]) -> str:
    """The file: one line for each vector, so that a change shows where it is."""
    parts = []
    for name, value in made.items():
        lines = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in value) if isinstance(value, list) else ""
        parts.append(f" {json.dumps(name)}: " + (f"[\n  {lines}\n ]" if lines else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def with_examples(page: str, made: dict[str, Any]) -> str:
    """The page with its examples written anew."""
    packets = {packet["name"]: packet for packet in made["packets"]}
    encoded = next(each for each in made["encodings"] if each["name"] == "a difference, int8")
    blob = next(each for each in made["digests"] if each["size"] == len(LARGE))

    def render(match: re.Match[str]) -> str:
        name = match[1]
        if name == "int8-vector":
            body = _int8_example(encoded)
        elif name == "large-blob":
            body = _fenced("text", f"digest  {blob['digest']}\n" + _leaves(blob["leaves"]))
        else:
            body = _packet_example(packets[name])
        return f"<!-- example {name} -->\n{body}\n<!-- end -->"

    return EXAMPLE.sub(render, page)


def _leaves(hashes: list[str]) -> str:
    return "\n".join(f"leaf {at}  {leaf}" for at, leaf in enumerate(hashes))


def _packet_example(packet: dict[str, Any]) -> str:
    data = bytes.fromhex(packet["hex"])
    head = f"`{packet['name']}`, {len(data)} bytes on `{packet['topic']}`:"
    fields = json.dumps(_short(packet["fields"]), ensure_ascii=False)
    return "\n\n".join([head, _fenced("hex", _hex_lines(data)), _fenced("json", _wrapped(fields))])


def _short(value: Any) -> Any:
    """Long bytes by their length."""
    match value:
        case {"bytes": str(digits)} if len(digits) > 128:
            return {"bytes": f"{digits[:16]}...", "length": len(digits) // 2}
        case dict():
            return {key: _short(each) for key, each in value.items()}
        case list():
            return [_short(each) for each in value]
        case _:
            return value


def _hex_lines(data: bytes) -> str:
    if len(data) <= 1024:
        return "\n".join(data[at : at + 32].hex() for at in range(0, len(data), 32))
    return f"{_hex_lines(data[:SHOWN])}\n...\n{data[-32:].hex()}"


def _wrapped(text: str, width: int = 110) -> str:
    """Lines that are broken at spaces, never within a string."""
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) >= width and line.count('"') % 2 == 0:
            lines.append(line)
            line = word
        else:
            line += f" {word}" if line else word
    return "\n".join([*lines, line])


def _int8_example(encoded: dict[str, Any]) -> str:
    values = np.frombuffer(bytes.fromhex(encoded["vector"]), "<f4")
    decoded = np.frombuffer(bytes.fromhex(encoded["decoded"]), "<f4")
    data, tensors = encoded["hex"], len(encoded["tensors"])
    scales = [data[8 * at : 8 * at + 8] for at in range(tensors)]
    lines = [
        f"tensors  {encoded['tensors']}",
        f"vector   {[float(value) for value in values]}",
        f"encoded  {data}",
        f"scales   {' '.join(scales)} = {[float(np.frombuffer(bytes.fromhex(each), '<f4')[0]) for each in scales]}",
        f"bytes    {data[8 * tensors :]} = {np.frombuffer(bytes.fromhex(data[8 * tensors :]), np.int8).tolist()}",
        f"decoded  {[float(value) for value in decoded]}",
    ]
    return _fenced("text", "\n".join(lines))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def main(arguments: list[str]) -> int:
    """Write, or check."""
    made = make()
    page = PAGE.read_text(encoding="utf-8")
    wanted = {VECTORS: text_of(made), PAGE: with_examples(page, made)}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        sys.stdout.writelines(f"{path.name} is not current: run python -m docs.make_vectors\n" for path in stale)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
