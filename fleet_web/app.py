"""The application: which page answers at which address."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException
from fastapi.responses import RedirectResponse
from nicegui import ui

from fleet_web.layout import frame
from fleet_web.operate.acts import job_acts, line_acts
from fleet_web.pages.compare import compare_page
from fleet_web.pages.device import device_page
from fleet_web.pages.fleet import fleet_page
from fleet_web.pages.job import job_page, jobs_page
from fleet_web.pages.log import log_page
from fleet_web.pages.releases import release_page, releases_page
from fleet_web.security.guard import Guard
from fleet_web.security.login_page import LoginPage
from fleet_web.security.logins import Logins
from fleet_web.security.sessions import Sessions
from fleet_web.source import LIVE
from sojourn.errors import UserError

if TYPE_CHECKING:
    from fleet_web.live.live_source import LiveSource
    from fleet_web.security.exposure import Exposure
    from fleet_web.source import Source, Sources


def build(sources: Sources, exposure: Exposure, live: LiveSource | None = None) -> tuple[Guard, str]:
    """An application that shows these sources, and the path to open first.

    live: through which acts go; without it, and without `--operate`, there are none.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    logins = Logins(exposure.login_file) if exposure.login_file else None
    acting = live if exposure.operate else None
    # Whoever acts must have shown who they are: where there are no logins, by a link that only this terminal saw.
    link = secrets.token_urlsafe(24) if acting and logins is None else ""
    sessions = Sessions() if logins or link else None
    if sessions:
        LoginPage(sessions, exposure, logins, link).add_to(app)
    _device_pages(sources, operate=acting is not None)
    _job_pages(sources, acting)
    _release_pages(sources, acting)
    ui.run_with(
        app, title="Sojourn", favicon="🧭", dark=None, language="en-US", tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, reconnect_timeout=30.0,
    )  # fmt: skip
    return Guard(app, exposure=exposure, sessions=sessions), f"/enter?token={link}" if link else "/"


def _named(sources: Sources, name: str | None) -> Source:
    """The source that an address names; there is no such page where nothing has that name."""
    try:
        return sources.named(name)
    except UserError as error:
        raise HTTPException(404, str(error)) from error


def _device_pages(sources: Sources, *, operate: bool) -> None:
    @ui.page("/")
    def entry() -> RedirectResponse:
        return RedirectResponse("/fleet" if sources.first.name == LIVE else "/jobs")

    @ui.page("/fleet")
    async def fleet(of: str | None = None) -> None:
        source = _named(sources, of)
        with frame("Fleet", "fleet", source, operate=operate):
            await fleet_page(source)

    @ui.page("/device/{name}")
    async def device(name: str, of: str | None = None) -> None:
        source = _named(sources, of)
        with frame(name, "fleet", source, operate=operate):
            await device_page(source, name)

    @ui.page("/log")
    async def log(of: str | None = None) -> None:
        source = _named(sources, of)
        with frame("Log", "log", source, operate=operate):
            await log_page(source)


def _job_pages(sources: Sources, acting: LiveSource | None) -> None:
    operate = acting is not None

    @ui.page("/jobs")
    async def jobs(of: str | None = None) -> None:
        with frame("Jobs", "jobs", _named(sources, of), operate=operate):
            await jobs_page(sources)

    @ui.page("/job/{name}")
    async def job(name: str, of: str | None = None) -> None:
        source = _named(sources, of)
        with frame(name, "jobs", source, operate=operate):
            await job_page(source, name)
            if acting is source and acting is not None:
                job_acts(acting, name)

    @ui.page("/compare")
    async def compare(of: str | None = None) -> None:
        with frame("Compare", "compare", _named(sources, of), operate=operate):
            await compare_page(sources)


def _release_pages(sources: Sources, acting: LiveSource | None) -> None:
    operate = acting is not None

    @ui.page("/releases")
    async def releases(of: str | None = None) -> None:
        source = _named(sources, of)
        with frame("Releases", "releases", source, operate=operate):
            await releases_page(source)

    @ui.page("/release/{name}")
    async def release(name: str, of: str | None = None) -> None:
        source = _named(sources, of)
        with frame(name, "releases", source, operate=operate):
            await release_page(source, name)
            if acting is source and acting is not None:
                line_acts(acting, name)
