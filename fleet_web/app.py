"""The web application: its routes, and the layout around every page."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse
from nicegui import ui

from fleet_web.drawing.markup import moment
from fleet_web.elements import Words, link
from fleet_web.operator_actions import job_actions, line_actions
from fleet_web.pages.compare import compare_page
from fleet_web.pages.device import device_page
from fleet_web.pages.fleet import fleet_page
from fleet_web.pages.job import job_page, jobs_page
from fleet_web.pages.log import log_page
from fleet_web.pages.releases import release_page, releases_page
from fleet_web.security.exposure import Exposure
from fleet_web.security.guard import Guard
from fleet_web.security.login_page import LoginPage
from fleet_web.security.logins import Logins, Sessions
from fleet_web.sources.live_source import LiveSource
from fleet_web.sources.source import LIVE, Source, Sources, in_address
from sojourn.errors import UserError
from sojourn.text import clean

PAGES = (("Fleet", "fleet"), ("Jobs", "jobs"), ("Releases", "releases"), ("Log", "log"), ("Compare", "compare"))
STYLE = Path(__file__).with_name("style.css")
MAX_TITLE_LENGTH = 80
"""Maximum number of characters in a page title."""
COOKIE = "sojourn-theme"
_SWITCH = """() => {
  const dark = !Quasar.Dark.isActive;
  setDark(dark);
  document.cookie = "%s=" + (dark ? "dark" : "light") + ";path=/;max-age=31536000;samesite=strict";
}"""


@contextlib.contextmanager
def frame(title: str, page: str, source: Source, *, operate: bool = False) -> Iterator[None]:
    """Lay out a page with this title as its heading; elements created inside appear below it."""
    title = clean(title, MAX_TITLE_LENGTH)
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
            Words("span", "operator").classes("badge")
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
    """Show a banner while the source is unreachable; the page updates again once it is back."""
    banner = Words("p", "", role="status").classes("away")

    def look() -> None:
        reach = source.reach()
        text = ""
        if not reach.reachable:
            since = f" since {moment(reach.since)}" if reach.since else ""
            text = f"The coordinator cannot be reached{since}: {reach.why}. The page shows the last known state."
        banner.text = text

    look()
    ui.timer(0.5, look)


def build(sources: Sources, exposure: Exposure, live: LiveSource | None = None) -> tuple[Guard, str]:
    """Return an application that shows these sources, and the path to open first.

    live: the source that runs operator actions; without it, or without `--operate`, the pages have no actions.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    logins = Logins(exposure.login_file) if exposure.login_file else None
    acting = live if exposure.operate else None
    # Operators must authenticate: without logins, they need a link that is printed only to this terminal.
    token = secrets.token_urlsafe(24) if acting and logins is None else ""
    sessions = Sessions() if logins or token else None
    if sessions:
        LoginPage(sessions, exposure, logins, token).add_to(app)
    _add_pages(sources, acting)
    ui.run_with(
        app, title="Sojourn", favicon="🧭", dark=None, language="en-US", tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, reconnect_timeout=30.0,
    )  # fmt: skip
    return Guard(app, exposure=exposure, sessions=sessions), f"/enter?token={token}" if token else "/"


def _named(sources: Sources, name: str | None) -> Source:
    """Return the source named in an address; an unknown name gives a 404 page."""
    try:
        return sources.named(name)
    except UserError as error:
        raise HTTPException(404, str(error)) from error


def _add_pages(sources: Sources, acting: LiveSource | None) -> None:
    """Add the routes of all pages; those of a job and of a model line have actions if `acting` is their source."""

    def add(title: str, tab: str, show: Callable[[Source], Awaitable[None]]) -> None:
        @ui.page(f"/{tab}")
        async def page(of: str | None = None) -> None:
            source = _named(sources, of)
            with frame(title, tab, source, operate=acting is not None):
                await show(source)

    def add_named(kind: str, tab: str, show: Callable[[Source, str], Awaitable[None]]) -> None:
        @ui.page(f"/{kind}/{{name}}")
        async def page(name: str, of: str | None = None) -> None:
            source = _named(sources, of)
            with frame(name, tab, source, operate=acting is not None):
                await show(source, name)

    async def job(source: Source, name: str) -> None:
        await job_page(source, name)
        if acting is not None and acting is source:
            job_actions(acting, name)

    async def release(source: Source, name: str) -> None:
        await release_page(source, name)
        if acting is not None and acting is source:
            line_actions(acting, name)

    @ui.page("/")
    def entry() -> RedirectResponse:
        return RedirectResponse("/fleet" if sources.first.name == LIVE else "/jobs")

    add("Fleet", "fleet", fleet_page)
    add("Jobs", "jobs", lambda _source: jobs_page(sources))
    add("Releases", "releases", releases_page)
    add("Log", "log", log_page)
    add("Compare", "compare", lambda _source: compare_page(sources))
    add_named("device", "fleet", device_page)
    add_named("job", "jobs", job)
    add_named("release", "releases", release)
