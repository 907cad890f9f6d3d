"""Topics, and at least one packet of every kind."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from docs.vectors.cast import (
    CLOUD,
    DEVICE,
    EDGE,
    END,
    EPOCHS,
    EXEMPLARS,
    FLEET,
    KIT,
    LARGE,
    MEMBERS,
    OFFER,
    OPERATOR,
    REPORTS,
    SEED,
    SPEC,
    START,
    SUMMARY,
    TASK,
    TOUR,
    VISIT,
)
from docs.vectors.json_values import to_json
from sojourn import WIRE
from sojourn.model import vectors
from sojourn.parts import (
    ClassCountEstimator,
    Elmy,
    Gate,
    OwnObjective,
    Scaffold,
    Sgd,
    SignatureEstimator,
    TourBounds,
    TourPolicy,
    Training,
)
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, kind, pack, pack_blob
from sojourn.protocol.mandates import (
    KitDetails,
    Mandate,
    Normalisation,
    ReadKit,
    Recall,
    SignJob,
    Withdrawal,
    WithdrawJob,
    sign_mandate,
    sign_withdrawal,
)
from sojourn.protocol.messages import (
    Accepted,
    Birth,
    Cancel,
    Chunk,
    Death,
    Declined,
    Discarded,
    Fetch,
    FetchHashes,
    Gone,
    Hashes,
    Prepare,
    Progress,
    Roster,
    RosterAsk,
    RosterSeen,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
    TourSigning,
    Visit,
    Visited,
)
from sojourn.protocol.operator_messages import (
    AwaitChange,
    Changed,
    Continue,
    DeviceNow,
    Export,
    Exported,
    Fleet,
    FleetChange,
    FleetDevice,
    ForgetDevice,
    Inspect,
    InspectFleet,
    Jobs,
    JobText,
    LastVisit,
    ReadJob,
    Refused,
    ReleaseNow,
    Remove,
    Removed,
    Stop,
    Submit,
    VisitNote,
    VisitNow,
)
from sojourn.protocol.operators import Audit, AuditEntry, InspectAudit, Request, SignedRequest, sign_request
from sojourn.protocol.release import (
    BlobRef,
    DeviceView,
    Goods,
    Health,
    HealthRules,
    LineView,
    Order,
    Pace,
    RolloutPlan,
    SignedOrder,
    TaskHealth,
)
from sojourn.protocol.release_messages import (
    CardDetails,
    DeviceReport,
    InspectReleases,
    MakeRelease,
    ReadCard,
    Release,
    ReleaseMade,
    ReleaseReport,
    Releases,
    Rollout,
    Ship,
    Steer,
)
from sojourn.protocol.signing import CONTEXT, Signer
from sojourn.protocol.topics import TOPICS
from sojourn.protocol.wire import HopSignature, JobModels, JobNews, JobTimes, JobView, Ref, RoundReport, Task, TourView
from sojourn.randomness import derive
from sojourn.store.blobs import LEAF, leaf_hashes, ref_of

if TYPE_CHECKING:
    from sojourn.protocol.registry import Message
    from sojourn.protocol.topics import Address

    Sent = tuple[str, Address, Address | None, Message]
    """Name, sender, receiver (None: the sender's own state topic), message."""


def _inline(data: bytes, encoding: Any = "raw", *, delta: bool = False) -> Ref:
    return msgspec.structs.replace(ref_of(data, encoding, delta=delta), inline=data)


MODEL = _inline(vectors.encode(START, "float32", SPEC), "float32")
RESULT = _inline(vectors.encode(END, "float32", SPEC), "float32")


def make() -> dict[str, Any]:
    """Return the vectors by their keys in vectors.json."""
    sent = [*_presence(), *_visits(), *_pulls(), *_answers(), *_tours(), *_requests(), *_releases(), *_mandates()]
    return {"topics": _topics(), "packets": [_packet(*each) for each in sent]}


def _topics() -> dict[str, Any]:
    inbox, state = topics.inbox(FLEET, EDGE, DEVICE.name), topics.state(FLEET, DEVICE)
    start = f"sojourn/{TOPICS}/{FLEET}"
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


def _presence() -> list[Sent]:
    return [
        ("birth", DEVICE, None, Birth(OFFER, WIRE)),
        ("birth-with-a-summary", DEVICE, None, Birth(msgspec.structs.replace(OFFER, summary=SUMMARY), WIRE)),
        ("birth-of-an-edge-server", EDGE, None, Birth(wire=WIRE)),
        ("death", DEVICE, None, Death()),
    ]


def _visits() -> list[Sent]:
    """Return requests from an edge server to a device."""
    exemplars = _inline(pack_blob(EXEMPLARS))
    control = _inline(vectors.encode(START / np.float32(8), "float32", SPEC), "float32")
    estimate = Task("estimate", Training(), Sgd(), "int8", None, SignatureEstimator(epochs=1, where="device"))
    counting = Task("estimate", Training(), Sgd(), "float32", None, ClassCountEstimator())
    steady = Task("train", Training(), Scaffold(), "float32", 1)
    pool = Task("train", Training(optimiser="adam", lr=0.001), Elmy(models=3, warmup=5), "float32", 1)
    own = OwnObjective(part="shelf.pulls:Gentle", settings={"strength": 0.5})
    foreign = Task("train", Training(), own, "float32", 1)
    return [
        ("prepare", EDGE, DEVICE, Prepare("digits", KIT, TASK)),
        ("visit", EDGE, DEVICE, Visit(VISIT, KIT, {"model": MODEL}, TASK, SEED, 60.0)),
        (
            "visit-to-estimate",
            EDGE,
            DEVICE,
            Visit(VISIT, KIT, {"model": MODEL, "exemplars": exemplars}, estimate, SEED, 60.0),
        ),
        ("visit-to-count-classes", EDGE, DEVICE, Visit(VISIT, KIT, {"model": MODEL}, counting, SEED, 60.0)),
        (
            "visit-with-a-control",
            EDGE,
            DEVICE,
            Visit(VISIT, KIT, {"model": MODEL, "control": control}, steady, SEED, 60.0),
        ),
        ("visit-for-a-pool", EDGE, DEVICE, Visit(VISIT, KIT, {"model": MODEL}, pool, SEED, 60.0, 2)),
        ("visit-with-an-own-objective", EDGE, DEVICE, Visit(VISIT, KIT, {"model": MODEL}, foreign, SEED, 60.0)),
    ]


def _pulls() -> list[Sent]:
    hashes, last = leaf_hashes(LARGE), 2 * LEAF
    return [
        ("fetch-hashes", DEVICE, EDGE, FetchHashes(KIT.digest, 0)),
        ("hashes", EDGE, DEVICE, Hashes(KIT.digest, 0, hashes)),
        ("fetch", DEVICE, EDGE, Fetch(KIT.digest, 2, 1)),
        ("chunk", EDGE, DEVICE, Chunk(KIT.digest, 2, LARGE[last:])),
        ("gone", EDGE, DEVICE, Gone(KIT.digest)),
    ]


def _answers() -> list[Sent]:
    """Return messages from a device to its edge server, and the final replies."""
    delta = _inline(vectors.encode(END - START, "int8", SPEC), "int8", delta=True)
    moved = _inline(vectors.encode(END - START, "float32", SPEC), "float32")
    metrics = {"loss_first": 1.25, "loss": 0.75, "steps": 8.0, "seconds": 0.5}
    return [
        ("progress", DEVICE, EDGE, Progress(VISIT, "training", 3, 8)),
        ("declined", DEVICE, EDGE, Declined(VISIT, "hot", "84 degrees")),
        ("visited", DEVICE, EDGE, Visited(VISIT, {"model": RESULT}, 60, metrics)),
        ("visited-with-a-delta", DEVICE, EDGE, Visited(VISIT, {"model": delta}, 60, metrics)),
        ("visited-with-a-signature", DEVICE, EDGE, Visited(VISIT, {}, 60, metrics, (0.75, 0.125))),
        ("visited-with-class-counts", DEVICE, EDGE, Visited(VISIT, {}, 60, {"seconds": 0.5}, (45.0, 15.0))),
        (
            "visited-with-a-control-delta",
            DEVICE,
            EDGE,
            Visited(VISIT, {"model": RESULT, "control_delta": moved}, 60, {**metrics, "remembered": 4.0}),
        ),
        (
            "visited-and-signed",
            DEVICE,
            EDGE,
            Visited(VISIT, {"model": RESULT}, 60, metrics, signed=HopSignature(8, bytes(range(64)))),
        ),
        ("accepted", EDGE, DEVICE, Accepted(VISIT)),
        ("discarded", EDGE, DEVICE, Discarded(VISIT, "this attempt is no longer wanted")),
        ("cancel", EDGE, DEVICE, Cancel(VISIT)),
    ]


def _tours() -> list[Sent]:
    """Return messages between the cloud and an edge server."""
    members, reports = _inline(pack_blob(MEMBERS)), _inline(pack_blob(REPORTS))
    policy, gate = TourPolicy(on_lost_visit="swap"), Gate()
    tour = Tour(TOUR, KIT, {"model": MODEL}, ("pi-1", "pi-2"), ("pi-9",), TASK, derive(7, "train", 1), policy, gate, ())
    waves = msgspec.structs.replace(tour, merges=2, weighting="uniform")
    bounded = msgspec.structs.replace(tour, bounds=TourBounds(deadline=3600.0, against_factor=1.25, least_cosine=-0.5))
    return [
        ("roster-ask", CLOUD, EDGE, RosterAsk()),
        ("roster", EDGE, CLOUD, Roster(1, members)),
        ("roster-seen", CLOUD, EDGE, RosterSeen(1)),
        ("tour", CLOUD, EDGE, tour),
        ("tour-with-merges", CLOUD, EDGE, waves),
        ("tour-with-bounds", CLOUD, EDGE, bounded),
        ("tour-progress", EDGE, CLOUD, TourProgress(TOUR, 1, 2, "pi-2", 3, 8, 0, 61_234)),
        ("toured", EDGE, CLOUD, Toured(TOUR, {"model": RESULT}, 120, reports, 123_456)),
        ("tour-accepted", CLOUD, EDGE, TourAccepted(TOUR)),
        ("tour-discarded", CLOUD, EDGE, TourDiscarded(TOUR, "this attempt is no longer wanted")),
        ("tour-cancel", CLOUD, EDGE, TourCancel(TOUR)),
    ]


def _requests() -> list[Sent]:
    """Return messages between an operator and the cloud."""
    view = JobView(
        "digits", "visit", "mlp", "running", "", 1, 10, "train", 0.5, 2,
        (TourView(0, "hall", ("pi-1", "pi-2"), 1, "pi-2", 3, 8, 0, False),),
        (RoundReport(1, 0.5, 1.5, 1, 2, 0, 123_456, 9.5, {"vts": 0.25}, ()),),
    )  # fmt: skip
    ended = msgspec.structs.replace(
        view,
        status="done",
        tours=(),
        history=(msgspec.structs.replace(view.history[0], ended=1_790_000_100.5),),
        models=JobModels((0, 1), 1),
        times=JobTimes(1_790_000_000.0, 1_790_000_101.0, 100.25),
        news=JobNews(("pi-3: declined, data: it has none",), ("pi-1",), ("pi-3",)),
    )
    last = LastVisit(1_790_000_300.0, "digits", 1, "train", "declined")
    device = FleetDevice(
        "pi-1", True, 1_790_000_000.0, 1_789_000_000.0, "hall", "1.0.0", "Raspberry Pi 4", 12, 1, last, OFFER
    )  # fmt: skip
    note = VisitNote(
        1_790_000_300.0, "digits", 1, "train", 0, 1, "hall", "pi-1", "declined", "hot: 84 degrees", 0, 0.5
    )  # fmt: skip
    done = msgspec.structs.replace(note, hop=0, status="done", reason="", samples=60, seconds=4.5, loss=0.75)
    changes = (
        FleetChange(1_790_000_000.0, "pi-1", "hall", "online"),
        FleetChange(1_789_990_000.0, "pi-1", "hall", "offline"),
    )
    doing = DeviceNow(VisitNow("digits", 2, 0, 1, 30, 60), (ReleaseNow("digits", 1, "serving"),), 4, 4_000_000_000, 3)
    why = msgspec.structs.replace(last, reason="hot: 84 degrees")
    busy = msgspec.structs.replace(device, last=why, offer=None, doing=doing)
    mark = 1_790_000_400_018
    changed = Changed("t-h", mark, 1_790_000_400.0, "1.0.0", mark, mark - 1, mark - 9, mark - 20)
    answer = Fleet("t-f", "1.0.0", 1_790_000_400.0)
    return [
        ("inspect-fleet", OPERATOR, CLOUD, InspectFleet("t-f", "visits", "pi-1", "digits", "17")),
        ("fleet", CLOUD, OPERATOR, msgspec.structs.replace(answer, devices=(device,))),
        ("fleet-changes", CLOUD, OPERATOR, msgspec.structs.replace(answer, changes=changes)),
        ("fleet of a device at work", CLOUD, OPERATOR, Fleet("t-g", "1.0.0", 1_790_000_400.0, (busy,))),
        ("forget-device", OPERATOR, CLOUD, ForgetDevice("t-f", "pi-1")),
        ("inspect-fleet since a mark", OPERATOR, CLOUD, InspectFleet("t-g", "devices", since=1_790_000_400_017)),
        ("await-change", OPERATOR, CLOUD, AwaitChange("t-h", 1_790_000_400_017)),
        ("changed", CLOUD, OPERATOR, changed),
        ("await-change with devices", OPERATOR, CLOUD, AwaitChange("t-h", mark, True)),
        ("changed with devices", CLOUD, OPERATOR, msgspec.structs.replace(changed, devices=(busy,))),
        ("fleet-visits", CLOUD, OPERATOR, msgspec.structs.replace(answer, visits=(note, done), next="12")),
        ("submit", OPERATOR, CLOUD, Submit("t-1", 'name = "digits"\n[data]\ntest = "digits"\n')),
        ("inspect", OPERATOR, CLOUD, Inspect("t-2", "digits", 0)),
        ("jobs", CLOUD, OPERATOR, Jobs("t-2", (view,), "1.0.0")),
        ("stop", OPERATOR, CLOUD, Stop("t-3", "digits")),
        ("export", OPERATOR, CLOUD, Export("t-4", "digits")),
        ("exported", CLOUD, OPERATOR, Exported("t-4", KIT, 0.9375, 20)),
        ("export of a round", OPERATOR, CLOUD, Export("t-6", "digits", 3)),
        ("jobs with models and times", CLOUD, OPERATOR, Jobs("t-2", (ended,), "1.0.0")),
        ("continue", OPERATOR, CLOUD, Continue("t-7", "digits", 20, 0.0)),
        ("remove", OPERATOR, CLOUD, Remove("t-8", "digits")),
        ("removed", CLOUD, OPERATOR, Removed("t-8", "digits", 12, 345_678)),
        ("read-job", OPERATOR, CLOUD, ReadJob("t-9", "digits")),
        ("job-text", CLOUD, OPERATOR, JobText("t-9", "digits", 'name = "digits"\n[data]\ntest = "digits"\n')),
        ("refused", CLOUD, OPERATOR, Refused("t-5", "there is no job 'digit'; the jobs are: digits")),
    ]


_SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
"""The key whose 32 private bytes are 0, 1, 2 ..."""


def _order(serial: int, version: int, goods: Goods | None, *, rollback: bool = False) -> SignedOrder:
    """An order with the signature of the key whose 32 private bytes are 0, 1, 2 ..."""
    data = msgspec.msgpack.encode(Order(FLEET, "digits", serial, version, goods, rollback))
    return SignedOrder(data, Ed25519PrivateKey.from_private_bytes(bytes(range(32))).sign(CONTEXT + data))


def _releases() -> list[Sent]:
    """Return messages of a release, and the reports."""
    graph, card = KIT, _inline(b"a card")
    goods = Goods(BlobRef(graph.digest, graph.size), BlobRef(card.digest, card.size))
    forward, back = _order(1, 1, goods), _order(2, 0, None, rollback=True)
    health = Health(
        rows=60,
        pace=Pace(81.5, 120.0),
        pace_before=Pace(80.0, 118.0),
        accuracy=0.9375,
        accuracy_before=0.875,
        drift=0.0625,
        predictions=2,
        live=Pace(82.0, 121.0),
        mix=(0.5, 0.5),
    )
    anomalies = Health(rows=60, pace=Pace(40.0, 52.0), task=TaskHealth("loss", 0.0625, 0.125, 0.5))
    report = ReleaseReport("digits", 1, 1, "serving", "", health)
    device = DeviceView("pi-1", 1, 1, 1, "serving", "", health)
    line = LineView(
        line="digits", status="running", detail="", serial=2, version=1, before=0, serves=0, goods=None,
        stages=(0.5, 1.0), stage=1, counts={"serving": 1}, devices=(device,),
        plan=RolloutPlan(HealthRules(), undo=True),
    )  # fmt: skip
    return [
        ("make-release", OPERATOR, CLOUD, MakeRelease("t-6", "digits", "digits", 1, "int8", "for the shelf")),
        ("release-made", CLOUD, OPERATOR, ReleaseMade("t-6", graph, card)),
        ("rollout", OPERATOR, CLOUD, Rollout("t-7", forward, back, graph, card, (0.5, 1.0), HealthRules(quorum=3))),
        ("ship", CLOUD, EDGE, Ship(forward, graph, card, ("pi-1", "pi-2"))),
        ("release", EDGE, DEVICE, Release(forward, graph, card)),
        ("release-of-nothing", EDGE, DEVICE, Release(back, None, None)),
        ("release-report", DEVICE, EDGE, report),
        ("release-report-of-anomalies", DEVICE, EDGE, ReleaseReport("pumps", 1, 2, "serving", "", anomalies)),
        ("release-report-of-a-refusal", DEVICE, EDGE, ReleaseReport("digits", 1, 0, "refused", "it is not signed")),
        ("device-report", EDGE, CLOUD, DeviceReport("pi-1", report)),
        ("steer", OPERATOR, CLOUD, Steer("t-8", "digits", "pause")),
        ("inspect-releases", OPERATOR, CLOUD, InspectReleases("t-9", "digits")),
        ("releases", CLOUD, OPERATOR, Releases("t-9", (line,))),
        ("inspect-releases since a device", OPERATOR, CLOUD, InspectReleases("t-9", "digits", 100)),
        ("read-card", OPERATOR, CLOUD, ReadCard("t-i", "digits", 2)),
        ("card-details", CLOUD, OPERATOR, CardDetails("t-i", KIT, BlobRef(KIT.digest, KIT.size))),
    ]


def _mandates() -> list[Sent]:
    """Return messages with mandates and withdrawals, signed requests, and the audit log."""
    mandate = Mandate(
        fleet=FLEET, job="digits", serial=1_790_000_000_000, operator="ann", purpose="to read digits",
        issued=1_790_000_000.0, ends=1_792_592_000.0, kit=KIT.digest, model="mlp", classes=("cat", "dog"),
        class_count=2, sites=("hall",), tasks=(TASK,), rounds=10, visits=50, returns={"model": 40},
    )  # fmt: skip
    signed = sign_mandate(mandate, _SIGNER)
    withdrawal = sign_withdrawal(
        Withdrawal(
            fleet=FLEET, job="digits", serial=1_790_000_100_000, operator="ann", issued=1_790_000_100.0,
            ends=1_792_592_000.0,
        ),
        _SIGNER,
    )  # fmt: skip
    stop = msgspec.msgpack.encode(Stop("t-3", "digits"))
    request = Request(
        FLEET, CLOUD.name, "ann", 1_790_000_000.0, "t-3", "stop digits", hashlib.sha256(stop).digest()
    )  # fmt: skip
    proof = sign_request(request, _SIGNER)
    first = AuditEntry(1, 1_790_000_000.0, "ann", "submit digits", "done", "", "t-1", None, b"")
    second = AuditEntry(2, 1_790_000_001.0, "ann", "stop digits", "done", "", "t-3", proof, first.digest)
    tour = Tour(
        TOUR, KIT, {"model": MODEL}, ("pi-1",), (), TASK, 7, TourPolicy(), Gate(), (), signing=TourSigning(signed)
    )
    return [
        ("prepare-with-a-mandate", EDGE, DEVICE, Prepare("digits", KIT, TASK, signed)),
        ("visit-with-a-mandate", EDGE, DEVICE, Visit(VISIT, KIT, {"model": MODEL}, TASK, SEED, 60.0, 0, signed)),
        ("tour-with-a-mandate", CLOUD, EDGE, tour),
        ("declined-without-a-mandate-for-it", DEVICE, EDGE, Declined(VISIT, "mandate", "its time is over")),
        ("recall", EDGE, DEVICE, Recall(withdrawal)),
        ("read-kit", OPERATOR, CLOUD, ReadKit("t-a", "digits")),
        (
            "kit-details",
            CLOUD,
            OPERATOR,
            KitDetails("t-a", "digits", KIT, Normalisation((4.5,), (6.0,)), ("torch 2.12.1",), 7),
        ),
        ("sign-job", OPERATOR, CLOUD, SignJob("t-b", signed)),
        ("withdraw-job", OPERATOR, CLOUD, WithdrawJob("t-c", withdrawal)),
        ("signed-request", OPERATOR, CLOUD, SignedRequest("t-3", stop, proof)),
        ("inspect-audit", OPERATOR, CLOUD, InspectAudit("t-d", 0)),
        ("audit", CLOUD, OPERATOR, Audit("t-d", (first, second))),
    ]


def _packet(name: str, sender: Address, to: Address | None, message: Message) -> dict[str, Any]:
    data = pack(Packet(1, EPOCHS[sender], message))
    return {
        "name": name,
        "topic": topics.inbox(FLEET, to, sender.name) if to else topics.state(FLEET, sender),
        "from": str(sender),
        "to": str(to) if to else None,
        "kind": kind(message),
        "fields": to_json(msgpack.unpackb(data)),
        "hex": data.hex(),
    }
