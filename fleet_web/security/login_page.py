"""Logging in and out: plain pages without scripts, and the throttle of login attempts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from fleet_web.security.exposure import Exposure
from fleet_web.security.guard import COOKIE
from fleet_web.security.logins import Logins, Sessions
from sojourn.markup import Markup, page, tag
from sojourn.rate_limiter import Rate, RateLimiter
from sojourn.text import clean

if TYPE_CHECKING:
    from fastapi import FastAPI

MAX_BODY_BYTES = 4096
"""Maximum size of a login request in bytes."""
MIN_LOGIN_SECONDS = 0.5
"""Minimum seconds for each wrong password."""
FREE_ATTEMPTS = 5
"""Number of wrong passwords from one address before it has to wait."""
MAX_WAIT = 300.0
"""Maximum waiting time in seconds."""
FORGET_AFTER = 900.0
"""Seconds after which the last wrong password is forgotten."""
MAX_ADDRESSES = 1000
"""Maximum number of remembered addresses; the oldest is dropped first."""
GLOBAL_LIMIT = Rate(0.5, 30.0)
"""Number of wrong passwords from all addresses together after which every address has to wait."""
log = logging.getLogger(__name__)
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 22em; margin: 12vh auto; padding: 0 16px; }
label { display: block; margin: 12px 0; }
input { display: block; width: 100%; font: inherit; padding: 6px; box-sizing: border-box; }
button { font: inherit; padding: 6px 16px; }
"""


class LoginThrottle:
    """Limits login attempts: after a few wrong passwords from an address, each further attempt has to wait longer.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}
        self._rate_limiter = RateLimiter()

    def wait(self, address: str, now: float) -> float:
        """Return for how many seconds this address has to wait; 0 if it may try."""
        together = self._rate_limiter.wait("all", GLOBAL_LIMIT, now)
        count, last = self._wrong.get(address, (0, now))
        if count < FREE_ATTEMPTS or now - last > FORGET_AFTER:
            return together
        return max(together, last + min(MAX_WAIT, 2.0 ** (count - FREE_ATTEMPTS)) - now)

    def failed(self, address: str, now: float) -> int:
        """Record a wrong password; return how many there were in a row."""
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > FORGET_AFTER else count + 1
        self._wrong[address] = count, now
        self._rate_limiter.allows("all", GLOBAL_LIMIT, now)
        while len(self._wrong) > MAX_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return count

    def succeeded(self, address: str) -> None:
        """Record a correct password."""
        self._wrong.pop(address, None)


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
        self._throttle = LoginThrottle()
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
        if (wait := self._throttle.wait(address, time.monotonic())) > 0:
            log.warning("login from %s must wait %d s", address, ceil(wait))
            return self._page(f"Too many wrong passwords: try again in {ceil(wait)} seconds.", 429)
        body = await _limited(request)
        given = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace"), max_num_fields=8).items()}
        name = given.get("name", "")[:63]
        async with self._one_at_a_time:  # one guess at a time, even if many arrive at once
            right = await asyncio.to_thread(self._logins.right, name, given.get("password", ""))
        if not right:
            count = self._throttle.failed(address, time.monotonic())
            log.warning("wrong login no. %d from %s as %s", count, address, clean(name, 63) or "(no name)")
            await asyncio.sleep(MIN_LOGIN_SECONDS)
            return self._page("Wrong name or password.", 401)
        self._throttle.succeeded(address)
        log.info("%s logged in from %s", name, address)
        return self._let_in(name)

    async def enter(self, request: Request) -> Response:
        """Check the token of the printed link."""
        token, address = request.query_params.get("token", ""), request.client.host if request.client else "?"
        if (wait := self._throttle.wait(address, time.monotonic())) > 0:
            return self._page(f"Too many wrong links: try again in {ceil(wait)} seconds.", 429)
        if not self._link or not hmac.compare_digest(token.encode("utf-8", "replace"), self._link.encode()):
            self._throttle.failed(address, time.monotonic())
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
