"""What older nodes and journals say beyond today's limits is brought within them, and nothing else is."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import msgspec
import pytest

from coordinator import records as cloud_records
from coordinator.records import DevicesEstimated, RoundClosed
from edge_agent import records as agent_records
from hierarchy.edge import records as edge_records
from hierarchy.edge.records import TourEnded, VisitKept
from sojourn.errors import InvalidMessage
from sojourn.protocol.envelope import Packet, kind, pack, unpack, unpack_blob, unpack_presence
from sojourn.protocol.limits import INLINE, MOST, MOST_BYTES, MOST_FIGURE
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import BETWEEN, Birth, Message, Progress, Toured, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer, Ref, RoundReport, TourId, VisitId, VisitReport
from tests.sojourn.protocol.examples import EXAMPLES, TOUR, VISIT
from tests.upgrade.kept import FIXTURES, VERSIONS

EPOCH = Epoch(3, b"12345678")
HUGE = (1 << 53) - 1
BY_ROLE = {"edge": Address("edge", "e"), "device": Address("device", "d"), "cloud": Address("cloud", "c")}
RECORDS: dict[str, Any] = {
    "coordinator": cloud_records.Record,
    "edge": edge_records.Record,
    "agent": agent_records.Record,
}
ASKED_FOR = {
    "bounds", "task", "policy", "gate", "merges", "lease", "rules", "stages", "seed", "order", "serial", "version",
    "at", "ended",
    "entry", "until",  # of records that have had today's limits since there were any
}  # fmt: skip
KEPT = [
    pytest.param(RECORDS[role], bytes.fromhex(example), id=f"{version}-{role}-{name}")
    for version in VERSIONS
    for role, examples in json.loads((FIXTURES / version / "records.json").read_text()).items()
    for name, example in examples.items()
    if name != "state"
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where numbers stand in maps and lists."""
    match value:
        case dict():
            return [place for key, each in value.items() for place in places(each, (*at, key))]
        case list():
            return [place for key, each in enumerate(value) for place in places(each, (*at, key))]
        case bool():
            return []
        case int() | float():
            return [at]
        case _:
            return []


def changed(value: Any, place: tuple[Any, ...], to: Any) -> Any:
    """The same with another number at a place."""
    if not place:
        return to
    made = dict(value) if isinstance(value, dict) else list(value)
    made[place[0]] = changed(value[place[0]], place[1:], to)
    return made


def whole(message: Message) -> dict[str, Any]:
    return dict(msgpack.unpackb(pack(Packet(7, EPOCH, message))))


def read(fields: dict[str, Any], message: Message, *, mend: bool) -> Packet:
    sender, to = next(iter(BETWEEN[type(message)]))
    return unpack(msgpack.packb(fields), BY_ROLE[sender], BY_ROLE[to], mend=mend)


@pytest.mark.parametrize("message", EXAMPLES, ids=kind)
def test_whatever_number_is_read_can_be_written_and_read_again_within_the_limits(message: Message) -> None:
    fields = whole(message)
    for place in places(fields):
        for number in (HUGE, 1 << 60, 1e300, math.inf, -math.inf, math.nan, -1, -1e300):
            try:
                packet = read(changed(fields, place, number), message, mend=True)
            except InvalidMessage:
                continue
            assert pack(read(msgpack.unpackb(pack(packet)), message, mend=False)) == pack(packet)


def test_numbers_of_an_older_device_are_cut_to_the_limits() -> None:
    fields = whole(Visited(VISIT, {}, 5, {})) | {
        "samples": HUGE,
        "metrics": {"loss": math.nan, "loss_first": math.inf, "steps": 3.0, "my words": 1.0},
        "signature": [0.5, math.nan],
    }
    with pytest.raises(InvalidMessage):
        read(fields, Visited(VISIT, {}, 5, {}), mend=False)
    mended = read(fields, Visited(VISIT, {}, 5, {}), mend=True).message
    assert mended == Visited(VISIT, {}, MOST, {"loss_first": MOST_FIGURE, "steps": 3.0}, None)


def test_what_was_wrong_before_stays_wrong() -> None:
    visit = next(message for message in EXAMPLES if kind(message) == "visit")
    fields = whole(visit)
    epochs = changed(fields, ("task", "training", "epochs"), 1_000_001)  # a closed structure: it means something else
    progress = Progress(VISIT, "training", 1, 2)
    for wrong, message in (
        (epochs, visit),
        (whole(progress) | {"step": -1}, progress),
        (whole(progress) | {"step": 1.5}, progress),
        (whole(progress) | {"step": "1"}, progress),
        (whole(Visited(VISIT, {}, 5, {})) | {"metrics": {str(n): 0.0 for n in range(33)}}, Visited(VISIT, {}, 5, {})),
    ):
        with pytest.raises(InvalidMessage):
            read(wrong, message, mend=True)


def test_inline_content_beyond_the_limit_did_not_ride_along() -> None:
    long = Visited(VISIT, {"model": Ref(bytes(32), INLINE + 1, "float32", inline=bytes(INLINE + 1))}, 5, {})
    with pytest.raises(InvalidMessage):
        read(whole(long), long, mend=False)
    mended = read(whole(long), long, mend=True).message
    assert isinstance(mended, Visited)
    assert mended.vectors["model"].inline is None


def test_a_birth_says_by_itself_whether_it_is_mended() -> None:
    offer = Offer("1" * 300, "m", "r", 1, 1 << 52, ("sgd",), "npz")
    older = unpack_presence(pack(Packet(1, EPOCH, Birth(offer)))).message
    assert older == Birth(Offer("1" * 200, "m", "r", 1, MOST_BYTES, ("sgd",), "npz"))
    with pytest.raises(InvalidMessage):
        unpack_presence(pack(Packet(1, EPOCH, Birth(offer, 2))))


def report(samples: int = 5, **changes: Any) -> VisitReport:
    plain = VisitReport("d", 0, "done", "", samples, 1.0, {}, None, 1.0)
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("record", "form"),
    [
        (VisitKept("job/1/0", {}, {}, report(HUGE)), edge_records.Record),
        (VisitKept("job/1/0", {}, {}, report(metrics={"loss": math.nan})), edge_records.Record),
        (TourEnded("job/1/0", Toured(TOUR, {}, 2 * HUGE, Ref(bytes(32), 3), 5)), edge_records.Record),
        (cloud_records.TourArrived("job", Toured(TOUR, {}, 5, Ref(bytes(32), 3), 2 * HUGE)), cloud_records.Record),
    ],
    ids=["samples", "a loss", "samples of a tour", "traffic"],
)
def test_a_record_that_made_a_journal_undecodable_is_read(record: Any, form: Any) -> None:
    data = msgspec.msgpack.encode(record)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=form)
    again = read_record(data, form)
    assert type(again) is type(record)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(again), type=form) == again


def is_asked_for(place: tuple[Any, ...]) -> bool:
    """Whether a number is a setting, an identity or a date, which came whole: nothing is ever added to it."""
    return bool(ASKED_FOR & {str(each) for each in place})


@pytest.mark.parametrize(("form", "data"), KEPT)
def test_records_are_read_whatever_the_numbers_in_them_have_grown_to(form: Any, data: bytes) -> None:
    plain = msgspec.msgpack.decode(data)
    for place in places(plain):
        for number in (HUGE, 1 << 60):
            if is_asked_for(place):
                continue
            found: Any = read_record(msgspec.msgpack.encode(changed(plain, place, number)), form)
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=form)
            assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(found)


def test_unknown_figures_of_older_journals_are_kept_as_unknown() -> None:
    plain = RoundReport(1, math.nan, math.nan, 1, 1, 0, 5, 1.0, {"vts": math.nan})
    closed = msgspec.to_builtins(RoundClosed("job", {}, {}, (), plain), builtin_types=(bytes,))
    closed["report"]["loss"] = math.inf
    found: Any = read_record(msgspec.msgpack.encode(closed), cloud_records.Record)
    assert isinstance(found, RoundClosed)
    assert math.isnan(found.report.loss)
    assert math.isnan(found.report.accuracy)


def test_a_record_of_no_kind_is_still_an_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_record(msgspec.msgpack.encode({"type": "no-such/1"}), cloud_records.Record)
    with pytest.raises(msgspec.DecodeError):
        read_record(b"\xc1", cloud_records.Record)


def test_small_blobs_of_older_nodes_are_mended() -> None:
    data = msgspec.msgpack.encode([report(metrics={"loss": math.nan}, samples=HUGE)])
    assert unpack_blob(data, list[VisitReport]) == [report(MOST)]


def test_ids_and_epochs_are_compared_and_so_never_changed() -> None:
    far = VisitId("job", HUGE, 0, 0, (1, 1))
    fields = whole(Progress(far, "training", 1, 2))
    assert read(fields, Progress(VISIT, "training", 1, 2), mend=True).message == Progress(
        VisitId("job", MOST, 0, 0, (1, 1)), "training", 1, 2
    )
    assert TourId("job", MOST, 0, 0) != TourId("job", HUGE, 0, 0)
    assert DevicesEstimated("job", {}, (), (), 5).traffic == 5
