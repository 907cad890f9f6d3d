"""Logging in and out: plain pages without scripts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

from fleet_web.security.guard import COOKIE
from fleet_web.security.login_throttle import Attempts
from sojourn.markup import Markup, page, tag
from sojourn.text import clean

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

    from fleet_web.security.exposure import Exposure
    from fleet_web.security.logins import Logins, Sessions

MAX_BODY_BYTES = 4096
"""Maximum size of a login request in bytes."""
MIN_LOGIN_SECONDS = 0.5
"""Minimum seconds for each wrong password."""
log = logging.getLogger(__name__)
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 22em; margin: 12vh auto; padding: 0 16px; }
label { display: block; margin: 12px 0; }
input { display: block; width: 100%; font: inherit; padding: 6px; box-sizing: border-box; }
button { font: inherit; padding: 6px 16px; }
"""


def _form() -> Markup:
    name = tag("input", name="name", autocomplete="username", required=True, maxlength=63, autofocus=True)
    password = tag(
        "input", name="password", type="password", autocomplete="current-password", required=True, maxlength=500
    )
    fields = (tag("label", "Name ", name), tag("label", "Password ", password))
    return tag("form", *fields, tag("button", "Log in"), method="post", action="/login")


def _link() -> Markup:
    address = "Operator actions are enabled, so a login is required. Open the address that "
    return tag("p", address, tag("code", "sojourn web"), " printed when it started.")


class LoginPage:
    """The pages that need no session."""

    def __init__(self, sessions: Sessions, exposure: Exposure, logins: Logins | None, link: str = "") -> None:
        """Without `logins`, only the printed link gives access."""
        self._sessions, self._exposure, self._logins, self._link = sessions, exposure, logins, link
        self._attempts = Attempts()
        self._one_at_a_time = asyncio.Semaphore(1)

    def add_to(self, app: FastAPI) -> None:
        """Register the routes `/login`, `/logout` and `/enter`."""
        app.router.routes += [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.take, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
            Route("/enter", self.enter, methods=["GET"]),
        ]

    async def show(self, request: Request) -> Response:  # noqa: ARG002
        """Show the login form."""
        return self._page()

    async def take(self, request: Request) -> Response:
        """Check a submitted login."""
        address = request.client.host if request.client else "?"
        if self._logins is None:
            return self._page("Log in with the printed link.", 403)
        if (wait := self._attempts.wait(address, time.monotonic())) > 0:
            log.warning("login from %s must wait %d s", address, ceil(wait))
            return self._page(f"Too many wrong passwords: try again in {ceil(wait)} seconds.", 429)
        body = await _limited(request)
        given = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace"), max_num_fields=8).items()}
        name = given.get("name", "")[:63]
        async with self._one_at_a_time:  # one guess at a time, even if many arrive at once
            right = await asyncio.to_thread(self._logins.right, name, given.get("password", ""))
        if not right:
            count = self._attempts.failed(address, time.monotonic())
            log.warning("wrong login no. %d from %s as %s", count, address, clean(name, 63) or "(no name)")
            await asyncio.sleep(MIN_LOGIN_SECONDS)
            return self._page("Wrong name or password.", 401)
        self._attempts.succeeded(address)
        log.info("%s logged in from %s", name, address)
        return self._let_in(name)

    async def enter(self, request: Request) -> Response:
        """Check the token of the printed link."""
        token, address = request.query_params.get("token", ""), request.client.host if request.client else "?"
        if (wait := self._attempts.wait(address, time.monotonic())) > 0:
            return self._page(f"Too many wrong links: try again in {ceil(wait)} seconds.", 429)
        if not self._link or not hmac.compare_digest(token.encode("utf-8", "replace"), self._link.encode()):
            self._attempts.failed(address, time.monotonic())
            log.warning("wrong link from %s", address)
            return self._page("This link is invalid or has expired.", 403)
        return self._let_in("link")

    async def leave(self, request: Request) -> Response:
        """Log out."""
        self._sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer

    def _let_in(self, who: str) -> Response:
        answer = RedirectResponse("/", 303)
        token, secure = self._sessions.begin(who, time.monotonic()), self._exposure.secure
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
        return answer

    def _page(self, text: str = "", status: int = 200) -> Response:
        alert = tag("p", text, role="alert") if text else ""
        main = tag("main", tag("h1", "Sojourn"), alert, _form() if self._logins else _link())
        headers = {"cache-control": "no-store"}
        return HTMLResponse(page("Log in · Sojourn", _STYLE, main), status, headers)


async def _limited(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            return b""
    return body
