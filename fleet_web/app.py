"""The application: which page answers at which address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from nicegui import ui

from fleet_web.layout import frame
from fleet_web.pages.compare import compare_page
from fleet_web.pages.device import device_page
from fleet_web.pages.fleet import fleet_page
from fleet_web.pages.job import job_page, jobs_page
from fleet_web.pages.log import log_page
from fleet_web.pages.releases import release_page, releases_page

if TYPE_CHECKING:
    from fleet_web.source import Sources


def build(sources: Sources) -> FastAPI:
    """An application that shows these sources."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _pages(sources)
    ui.run_with(
        app, title="Sojourn", favicon="🧭", dark=None, language="en-US", tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, reconnect_timeout=30.0,
    )  # fmt: skip
    return app


def _pages(sources: Sources) -> None:
    @ui.page("/")
    @ui.page("/fleet")
    async def fleet(of: str | None = None) -> None:
        source = sources.named(of)
        with frame("Fleet", "fleet", source):
            await fleet_page(source)

    @ui.page("/device/{name}")
    async def device(name: str, of: str | None = None) -> None:
        source = sources.named(of)
        with frame(name, "fleet", source):
            await device_page(source, name)

    @ui.page("/jobs")
    async def jobs(of: str | None = None) -> None:
        with frame("Jobs", "jobs", sources.named(of)):
            await jobs_page(sources)

    @ui.page("/job/{name}")
    async def job(name: str, of: str | None = None) -> None:
        source = sources.named(of)
        with frame(name, "jobs", source):
            await job_page(source, name)

    @ui.page("/releases")
    async def releases(of: str | None = None) -> None:
        source = sources.named(of)
        with frame("Releases", "releases", source):
            await releases_page(source)

    @ui.page("/release/{name}")
    async def release(name: str, of: str | None = None) -> None:
        source = sources.named(of)
        with frame(name, "releases", source):
            await release_page(source, name)

    @ui.page("/log")
    async def log(of: str | None = None) -> None:
        source = sources.named(of)
        with frame("Log", "log", source):
            await log_page(source)

    @ui.page("/compare")
    async def compare(of: str | None = None) -> None:
        with frame("Compare", "compare", sources.named(of)):
            await compare_page(sources)
