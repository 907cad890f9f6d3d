"""The audit log as a person reads it, and as programs do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from coordinator.console.dates import date_of
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.audit import AuditEntry


def audit_table(entries: Sequence[AuditEntry]) -> Table:
    """Entries as a table, the newest last."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("number", "when", "who", "signed", "what", "outcome"):
        table.add_column(column)
    for it in entries:
        outcome = f"{it.outcome}: {it.detail}" if it.detail else it.outcome
        words = (str(it.number), date_of(it.at), it.who, "yes" if it.proof else "no", it.what, outcome)
        table.add_row(*(escape(clean(word)) for word in words))
    return table


def plain(entry: AuditEntry) -> dict[str, Any]:
    """An entry with names, and with bytes as hexadecimal digits."""
    proof = {"request": entry.proof.request.hex(), "signature": entry.proof.signature.hex()} if entry.proof else None
    return {
        "number": entry.number,
        "at": entry.at,
        "who": entry.who,
        "what": entry.what,
        "outcome": entry.outcome,
        "detail": entry.detail,
        "ticket": entry.ticket,
        "proof": proof,
        "before": entry.before.hex(),
        "hash": entry.digest.hex(),
    }
