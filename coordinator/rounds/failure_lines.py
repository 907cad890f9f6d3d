"""What went wrong in a round, in lines for people: whole reasons, each once, with the names of all whom it befell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOM = 8_000
"""Bytes for the lines of a report: with a page of tours and the longest detail it still fits in any broker's packet."""
NAMES_ROOM = 2_000
"""Characters for the names in one line; whoever does not fit is counted."""

SENTENCE_ROOM = 1_000
"""Characters for all causes in one sentence."""


class Mishap(NamedTuple):
    """A visit or a tour that came to nothing: whose, the whole reason, and how many visits it cost."""

    who: str
    why: str
    visits: int = 1


def grouped(mishaps: Iterable[Mishap]) -> list[str]:
    """A line for each reason, in the order in which they came up, with everybody whom it befell."""
    befell: dict[str, Counter[str]] = {}
    for each in mishaps:
        befell.setdefault(each.why, Counter())[each.who] += 1
    return [_line(who, why) for why, who in befell.items()]


def _line(who: Counter[str], why: str) -> str:
    everybody = sorted(who)
    if len(everybody) > 1:
        kind = "sites" if everybody[0].startswith("site ") else "devices"
        return f"{len(everybody)} {kind} ({names(everybody)}): {why}"
    (name, times) = next(iter(who.items()))
    return f"{name}: {why} ({times} times)" if times > 1 else f"{name}: {why}"


def names(who: Sequence[str], room: int = NAMES_ROOM) -> str:
    """The names, as many as there is room for; the others are counted."""
    shown, length = [], 0
    for name in who:
        length += len(name) + 2
        if length > room:
            break
        shown.append(name)
    more = len(who) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def in_a_sentence(problem: str, lines: Iterable[str]) -> str:
    """A problem with its causes, in one sentence that fits on a screen."""
    causes = list(lines)
    text = "; ".join(causes)
    if len(text) > SENTENCE_ROOM:
        text = f"{text[:SENTENCE_ROOM]}… ({len(causes)} causes)"
    return f"{problem}: {text}" if text else problem


def within_room(lines: Iterable[str], job: str) -> tuple[str, ...]:
    """The lines that there is room for, each of them whole and none twice; if some are left out, a last one says so."""
    shown: list[str] = []
    left_out = used = 0
    for line in dict.fromkeys(lines):
        used += len(line.encode())
        if shown and used > ROOM:
            left_out += 1
        else:
            shown.append(line)
    return (*shown, f"and {left_out} more of the kind: sojourn job visits {job}") if left_out else tuple(shown)
