"""Words and what they say, one below the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.words import Words
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST = 2000
"""Characters of what is said."""


class Pairs:
    """A list of pairs that may be set again and again; only what differs is drawn anew."""

    def __init__(self) -> None:
        self._list = ui.element("dl").classes("pairs")
        self._words: tuple[str, ...] = ()
        self._texts: list[Words] = []

    def show(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Show these; where the words are those of before, only texts change."""
        found = [(word, clean(text, LONGEST)) for word, text in pairs]
        words = tuple(word for word, _ in found)
        if words != self._words:
            self._words = words
            self._list.clear()
            with self._list:
                self._texts = [_pair(word) for word in words]
        for at, (_, text) in enumerate(found):
            if self._texts[at].text != text:
                self._texts[at].text = text


def _pair(word: str) -> Words:
    Words("dt", word)
    return Words("dd", "", dir="auto")
