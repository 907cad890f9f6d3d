"""Text on a page: always text, whatever is in it, in an element whose tag says what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from nicegui.elements.mixins.text_element import TextElement

if TYPE_CHECKING:
    from typing import Any


class Words(TextElement):
    """An element of any tag with text in it: `Words("h2", "Devices")`; `.text` can be set later."""

    def __init__(self, tag: str, text: str = "", **attributes: Any) -> None:
        super().__init__(tag=tag, text=text)
        self.props.update(attributes)


def link(text: str, *path: str, **query: str) -> Words:
    """A link to a page of ours; what stands in the address is quoted."""
    return Words("a", text, href=address(*path, **query))


def address(*path: str, **query: str) -> str:
    """The address of a page of ours."""
    asked = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in query.items())
    return "/" + "/".join(quote(part, safe="") for part in path) + (f"?{asked}" if asked else "")
