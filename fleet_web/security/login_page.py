"""Logging in and out: plain pages without scripts."""

from __future__ import annotations

import asyncio
import hmac
import html
import logging
import time
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

from fleet_web.security.attempts import Attempts
from fleet_web.security.guard import COOKIE
from sojourn.text import clean

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

    from fleet_web.security.exposure import Exposure
    from fleet_web.security.logins import Logins
    from fleet_web.security.sessions import Sessions

BODY = 4096
"""Bytes of a login."""
SLOW = 0.5
"""Seconds that each wrong password takes at least."""
log = logging.getLogger(__name__)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Sojourn</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 22em; margin: 12vh auto; padding: 0 16px; }}
label {{ display: block; margin: 12px 0; }}
input {{ display: block; width: 100%; font: inherit; padding: 6px; box-sizing: border-box; }}
button {{ font: inherit; padding: 6px 16px; }}
</style></head><body><main><h1>Sojourn</h1>{body}</main></body></html>"""
_FORM = """<form method="post" action="/login">
<label>Name <input name="name" autocomplete="username" required maxlength="63" autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required maxlength="500"></label>
<button>Log in</button></form>"""
_LINK = "<p>This page lets its reader act. Open the address that <code>sojourn web</code> printed when it started.</p>"


class LoginPage:
    """The pages that need no session."""

    def __init__(self, sessions: Sessions, exposure: Exposure, logins: Logins | None, link: str = "") -> None:
        """Without `logins` only who has the link comes in."""
        self._sessions, self._exposure, self._logins, self._link = sessions, exposure, logins, link
        self._attempts = Attempts()
        self._one_at_a_time = asyncio.Semaphore(1)

    def add_to(self, app: FastAPI) -> None:
        """Answer at `/login`, `/logout` and `/enter`."""
        app.router.routes += [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.take, methods=["POST"]),
            Route("/logout", self.leave, methods=["POST"]),
            Route("/enter", self.enter, methods=["GET"]),
        ]

    async def show(self, request: Request) -> Response:  # noqa: ARG002
        """Ask for a name and a password."""
        return self._page()

    async def take(self, request: Request) -> Response:
        """Somebody says who they are."""
        address = request.client.host if request.client else "?"
        if self._logins is None:
            return self._page("Only the link lets anybody in.", 403)
        if (wait := self._attempts.wait(address, time.monotonic())) > 0:
            log.warning("a login from %s has to wait %d s", address, ceil(wait))
            return self._page(f"Too many wrong passwords: try again in {ceil(wait)} seconds.", 429)
        body = await _limited(request)
        given = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace"), max_num_fields=8).items()}
        name = given.get("name", "")[:63]
        async with self._one_at_a_time:  # guesses take turns, however many come at a time
            right = await asyncio.to_thread(self._logins.right, name, given.get("password", ""))
        if not right:
            count = self._attempts.failed(address, time.monotonic())
            log.warning("wrong login %d from %s as %s", count, address, clean(name, 63) or "nobody")
            await asyncio.sleep(SLOW)
            return self._page("The name or the password is wrong.", 401)
        self._attempts.succeeded(address)
        log.info("%s logged in from %s", name, address)
        return self._let_in(name)

    async def enter(self, request: Request) -> Response:
        """Somebody has the link that was printed."""
        token, address = request.query_params.get("token", ""), request.client.host if request.client else "?"
        if (wait := self._attempts.wait(address, time.monotonic())) > 0:
            return self._page(f"Too many wrong links: try again in {ceil(wait)} seconds.", 429)
        if not self._link or not hmac.compare_digest(token.encode("utf-8", "replace"), self._link.encode()):
            self._attempts.failed(address, time.monotonic())
            log.warning("a wrong link from %s", address)
            return self._page("That link is not, or no longer, right.", 403)
        return self._let_in("link")

    async def leave(self, request: Request) -> Response:
        """They log out."""
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
        told = f'<p role="alert">{html.escape(text)}</p>' if text else ""
        body = told + (_FORM if self._logins else _LINK)
        return HTMLResponse(_PAGE.format(body=body), status, headers={"cache-control": "no-store"})


async def _limited(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY:
            return b""
    return body
