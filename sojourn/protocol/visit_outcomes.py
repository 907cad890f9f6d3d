"""Classify why a visit failed, in one word of a fixed set.

Reports contain sentences, parts of which a peer writes. Metrics must not use these as labels, since a peer could create
any number of them.
"""

from __future__ import annotations

from typing import get_args

from sojourn.protocol.wire import VisitReason, VisitStatus

SILENT = "no sign of life"
"""The start of a reason about a device or a site whose lease has expired."""
LATE = "over its deadline"
"""The start of a reason about one that was alive but took too long."""
TOUR_LATE = "its tour is over the deadline"
"""The start of a reason about the devices of a tour that took too long."""
UNFETCHED = "the result could not be fetched"
OTHER = "other"
WOULD_REFUSE = "would have been refused "
"""The start of the reason of a counted visit that breaks a rule of the gate, if `gate = "report"`.

An edge server or the coordinator writes this. A device cannot: its reasons begin with `DATA_NOTE`.
"""
SHORTENED = "shortened to that"
"""The end of the reason of a counted visit whose update the gate shortened."""
DECLINED: tuple[str, ...] = get_args(VisitReason)
PASSING = frozenset({"busy", "hot", "metered", "power", "hours"})
"""Temporary reasons to decline: the device will train later."""
LOST = {SILENT: "silent", LATE: "deadline", TOUR_LATE: "deadline", UNFETCHED: "unfetched"}
GATE = "gate"
WORDS: dict[VisitStatus, tuple[str, ...]] = {
    "done": ("",),
    "declined": (*DECLINED, OTHER),
    "lost": (*dict.fromkeys(LOST.values()), OTHER),
    "refused": (GATE,),
}
"""Every word, by the status of a visit; a successful one has none."""
OUTCOMES = tuple((status, word) for status, words in WORDS.items() for word in words)
"""All pairs of a visit's status and reason."""


def is_flagged(status: str, reason: str) -> bool:
    """Return whether a visit was counted only because `gate = "report"` refuses nothing."""
    return status == "done" and reason.startswith(WOULD_REFUSE)


def reason_word(status: VisitStatus, sentence: str) -> str:
    """Return the word for a report's sentence; an unknown sentence is `other`."""
    match status:
        case "done":
            return ""
        case "refused":
            return GATE
        case "declined":
            word = sentence.partition(":")[0]
            return word if word in DECLINED else OTHER
        case "lost":
            return next((word for begin, word in LOST.items() if sentence.startswith(begin)), OTHER)
