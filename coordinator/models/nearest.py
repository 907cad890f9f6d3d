"""What a person may have meant who wrote a name that does not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

SHOWN = 40


def nearest(word: str, known: Collection[str]) -> str:
    """The rest of a sentence: the name that is most alike, or those that there are."""
    match = get_close_matches(word, list(known), n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]!r}?"
    if len(known) > SHOWN:
        return f" (known: {', '.join(list(known)[:SHOWN])} and {len(known) - SHOWN} more)"
    return f" (known: {', '.join(known)})" if known else ""
