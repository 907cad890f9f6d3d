"""Requests and websockets to an application without a server, in an event loop that runs only while a test waits."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from starlette.websockets import WebSocketDisconnect

from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.types import ASGIApp

CLIENT = ("testclient", 50000)
"""The client address and port that the application sees."""


class WebSocket:
    """An open websocket, used as a browser uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: ASGIApp, scope: dict[str, Any]) -> None:
        self._loop = loop
        self._to_app: asyncio.Queue[Any] = asyncio.Queue()
        self._from_app: asyncio.Queue[Any] = asyncio.Queue()
        self._task = loop.create_task(self._run(app, scope))
        self._to_app.put_nowait({"type": "websocket.connect"})

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        await app(scope, self._to_app.get, self._from_app.put)

    def receive(self) -> Any:
        """Return the application's next message; raise WebSocketDisconnect if it closes the connection instead."""
        message = self._loop.run_until_complete(asyncio.wait_for(self._from_app.get(), LIMIT))
        if message["type"] == "websocket.close":
            raise WebSocketDisconnect(message.get("code", 1000))
        return message

    def receive_text(self) -> str:
        """Return the application's next message as text."""
        return str(self.receive()["text"])

    def send_text(self, text: str) -> None:
        """Send a message; the application reads it at the test's next wait."""
        self._to_app.put_nowait({"type": "websocket.receive", "text": text})

    def close(self) -> None:
        """Disconnect, and wait until the application has finished with the websocket."""
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
        self._loop.run_until_complete(asyncio.wait_for(self._task, LIMIT))


class AsgiClient:
    """A client that keeps cookies like a browser and does not follow redirects."""

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app, client=CLIENT), base_url=address)

    @property
    def cookies(self) -> httpx.Cookies:
        """The cookies sent with each request."""
        return self._http.cookies

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the response to a GET request."""
        return self._loop.run_until_complete(self._http.get(path, headers=headers))

    def post(self, path: str, headers: Mapping[str, str] | None = None, **body: Any) -> httpx.Response:
        """Return the response to a POST request."""
        return self._loop.run_until_complete(self._http.post(path, headers=headers, **body))

    @contextmanager
    def websocket(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[WebSocket]:
        """Open a websocket; raise WebSocketDisconnect if the application refuses it."""
        url = self._http.base_url
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"host": url.netloc.decode(), **({"cookie": cookie} if cookie else {}), **(headers or {})}
        scope = {
            "type": "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "ws", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "subprotocols": [], "client": CLIENT,
            "server": (url.host, url.port), "headers": [(key.encode(), each.encode()) for key, each in sent.items()],
        }  # fmt: skip
        socket = WebSocket(self._loop, self._app, scope)
        try:
            assert socket.receive()["type"] == "websocket.accept"
            yield socket
        finally:
            socket.close()

    def close(self) -> None:
        """Close the connection and the event loop."""
        self._loop.run_until_complete(self._http.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
