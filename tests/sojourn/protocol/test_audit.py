"""The audit log shows where it was changed, and an operator's signature cannot be forged."""

from __future__ import annotations

import msgspec

from sojourn.protocol.operators import (
    AuditEntry,
    OperatorEntry,
    Request,
    RequestSignature,
    faults,
    mandate_keys,
    sign_request,
)
from tests.sojourn.protocol.mandates import key_of

OPERATORS = {
    "ann": OperatorEntry(key=key_of("ann").public, role="owner"),
    "ben": OperatorEntry(key=key_of("ben").public, role="viewer"),
}


def proof(what: str, by: str = "ann", key: str | None = None, ticket: str = "t") -> RequestSignature:
    return sign_request(Request("fleet", "cloud", by, 1e9, ticket, what, bytes(32)), key_of(key or by))


def log(*acts: str, first: int = 1) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for number, what in enumerate(acts, first):
        before = entries[-1].digest if entries else b"" if first == 1 else bytes(32)
        entries.append(AuditEntry(number, 1e9 + number, "ann", what, "done", "", "t", proof(what), before))
    return entries


def test_untouched_log_is_valid() -> None:
    assert faults([], OPERATORS) == []
    assert faults(log("submit a", "stop a", "remove a"), OPERATORS) == []
    assert faults(log("stop a", "remove a", first=9001), OPERATORS) == []  # the oldest were dropped


def test_removed_entry_is_located() -> None:
    entries = log("submit a", "stop a", "remove a", "submit b")
    del entries[1]
    assert faults(entries) == ["entries are missing between 1 and 3"]
    renumbered = [msgspec.structs.replace(it, number=at) for at, it in enumerate(entries, 1)]
    assert faults(renumbered)[0] == "entry 1 was changed, or 2 does not follow it"


def test_changed_entry_is_located() -> None:
    entries = log("submit a", "stop a", "remove a")
    entries[1] = msgspec.structs.replace(entries[1], outcome="refused")
    assert faults(entries) == ["entry 2 was changed, or 3 does not follow it"]


def test_removed_first_entry_is_detected() -> None:
    second = log("submit a", "stop a")[1]
    assert faults([msgspec.structs.replace(second, number=1)]) == ["entry 1 refers to an entry before it"]


def test_rewritten_chain_cannot_forge_operator_signatures() -> None:
    for forged in (
        AuditEntry(1, 1e9, "ann", "submit evil", "done", "", "t", proof("submit a"), b""),
        AuditEntry(1, 1e9, "ann", "submit evil", "done", "", "t", proof("submit evil", "ben"), b""),
        AuditEntry(1, 1e9, "ann", "submit a", "done", "", "other", proof("submit a"), b""),
    ):
        assert faults([forged], OPERATORS) == ["entry 1: its signature is for another action"]
    stolen = AuditEntry(1, 1e9, "ann", "stop a", "done", "", "t", proof("stop a", key="eve"), b"")
    assert faults([stolen]) == []
    assert faults([stolen], OPERATORS) == ["entry 1: its signature does not match the current key of ann"]


def test_mandate_keys_are_those_of_job_signers() -> None:
    assert mandate_keys(OPERATORS) == {key_of("ann").public: "ann"}
