"""What stands around every page: the navigation, light or dark, and whether the coordinator can be reached."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.source import in_address
from fleet_web.times import moment
from fleet_web.words import Words, link
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet_web.source import Source

PAGES = (("Fleet", "fleet"), ("Jobs", "jobs"), ("Releases", "releases"), ("Log", "log"), ("Compare", "compare"))
STYLE = Path(__file__).with_name("style.css")
TITLE = 80
"""Characters of a page's title."""
COOKIE = "sojourn-theme"
_SWITCH = """() => {
  const dark = !Quasar.Dark.isActive;
  setDark(dark);
  document.cookie = "%s=" + (dark ? "dark" : "light") + ";path=/;max-age=31536000;samesite=strict";
}"""


@contextlib.contextmanager
def frame(title: str, page: str, source: Source, *, operate: bool = False) -> Iterator[None]:
    """A page: its heading is the title; what is made inside stands below it."""
    title = clean(title, TITLE)
    ui.context.client.title = f"{title} · Sojourn"
    ui.add_css(STYLE)
    _theme()
    Words("a", "Skip to the content", href="#content").classes("skip")
    with ui.header(elevated=False).classes("bar"):
        link("Sojourn").classes("brand")
        with ui.element("nav").props('aria-label="Pages"'):
            for name, path in PAGES:
                here = link(name, path, **in_address(source))
                if path == page:
                    here.props('aria-current="page"')
        if operate:
            Words("span", "may operate").classes("badge")
        if ui.context.client.request.scope.get("sojourn-user"):
            with ui.element("form").props('method="post" action="/logout"'):
                Words("button", "Log out", type="submit").classes("theme")
        Words("button", "◐", type="button", title="Light or dark").props(
            'aria-label="Switch between light and dark"'
        ).on("click", js_handler=_SWITCH % COOKIE).classes("theme")
    with ui.element("div").classes("page"):
        _reachability(source)
        Words("h1", title, id="content", tabindex="-1")
        yield


def _theme() -> None:
    request = ui.context.client.request
    chosen = request.cookies.get(COOKIE) if request else None
    ui.dark_mode({"dark": True, "light": False}.get(chosen or ""))


def _reachability(source: Source) -> None:
    """Says when whoever answers is away; the page goes on by itself when they are back."""
    banner = Words("p", "", role="status").classes("away")

    def look() -> None:
        reach = source.reach()
        text = reach.slow
        if not reach.here:
            since = f" since {moment(reach.since)}" if reach.since else ""
            text = f"The coordinator cannot be reached{since}: {reach.why}. What is shown is what it said last."
        if banner.text != text:
            banner.text = text

    look()
    ui.timer(0.5, look)
