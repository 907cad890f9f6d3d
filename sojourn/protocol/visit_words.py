"""Why a visit came to nothing, in one word of a closed set.

Reports say it in sentences, for people, and a part of such a sentence is a peer's own. Who counts visits by their
reasons must not count by what peers can write: there would be no end of reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from sojourn.protocol.wire import VisitReason

if TYPE_CHECKING:
    from sojourn.protocol.wire import VisitStatus

SILENT = "no sign of life"
"""How a sentence begins about a device or a site that has let its lease run out."""
LATE = "over its deadline"
"""The same for one that spoke, and took too long."""
TOUR_LATE = "its tour is over the deadline"
"""The same for the devices of a tour that took too long."""
UNFETCHED = "the result could not be fetched"
OTHER = "other"
WOULD_REFUSE = "would have been refused "
"""How the reason of a kept visit begins that breaks a rule of the gate, where `gate = "report"`.

An edge server or the coordinator writes this. A device cannot: whatever it reports begins with `DATA_NOTE`.
"""
DECLINED: tuple[str, ...] = get_args(VisitReason)
PASSING = frozenset({"busy", "hot", "metered", "power", "hours"})
"""Reasons to decline that end by themselves: the device will train later."""
LOST = {SILENT: "silent", LATE: "deadline", TOUR_LATE: "deadline", UNFETCHED: "unfetched"}
GATE = "gate"
WORDS: dict[VisitStatus, tuple[str, ...]] = {
    "done": ("",),
    "declined": (*DECLINED, OTHER),
    "lost": (*dict.fromkeys(LOST.values()), OTHER),
    "refused": (GATE,),
}
"""Every word, by how a visit ended; one that was kept has none."""
OUTCOMES = tuple((status, word) for status, words in WORDS.items() for word in words)
"""All pairs of how a visit may end, and why."""


def is_flagged(status: str, reason: str) -> bool:
    """Whether a visit was kept only because `gate = "report"` refuses nothing."""
    return status == "done" and reason.startswith(WOULD_REFUSE)


def reason_word(status: VisitStatus, sentence: str) -> str:
    """The word for a report's sentence; a sentence of nobody that we know is `other`."""
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
