"""docs/protocol.md, docs/vectors.json and the code agree."""

from __future__ import annotations

import hashlib
import json
import math
import re
from itertools import chain
from typing import Any, get_args

import msgpack
import msgspec
import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from coordinator import fleet_records
from coordinator.machine import answers, job_requests, rollout_progress
from coordinator.rounds import round_messages
from docs import make_vectors
from docs.vectors.cast import DEVICE, EDGE
from docs.vectors.examples import short
from docs.vectors.json_values import to_json
from edge_agent import records
from edge_agent.releases import machine
from hierarchy.edge.visits import MAX_STALE
from sojourn import WIRE, parts
from sojourn.brokers.acl import Members, acl_lines
from sojourn.errors import InvalidBlob, InvalidMessage
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.links.session import HEADER_ROOM
from sojourn.links.settings import OWN_BROKER_PAYLOAD, BrokerSettings
from sojourn.model import exemplars, scoring, vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import GRADIENT_TOLERANCE, LOSS_TOLERANCE, probe_vector
from sojourn.node import exchange, node, pending
from sojourn.protocol import (
    envelope,
    limits,
    mandates,
    messages,
    operator_messages,
    operators,
    release,
    signing,
    spec,
    topics,
    wire,
)
from sojourn.protocol.data_summary import DataSummary, Quantity, SeriesSummary
from sojourn.protocol.envelope import (
    MESSAGES,
    PRESENCES,
    bounded,
    kind,
    pack,
    pack_blob,
    unpack,
    unpack_blob,
    unpack_presence,
)
from sojourn.protocol.registry import OperatorRequest
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Member, VisitReport
from sojourn.randomness import batches, derive, noise
from sojourn.store.blobs import HASH, LEAF, digest_of, digest_of_hashes, leaf_hashes, verified

VECTORS = json.loads(make_vectors.VECTORS.read_text(encoding="utf-8"))
PAGE = make_vectors.PAGE.read_text(encoding="utf-8")
KINDS: dict[str, type] = {**MESSAGES, **PRESENCES}
STRUCTURES: dict[str, type] = {
    "Training settings": parts.Training,
    **{form.__name__: form for form in (parts.TourPolicy, parts.Gate, parts.TourBounds, spec.Kit)},
    "TourSigning": messages.TourSigning,
    **{form.__name__: form for form in (spec.ModelSpec, spec.TensorSpec, spec.ValueRange, spec.FrozenTensor)},
    "TableSpec": spec.TableSpec,
    "Trunk": spec.Trunk,
    "TwoStreamGraph": spec.TwoStreamGraph,
    **{form.__name__: form for form in (spec.MoreGraphs, spec.TapGraph, spec.TapLayer, spec.OutlierGraphs)},
    **{form.__name__: form for form in (spec.InputSpec, spec.Probe, Exemplars, wire.Epoch, wire.Ref)},
    **{form.__name__: form for form in (wire.TourId, wire.VisitId, wire.Task, wire.TrainingSize, wire.Offer, Member)},
    "DataSummary": DataSummary,
    **{form.__name__: form for form in (wire.HopSignature, wire.SignedHop)},
    "Quantity": Quantity,
    "SeriesSummary": SeriesSummary,
    **{form.__name__: form for form in (VisitReport, wire.HopEnd, wire.HopEnds, wire.TourView)},
    **{form.__name__: form for form in (wire.RoundReport, wire.JobView)},
    **{form.__name__: form for form in (wire.JobModels, wire.JobTimes, wire.JobNews)},
    **{form.__name__: form for form in (operator_messages.FleetDevice, operator_messages.LastVisit)},
    **{
        form.__name__: form
        for form in (operator_messages.DeviceNow, operator_messages.VisitNow, operator_messages.ReleaseNow)
    },
    **{form.__name__: form for form in (release.RolloutPlan, release.RolloutTurn)},
    **{form.__name__: form for form in (operator_messages.FleetChange, operator_messages.VisitNote)},
    **{form.__name__: form for form in (release.SignedOrder, release.Order, release.Goods, release.BlobRef)},
    **{form.__name__: form for form in (release.Card, release.ProbeCheck, release.Health, release.Pace)},
    **{form.__name__: form for form in (release.ProbeScores, release.AnomalyRule, release.TaskHealth)},
    **{form.__name__: form for form in (release.HealthRules, release.LineView, release.DeviceView)},
    **{form.__name__: form for form in (mandates.SignedMandate, mandates.Mandate, operators.Request)},
    **{form.__name__: form for form in (mandates.SignedWithdrawal, mandates.Withdrawal, operators.RequestSignature)},
    **{form.__name__: form for form in (mandates.Normalisation, operators.AuditEntry)},
    **{f"Objective `{form.__struct_config__.tag}`": form for form in get_args(parts.Objective)},
    **{f"Estimator `{form.__struct_config__.tag}`": form for form in get_args(parts.Estimator)},
}
REASONS = {
    "msgpack": "not valid msgpack",
    "map": "not a msgpack map",
    "kind": "unknown kind",
    "field": "Expected|Object|Invalid",
    "role": "may not send",
}


def address(text: str) -> Address:
    return msgspec.convert(dict(zip(("role", "name"), text.split("/"), strict=True)), Address)


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    match value:
        case {"bytes": str(digits)}:
            return bytes.fromhex(digits)
        case dict():
            return {key: from_json(each) for key, each in value.items()}
        case list():
            return [from_json(each) for each in value]
        case _:
            return value


def decoded(vector: dict[str, Any]) -> envelope.Packet:
    data = bytes.fromhex(vector["hex"])
    if vector["to"] is None:
        return unpack_presence(data)
    return unpack(data, address(vector["from"]), address(vector["to"]))


def named(vector: dict[str, Any]) -> str:
    return str(vector.get("name", vector))


def section(title: str) -> str:
    """Return the text under a heading of the fourth level."""
    found = re.search(rf"^#### {re.escape(title)}\n(.*?)(?=^#{{1,4}} |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/protocol.md has no section {title!r}"
    return found[1]


def rows(title: str) -> dict[str, str]:
    """Return the default of each field in a section's table of fields."""
    table = re.findall(r"^\| `(\w+)` \| [^\n]*?(?<!\\) \| ([^|]+) \| [^|\n]*\|$", section(title), re.MULTILINE)
    return {name: default.strip().strip("`") for name, default in table}


def listed_default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    match field.default:
        case None:
            return "nil"
        case () | "" | msgspec.NODEFAULT:  # the latter: made for each instance, an empty map
            return "empty"
        case bool() as value:
            return str(value).lower()
        case msgspec.Struct():
            return "its defaults"
        case value:
            return str(value)


# --- the vectors


def test_vectors_and_examples_are_current(capsys):
    assert make_vectors.main(["--check"]) == 0, capsys.readouterr().out


def test_outdated_file_is_reported(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "vectors.json"
    copy.write_text("{}")
    monkeypatch.setattr(make_vectors, "VECTORS", copy)
    assert make_vectors.main(["--check"]) == 1
    assert "vectors.json is not current" in capsys.readouterr().out


def test_vectors_match_the_wire_version():
    assert VECTORS["wire"] == WIRE
    assert f"sojourn/{topics.TOPICS}/<fleet>/<role>/<to>/in/<from>" in PAGE


@pytest.mark.parametrize("vector", VECTORS["packets"], ids=named)
def test_packet_round_trips_to_the_same_bytes(vector):
    data = bytes.fromhex(vector["hex"])
    assert msgpack.unpackb(data) == from_json(vector["fields"])
    packet = decoded(vector)
    assert kind(packet.message) == vector["kind"] == vector["fields"]["kind"]
    assert pack(packet) == data
    sender = address(vector["from"])
    to = address(vector["to"]) if vector["to"] else sender
    assert topics.read("bakery", vector["topic"]) == topics.Route(to, sender.name if vector["to"] else None)


def test_every_kind_has_a_packet():
    assert {vector["kind"] for vector in VECTORS["packets"]} == set(KINDS)


@pytest.mark.parametrize("vector", VECTORS["packets"], ids=named)
def test_unknown_fields_of_a_packet_are_ignored(vector):
    more = msgpack.packb({**from_json(vector["fields"]), "from-tomorrow": [1, {"a": None}]})
    assert decoded({**vector, "hex": more.hex()}) == decoded(vector)


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=named)
def test_invalid_packet_is_rejected(vector):
    with pytest.raises(InvalidMessage, match=REASONS[vector["class"]]):
        decoded(vector)


def test_every_error_class_is_described_and_has_a_vector():
    assert {vector["class"] for vector in VECTORS["invalid"]} == set(REASONS)
    assert all(f"\n| `{word}` | " in PAGE for word in REASONS)


def test_oversized_packet_is_rejected():
    with pytest.raises(InvalidMessage, match="limit"):
        unpack(b"\x80" + bytes(envelope.MAX_PACKET), DEVICE, EDGE)


def test_inline_content_must_match_its_digest():
    message = decoded(next(vector for vector in VECTORS["packets"] if vector["name"] == "visit")).message
    assert isinstance(message, messages.Visit)
    ref = message.vectors["model"]
    assert ref.inline is not None
    assert verified(ref.inline, ref) == ref.inline
    with pytest.raises(InvalidBlob):
        verified(ref.inline[:-1] + b"?", ref)


def test_topics_are_parsed():
    fleet = VECTORS["topics"]["fleet"]
    for vector in VECTORS["topics"]["valid"]:
        expected = topics.Route(Address(vector["role"], vector["name"]), vector["sender"])
        assert topics.read(fleet, vector["topic"]) == expected
    for topic in VECTORS["topics"]["invalid"]:
        assert topics.read(fleet, topic) is None, topic


@pytest.mark.parametrize("vector", VECTORS["blobs"], ids=named)
def test_blob_round_trips_to_the_same_bytes(vector):
    data = bytes.fromhex(vector["hex"])
    form: Any = {
        "kit": spec.Kit,
        "exemplars": Exemplars,
        "members": tuple[Member, ...],
        "reports": tuple[VisitReport, ...],
    }[vector["name"]]
    assert msgpack.unpackb(data) == from_json(vector["fields"])
    assert pack_blob(unpack_blob(data, form)) == data


@pytest.mark.parametrize("vector", VECTORS["digests"], ids=lambda vector: str(vector["size"]))
def test_digests_match_the_vectors(vector):
    content = bytes(at % 251 for at in range(vector["size"]))
    hashes = b"".join(bytes.fromhex(leaf) for leaf in vector["leaves"])
    assert leaf_hashes(content) == hashes
    assert digest_of(content).hex() == digest_of_hashes(len(content), hashes).hex() == vector["digest"]


@pytest.mark.parametrize("vector", VECTORS["encodings"], ids=named)
def test_encodings_match_the_vectors(vector):
    model = spec.ModelSpec(tuple(spec.TensorSpec(str(at), (size,)) for at, size in enumerate(vector["tensors"])))
    original = np.frombuffer(bytes.fromhex(vector["vector"]), "<f4")
    data = vectors.encode(original, vector["encoding"], model)
    if "decoded" not in vector:
        scales = np.frombuffer(data, "<f4", len(vector["tensors"]))
        assert np.isfinite(scales).tolist() == vector["scales_are_finite"]
        assert data[4 * len(scales) :].hex() == vector["hex_after_scales"]
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(vectors.decode(data, "int8", model)).any()
        return
    assert data.hex() == vector["hex"]
    assert vectors.decode(data, vector["encoding"], model).tobytes().hex() == vector["decoded"]
    with pytest.raises(InvalidBlob):
        vectors.decode(data + b"\0", vector["encoding"], model)


@pytest.mark.parametrize("vector", VECTORS["seeds"], ids=lambda vector: str(vector["names"]))
def test_seeds_match_the_vectors(vector):
    assert derive(vector["seed"], *vector["names"]) == vector["derived"] < 1 << 53


@pytest.mark.parametrize("vector", VECTORS["orders"], ids=lambda vector: str(vector["samples"]))
def test_batch_orders_match_the_vectors(vector):
    made = batches(vector["seed"], vector["samples"], vector["size"], vector["epochs"])
    assert [index.tolist() for index in made] == vector["batches"]


@pytest.mark.parametrize("vector", VECTORS["noise"], ids=lambda vector: str(vector["step"]))
def test_noise_matches_the_vectors(vector):
    drawn = noise(vector["seed"], vector["step"], vector["batch"], [tuple(shape) for shape in vector["shapes"]])
    assert [values.astype("<f4").tobytes().hex() for values in drawn] == vector["float32"]


def test_probe_vector_matches_its_formula():
    wanted = np.frombuffer(bytes.fromhex(VECTORS["probe_vector"]["float32"]), "<f4")
    np.testing.assert_allclose(probe_vector([len(wanted)]), wanted, rtol=1e-6)
    np.testing.assert_allclose(wanted, [0.1 * np.sin(at + 1) for at in range(8)], rtol=1e-6)
    sizes, spread = VECTORS["probe_vector"]["sizes"], VECTORS["probe_vector"]["spread"]
    wanted = np.frombuffer(bytes.fromhex(VECTORS["probe_vector"]["spread_float32"]), "<f4")
    np.testing.assert_allclose(probe_vector(sizes, spread), wanted, rtol=1e-6)
    turns = [43758.5453 * math.sin(12.9898 * (at + 1)) % 1.0 for at in range(8)]
    formula = [1 - 4 * abs(turn - 0.5) for turn in turns]
    np.testing.assert_allclose(wanted, [*(0.5 * u for u in formula[:5]), *(2 * u for u in formula[5:])], rtol=1e-5)


def test_signature_matches_its_formula():
    (vector,) = VECTORS["signatures"]
    rows_ = np.exp(vector["logits"])
    shares = rows_ / rows_.sum(axis=1, keepdims=True)
    y = np.array(vector["y"])
    wanted = [float(np.mean(shares[y == at, at])) if (y == at).any() else 0.0 for at in range(vector["classes"])]
    np.testing.assert_allclose(vector["signature"], wanted, atol=1e-11)


def test_page_explains_every_part_of_the_vectors():
    listed = PAGE[PAGE.index("## Test vectors") :]
    assert all(f"| `{part}` |" in listed for part in VECTORS if part != "about")


# --- the page


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_message_field_is_described(name):
    wanted = {field.encode_name: listed_default(field) for field in msgspec.structs.fields(KINDS[name])}
    assert rows(f"`{name}`") == wanted


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_every_nested_structure_is_described(name):
    wanted = {field.encode_name: listed_default(field) for field in msgspec.structs.fields(STRUCTURES[name])}
    assert rows(name) == wanted


def fields_of(form: type) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def listed_type(form: Any) -> str | None:
    """Return a setting's type and limits in the page's words; None if the page describes it differently."""
    match form:
        case msgspec.inspect.IntType():
            return f"integer, {form.ge:,} to {form.le:,}"
        case msgspec.inspect.FloatType(gt=None, lt=None):
            return f"float, {listed_limit(form.ge)} to {listed_limit(form.le)}"
        case msgspec.inspect.FloatType(gt=None):
            return f"float, at least {form.ge:g}, below {form.lt:g}"
        case msgspec.inspect.FloatType():
            return f"float, over {form.gt:g}, at most {listed_limit(form.le)}"
        case msgspec.inspect.UnionType():
            return f"{listed_type(form.types[0])}, or nil"
        case msgspec.inspect.BoolType():
            return "boolean"
        case _:
            return None


WORDS: list[tuple[Any, str]] = [
    (msgspec.inspect.type_info(form), word)
    for word, form in {
        "number": limits.Number,
        "identity": limits.Identity,
        "hop": limits.Hop,
        "leaf": limits.Leaf,
        "bytes": limits.Bytes,
        "text": limits.Text,
        "long text": limits.LongText,
        "label": limits.Label,
        "name": limits.Name,
        "digest": limits.Digest,
        "seconds": limits.Seconds,
        "duration": limits.Duration,
        "norm": limits.Norm,
        "share": limits.Portion,
        "microseconds": limits.Microseconds,
        "metrics": limits.Metrics,
        "signature": limits.Signature,
        "accuracy": limits.Accuracy,
        "change": limits.Change,
        "measure": limits.Measure,
    }.items()
]
"""The page's names of types."""


def word_of(form: Any) -> str | None:
    """Return the page's word for a field's type; None if the page describes it differently."""
    match form:
        case msgspec.inspect.UnionType(types=(one, msgspec.inspect.NoneType())):
            word = word_of(one)
            return word and f"{word} or nil"
        case _:
            return next((word for info, word in WORDS if info == form), None)


@pytest.mark.parametrize("name", sorted({**STRUCTURES, **KINDS}))
def test_named_types_are_shown_by_name(name):
    form, title = (KINDS[name], f"`{name}`") if name in KINDS else (STRUCTURES[name], name)
    types = dict(re.findall(r"^\| `(\w+)` \| ([^|\n]*) \| [^|]+ \| [^|\n]*\|$", section(title), re.MULTILINE))
    wanted = {field.encode_name: word for field in fields_of(form) if (word := word_of(field.type))}
    ranges = {key: it for key, it in types.items() if it.startswith("float, ")}  # listed separately, and tested above
    assert {key: types[key].split(":")[0] for key in wanted} == wanted | {
        k: v for k, v in ranges.items() if k in wanted
    }


def listed_limit(number: float | None) -> str:
    assert number is not None, "a setting without a limit"
    return "10^9" if number == 1e9 else f"{number:g}"


@pytest.mark.parametrize("name", [name for name, it in STRUCTURES.items() if it.__module__.startswith("sojourn.parts")])
def test_documented_limits_match_the_code(name):
    types = dict(re.findall(r"^\| `(\w+)` \| ([^|\n]*) \| [^|]+ \| [^|\n]*\|$", section(name), re.MULTILINE))
    for field in fields_of(STRUCTURES[name]):
        listed = types[field.encode_name]
        if isinstance(field.type, msgspec.inspect.LiteralType):
            assert set(re.findall(r"`([^`]+)`", listed)) == set(field.type.values)
        elif wanted := listed_type(field.type):
            assert listed == wanted


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_page_marks_array_and_closed_structures(name):
    form: Any = STRUCTURES[name]
    assert section(name).strip().startswith("An array") == bool(form.__struct_config__.array_like)
    assert bool(re.search(r"\b[Cc]losed\b", section(name))) == form.__struct_config__.forbid_unknown_fields


def test_every_structure_is_documented():
    forms = {
        form
        for module in (messages, release, spec, wire, parts.visits, mandates, operator_messages, operators)
        for form in vars(module).values()
        if isinstance(form, type) and issubclass(form, msgspec.Struct) and form.__module__ == module.__name__
    }
    in_a_file = {operators.OperatorsFile, operators.OperatorEntry}
    assert forms <= {*KINDS.values(), *STRUCTURES.values(), *in_a_file}


def test_objective_table_matches_the_code():
    listed = {
        name: (set(re.findall(r"`(\w+)`", receives)), set(re.findall(r"`([\w-]+)`", returns)), bool(keeps.strip()))
        for name, receives, returns, keeps in re.findall(
            r"^\| `([\w-]+)` \|[^|\n]+\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|$", section("Objective"), re.MULTILINE
        )
    }
    assert listed == {
        form.__struct_config__.tag: (
            received_by(form),
            {*form.returns, *form.reports},
            form is parts.OwnObjective or form.keeps,
        )
        for form in get_args(parts.Objective)
    }


def received_by(form):
    """Return what an objective may receive; with a second stream that depends on its settings."""
    return set(form(anchor="round").receives if issubclass(form, parts.TwoStreamPart) else form.receives)


def test_every_estimator_is_in_the_table():
    words = [form.__struct_config__.tag for form in get_args(parts.Estimator)]
    table = section("Estimator")
    assert [word for word in words if f"`{word}`" not in table] == ["none", "own"]  # both are among "all others"
    assert f"more than {wire_limit(messages.Visited, 'signature'):,} numbers" in table


def wire_limit(form: type, name: str) -> int:
    """Return the maximum number of elements of a field with a limit, or nil."""
    (field,) = [field for field in fields_of(form) if field.encode_name == name]
    assert isinstance(field.type, msgspec.inspect.UnionType)
    return int(next(option.max_length for option in field.type.types if hasattr(option, "max_length")))


def test_every_enum_value_is_described():
    assert all(f"`{word}`" in section("`declined`") for word in get_args(wire.VisitReason))
    assert all(f"`{word}`" in section("VisitReport") for word in get_args(wire.VisitStatus))
    assert all(f"`{word}`" in section("JobView") for word in get_args(wire.JobStatus))
    assert all(f"`{word}`" in section("`release-report`") for word in get_args(release.ReleaseState))
    assert all(f"`{word}`" in section("LineView") for word in get_args(release.RolloutStatus))


def test_sender_and_receiver_roles_match_the_code():
    listed: dict[str, frozenset[tuple[str, str]]] = {}
    for kinds, ways in re.findall(r"^\| (`[^|]+`) \| (\w+ → [^|]+) \|$", PAGE, re.MULTILINE):
        pairs = frozenset(tuple(way.split(" → ")) for way in ways.split(", "))
        listed |= dict.fromkeys(re.findall(r"`([a-z-]+)`", kinds), pairs)
    assert listed == {name: form.routes for name, form in MESSAGES.items()}


def test_answer_of_every_request_matches_the_code():
    chapter = PAGE.partition("\n## Operators\n")[2].partition("\n#")[0]
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| `([a-z-]+)`", chapter, re.MULTILINE))
    requests = {name: form for name, form in MESSAGES.items() if issubclass(form, OperatorRequest)}
    assert listed == {name: kind(form.answer()) for name, form in requests.items() if name != "signed-request"}


def test_access_list_matches_the_generated_one():
    members = Members(devices=("oven",), edges=("hall",), clouds=("main",), operators=("operator",))
    assert acl_lines("bakery", members) in PAGE


def test_documented_constants_match_the_code():
    claims = {
        f"leaves of {LEAF:,} bytes; the last": LEAF == 28 << 10,
        f"shorter than {LEAF:,} bytes": True,
        f"(two at {PORTABLE_PAYLOAD:,} bytes)": (PORTABLE_PAYLOAD - exchange.OVERHEAD) // LEAF == 2,
        f"({exchange.WINDOW * LEAF:,} bytes) in flight": True,
        f"of more than 2^32 ({exchange.MAX_BLOB_BYTES:,})": exchange.MAX_BLOB_BYTES == 2**32,
        f"every {node.SECONDS_PER_SWEEP:.0f} s or later": True,
        "three attempts at this hop": MAX_STALE == 3,
        f"at most {job_requests.MAX_TOURS} and at most {answers.MAX_LIST_SIZE:,} bytes": (
            job_requests.MAX_TOURS == job_requests.MAX_ROUNDS
        ),
        f"(the newest {job_requests.MAX_JOBS})": True,
        f"at most {answers.MAX_LIST_SIZE:,} bytes of them, but at least one": True,
        f"at most {answers.MAX_SINGLE_LIST_SIZE:,} bytes of them, but at least one": True,
        f"array of name, 1 to {rollout_progress.MAX_DEVICES_PER_MESSAGE}": True,
        f"it has {machine.MAX_LINES} lines already": True,
        f"the {len(signing.CONTEXT)} bytes `{signing.CONTEXT.decode()}`": True,
        f"{HASH} bytes each": HASH == 32,
        f"attach a blob of at most {node.INLINE:,} bytes": True,
        f"at most {exchange.WINDOW} leaves": True,
        f"at most {2 * exchange.WINDOW} leaves": True,
        f"{PORTABLE_PAYLOAD:,} bytes": True,
        f"With MQTT 5 at most {OWN_BROKER_PAYLOAD:,}, and": True,
        f"Maximum Packet Size of the broker's CONNACK less {HEADER_ROOM}": True,
        f"({envelope.MAX_PACKET:,} bytes)": True,
        f"at most {envelope.MAX_STRING:,} bytes": True,
        f"at most {envelope.MAX_ITEMS:,} elements": True,
        f"as low as {LEAF + exchange.OVERHEAD:,} bytes": True,
        f"The {records.RESULTS_KEPT} newest": True,
        f"of the {records.MAX_MEMORIES} jobs whose memory changed last": True,
        f"at most {round_messages.MAX_LINES_SIZE:,} bytes, but at least one": True,
        f"{job_requests.MAX_DETAIL_LENGTH:,} characters together": True,
        f"the first {job_requests.MAX_NAMES} devices": True,
        f"for {fleet_records.OLDEST / 86_400:.0f} days at most": True,
        f"in batches of {scoring.BATCH}, in order": True,
        f"Predict in batches of {exemplars.BATCH}, in order": True,
        f"{BrokerSettings().keepalive} s by default": True,
        "1, 2, 4, 8, 15, 15, … s": (pending.FIRST_RESEND, pending.LONGEST_RESEND) == (1, 15),
        "2, 4, 8, 15, 15, … s": (exchange.FIRST_TIMEOUT, exchange.LONGEST_TIMEOUT) == (2, 15),
        "≤ 10^-4": LOSS_TOLERANCE == 1e-4,
        "≤ 10^-3": GRADIENT_TOLERANCE == 1e-3,
    }
    page = " ".join(PAGE.split())
    assert [words for words, holds in claims.items() if words not in page or not holds] == []


def depth(value: Any) -> int:
    """Return the nesting depth of arrays and maps."""
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
        case _:
            return 0


def test_documented_nesting_depth_matches_the_vectors():
    packets = {vector["name"]: depth(msgpack.unpackb(bytes.fromhex(vector["hex"]))) for vector in VECTORS["packets"]}
    blobs = {vector["name"]: depth(msgpack.unpackb(bytes.fromhex(vector["hex"]))) for vector in VECTORS["blobs"]}
    assert max(*packets.values(), *blobs.values()) == 7
    assert "Nothing here nests deeper than 7 arrays and maps" in PAGE
    received = [vector["name"] for vector in VECTORS["packets"] if vector["to"] == str(DEVICE)]
    own = packets["visit-with-an-own-objective"]
    assert own == 4
    assert "are the fourth level of a packet" in PAGE
    received.remove("visit-with-an-own-objective")
    assert (max(packets[name] for name in received), max(blobs["kit"], blobs["exemplars"])) == (3, 5)
    assert "not deeper than 3 in a packet and 5 in a blob" in PAGE


def test_documented_nesting_limit_is_enforced():
    assert "read up to 1,024 levels" in PAGE
    bounded(b"\x91" * 1024 + b"\x01")
    with pytest.raises(InvalidMessage):
        bounded(b"\x91" * 1025 + b"\x01")


def test_packet_limits_do_not_apply_to_blobs():
    many = envelope.MAX_ITEMS + 1
    exemplars = Exemplars(bytes(many), (many,), "uint8", (0,) * many)
    assert unpack_blob(pack_blob(exemplars), Exemplars) == exemplars
    assert unpack_blob.__defaults__ == (2**30,)


def examples() -> list[tuple[str, str, str]]:
    """Return name, hex and fields of each packet on the page."""
    shape = r"<!-- example ([a-z0-9-]+) -->\n`[^\n]+\n\n```hex\n(.*?)\n```\n\n```json\n(.*?)\n```\n<!-- end -->"
    return re.findall(shape, PAGE, re.DOTALL)


def test_page_shows_the_promised_packets():
    shown = {name for name, _, _ in examples()}
    assert shown >= {"birth", "visit", "progress", "visited", "accepted", "fetch-hashes", "hashes", "fetch", "chunk"}


@pytest.mark.parametrize(("name", "digits", "fields"), examples(), ids=[name for name, _, _ in examples()])
def test_example_decodes_to_the_fields_shown(name, digits, fields):
    vector = next(vector for vector in VECTORS["packets"] if vector["name"] == name)
    first, cut, last = digits.replace("\n", "").partition("...")
    assert vector["hex"].startswith(first)
    assert vector["hex"].endswith(last)
    whole = vector["hex"] if cut else first
    assert kind(decoded({**vector, "hex": whole}).message) == vector["kind"]
    shown = short(to_json(msgpack.unpackb(bytes.fromhex(whole))))
    assert json.loads(fields) == shown


@pytest.fixture(scope="module")
def formulas() -> dict[str, Any]:
    """Return the definitions of the page's Python blocks."""
    names: dict[str, Any] = {"sha256": hashlib.sha256, "sqrt": math.sqrt}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/protocol.md", "exec"), names)
    return names


def test_digest_formula_of_the_page_matches_the_vectors(formulas):
    for vector in VECTORS["digests"]:
        assert formulas["digest_of"](bytes(at % 251 for at in range(vector["size"]))).hex() == vector["digest"]


def test_random_formulas_of_the_page_match_the_vectors(formulas):
    for vector in VECTORS["seeds"]:
        assert formulas["derive"](vector["seed"], *vector["names"]) == vector["derived"]
    for vector in VECTORS["orders"]:
        orders = [formulas["order"](vector["seed"], epoch, vector["samples"]) for epoch in range(vector["epochs"])]
        assert [*chain(*vector["batches"])] == [*chain(*orders)]
    for vector in VECTORS["noise"]:
        sizes = [vector["batch"] * int(np.prod(shape)) for shape in vector["shapes"]]
        drawn = formulas["noise"](vector["seed"], vector["step"], sizes)
        assert [np.array(values, "<f4").tobytes().hex() for values in drawn] == vector["float32"]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**53 - 1])
def test_generator_of_the_page_matches_numpy(formulas, seed):
    ours, theirs = formulas["Generator"](seed), np.random.Philox(seed)
    assert formulas["key_of"](seed) == tuple(int(word) for word in theirs.state["state"]["key"])
    words = [ours.next() | ours.next() << 32 for _ in range(9)]
    assert words == theirs.random_raw(9).tolist()


def test_links_within_the_page_are_valid():
    titles = re.findall(r"^#{1,4} (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors


@pytest.mark.parametrize("vector", VECTORS["statements"], ids=named)
def test_signed_statement_consists_of_the_listed_parts(vector):
    parts_of = from_json(vector["statement"])
    assert parts_of[3] == hashlib.sha256(bytes.fromhex(vector["task"])).digest()
    data = b"sojourn-visit-1" + msgpack.packb(parts_of, use_bin_type=True)
    assert data.hex() == vector["hex"]
    key, signature = bytes.fromhex(vector["public_key"]), bytes.fromhex(vector["signature"])
    Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data + b"x")
