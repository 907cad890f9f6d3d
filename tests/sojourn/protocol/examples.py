"""One message of every kind, and a kit that fits any model."""

from __future__ import annotations

from math import prod

import msgspec

from sojourn.parts import Gate, Sgd, TourBounds, TourPolicy, Training
from sojourn.protocol.mandates import (
    KitDetails,
    Normalisation,
    ReadKit,
    Recall,
    SignedMandate,
    SignedWithdrawal,
    SignJob,
    WithdrawJob,
)
from sojourn.protocol.messages import (
    Accepted,
    Cancel,
    Chunk,
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
    Export,
    Exported,
    Fleet,
    FleetChange,
    ForgetDevice,
    Inspect,
    InspectFleet,
    Jobs,
    JobText,
    ReadJob,
    Refused,
    Remove,
    Removed,
    Stop,
    Submit,
)
from sojourn.protocol.operators import Audit, AuditEntry, InspectAudit, RequestSignature, SignedRequest
from sojourn.protocol.release import (
    BlobRef,
    DeviceView,
    Goods,
    Health,
    HealthRules,
    LineView,
    Pace,
    RolloutPlan,
    SignedOrder,
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
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, Probe
from sojourn.protocol.wire import (
    HopEnd,
    HopEnds,
    JobModels,
    JobTimes,
    JobView,
    Ref,
    RoundReport,
    Task,
    TourId,
    TourView,
    VisitId,
)

D = bytes(range(32))
REF = Ref(D, 100, "float32")
TASK = Task("train", Training(), Sgd(), "float32", 1)
VISIT, TOUR = VisitId("job", 1, 0, 2, (1, 3)), TourId("job", 1, 0, 1)
REPORT = RoundReport(1, 0.5, 1.5, 2, 4, 0, 1000, 2.5, {"vts": 0.9}, ("dev: lost, silent",))
TOUR_VIEW = TourView(0, "site", ("a", "b"), 1, "b", 3, 4, 0, False)
VIEW = JobView("job", "visit", "mlp", "running", "", 1, 5, "train", 0.5, 4, (TOUR_VIEW,), (REPORT,))
MANDATE = SignedMandate(b"a mandate", bytes(64))
ORDER = SignedOrder(b"an order", bytes(64))
HEALTH = Health(rows=5, pace=Pace(1.5, 2.5), accuracy=0.5, accuracy_before=0.75, live=Pace(1.0, 2.0), mix=(0.25, 0.75))
RELEASE_REPORT = ReleaseReport("line", 7, 3, "serving", "", HEALTH)
LINE_VIEW = LineView(
    line="line", status="running", detail="", serial=8, version=3, before=2, serves=2,
    goods=Goods(BlobRef(D, 1), BlobRef(D, 2)), stages=(0.5, 1.0), stage=1, counts={"serving": 1},
    plan=RolloutPlan(HealthRules(), undo=True), devices=(DeviceView("d", 1, 7, 3, "serving", "", HEALTH),),
)  # fmt: skip

EXAMPLES = (
    Fetch(D, 0, 5),
    FetchHashes(D, 7),
    Hashes(D, 7, bytes(64)),
    Chunk(D, 3, b"data"),
    Gone(D),
    Prepare("job", REF, TASK),
    Visit(VISIT, REF, {"model": Ref(D, 3, "int8", inline=b"abc")}, TASK, 9, 60.0),
    Cancel(VISIT),
    Accepted(VISIT),
    Discarded(VISIT, "not finite"),
    Progress(VISIT, "training", 3, 10),
    Declined(VISIT, "hot", "80 degrees"),
    Visited(VISIT, {"model": Ref(D, 3, "float16", delta=True)}, 50, {"loss": 0.25}, (0.5, 0.25)),
    RosterAsk(),
    Roster(4, REF),
    RosterSeen(4),
    Tour(TOUR, REF, {"model": REF}, ("a", "b"), ("c",), TASK, 5, TourPolicy(), Gate(), (0.5, 1.5)),
    Tour(TOUR, REF, {"model": REF}, ("a",), (), TASK, 5, TourPolicy(), Gate(), (), bounds=TourBounds(deadline=60.0)),
    TourCancel(TOUR),
    TourAccepted(TOUR),
    TourDiscarded(TOUR, "late"),
    TourProgress(TOUR, 1, 2, "b", 3, 4, 0, 999),
    TourProgress(TOUR, 1, 2, "c", 3, 4, 1, 999, HopEnds((HopEnd(1, "b", "declined", "hot: 82 C"),))),
    Toured(TOUR, {"model": REF}, 100, REF, 999),
    Submit("ticket", 'name = "job"'),
    Inspect("ticket", "job", 3),
    Stop("ticket", "job"),
    Export("ticket", "job"),
    Jobs("ticket", (VIEW,), "1.0.0"),
    Export("ticket", "job", 3),
    Exported("ticket", REF, 0.75, 3),
    Jobs(
        "ticket", (msgspec.structs.replace(VIEW, models=JobModels((1, 2), 2), times=JobTimes(1e9, 2e9, 3.5)),), "1.0.0"
    ),
    InspectFleet("ticket", "visits", "pi-1", "job", "7"),
    Fleet("ticket", "1.0.0", 1e9, changes=(FleetChange(1e9, "pi-1", "site", "online"),), next="8"),
    Continue("ticket", "job", 8, 0.5),
    Remove("ticket", "job"),
    Removed("ticket", "job", 3, 4096),
    ReadJob("ticket", "job"),
    JobText("ticket", "job", 'name = "job"'),
    Refused("ticket", "no"),
    MakeRelease("ticket", "job", "line", 3, "int8", "for the shelf", 0.01),
    ReleaseMade("ticket", REF, REF),
    Rollout("ticket", ORDER, ORDER, REF, REF, (0.05, 0.25, 1.0), HealthRules(soak=5.0), undo=False),
    Steer("ticket", "line", "rollback"),
    InspectReleases("ticket", "line"),
    Releases("ticket", (LINE_VIEW,)),
    Ship(ORDER, REF, None, ("a", "b")),
    Release(ORDER, REF, Ref(D, 3, inline=b"abc")),
    RELEASE_REPORT,
    DeviceReport("d", RELEASE_REPORT),
    Prepare("job", REF, TASK, MANDATE),
    Visit(VISIT, REF, {"model": REF}, TASK, 9, 60.0, mandate=MANDATE),
    Tour(TOUR, REF, {"model": REF}, ("a",), (), TASK, 5, TourPolicy(), Gate(), (), signing=TourSigning(MANDATE)),
    ReadKit("ticket", "job"),
    KitDetails("ticket", "job", REF, Normalisation((1.5,), None), ("torch 2",), 7),
    SignJob("ticket", MANDATE),
    WithdrawJob("ticket", SignedWithdrawal(b"a withdrawal", bytes(64))),
    Recall(SignedWithdrawal(b"a withdrawal", bytes(64))),
    SignedRequest("ticket", b"a message", RequestSignature(b"a request", bytes(64))),
    InspectAudit("ticket", 7),
    AwaitChange("ticket", 7, True),
    Changed("ticket", 9, 1e9, "1.0.0", 9, 8, 7, 6),
    ReadCard("ticket", "line", 3),
    CardDetails("ticket", REF, BlobRef(D, 3)),
    Audit("ticket", (AuditEntry(1, 1e9, "ann", "stop job", "done", "", "t", None, b""),), more=True),
    ForgetDevice("ticket", "pi-1"),
)


def kit_without_graphs(model: ModelSpec, of: InputSpec, classes: tuple[str, ...] = ("a", "b"), *linear: str) -> Kit:
    row = bytes(prod(of.shape) * (8 if of.dtype == "int64" else 4))
    return Kit(model, of, classes, (), b"", b"", Probe(row, (0,), 0, 0.0, 0.0, (0,), (0.0,)), linear)
