"""Checks every request and websocket for an allowed host, an allowed origin and a session."""

from __future__ import annotations

import logging
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet_web.security.exposure import Exposure
from fleet_web.security.logins import Sessions
from sojourn.text import clean

COOKIE = "sojourn-session"
OPEN = ("/login", "/enter")
"""Paths that need no session."""
ASSETS = "/_nicegui/"
"""Scripts and fonts of the UI library; they contain no fleet data."""
SOCKET = "/_nicegui_ws/"
SAFE = ("GET", "HEAD")
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FORWARDED = b"x-forwarded-"
log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware that checks requests. Without `sessions`, no login is required."""

    def __init__(self, app: ASGIApp, *, exposure: Exposure, sessions: Sessions | None) -> None:
        self.app, self._exposure, self._sessions = app, exposure, sessions
        self._hosts, self._origins = exposure.hosts, exposure.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        # The server has already applied the proxy's headers, if there is a proxy.
        scope["headers"] = [(key, value) for key, value in scope["headers"] if not key.lower().startswith(_FORWARDED)]
        if why := self._foreign_reason(scope, headers):
            peer = scope["client"][0] if scope.get("client") else "?"
            log.warning("refused %s from %s: %s", clean(scope["path"], 100), peer, clean(why, 200))
            await _refuse(scope, receive, send, why)
            return
        token = _cookie(headers.get("cookie", ""))
        who = self._sessions.who(token, time.monotonic()) if self._sessions else ""
        if who is None and not scope["path"].startswith((*OPEN, ASSETS)):
            await _require_login(scope, receive, send)
            return
        scope["sojourn-user"] = who or ""
        if scope["type"] == "websocket":
            await self.app(scope, self._until_session_ends(receive, send, token), send)
        else:
            await self.app(scope, receive, _with_headers(send, tls=self._exposure.secure))

    def _foreign_reason(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """Return why a request cannot come from one of our pages; empty if it can."""
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return f"the host {host!r} is not allowed (--origin)"
        origin = headers.get("origin")
        speaks = scope["type"] == "websocket" or scope["method"] not in SAFE
        if speaks and origin is None:
            return "the request has no origin"
        if origin is not None and origin.lower() not in self._origins:
            return f"the request comes from the origin {origin!r}"
        if scope["path"].startswith(SOCKET) and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "the request comes from another site"
        return None

    def _until_session_ends(self, receive: Receive, send: Send, token: str) -> Receive:
        """Yield a websocket's messages until its session ends."""

        async def next_message() -> Message:
            message = await receive()
            if self._sessions and self._sessions.who(token, time.monotonic()) is None:
                await send({"type": "websocket.close", "code": 1008})
                return {"type": "websocket.disconnect", "code": 1008}
            return message

        return next_message


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text[:4000]).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _with_headers(send: Send, *, tls: bool) -> Send:
    more = [*HEADERS, *([(b"strict-transport-security", b"max-age=31536000")] if tls else [])]

    async def also(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return also


async def _refuse(scope: Scope, receive: Receive, send: Send, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        response: Any = PlainTextResponse(f"Refused: {why}.\n", 403)
        await response(scope, receive, send)


async def _require_login(scope: Scope, receive: Receive, send: Send) -> None:
    """Redirect a client without a session to the login page."""
    page = scope["type"] == "http" and scope["method"] == "GET" and not scope["path"].startswith(SOCKET)
    if page:
        await RedirectResponse("/login", 303)(scope, receive, send)
    else:
        await _refuse(scope, receive, send, "not logged in")
