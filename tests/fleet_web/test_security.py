"""Access control: hosts, origins, logins, links, and login throttling."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from fleet_web.security import login_page
from fleet_web.security.exposure import Exposure
from fleet_web.security.guard import COOKIE, Guard
from fleet_web.security.login_page import FREE_ATTEMPTS, GLOBAL_LIMIT, MAX_WAIT, LoginPage, LoginThrottle
from fleet_web.security.logins import AGE, IDLE, MAX_SESSIONS, Logins, Sessions, add_login, hashed, matches
from sojourn.errors import ConfigError
from tests.fleet_web.asgi_client import AsgiClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Application = Callable[..., AsgiClient]

HERE = "http://127.0.0.1:8080"
SOCKET = "/_nicegui_ws/"
LOCAL = Exposure(host="127.0.0.1", port=8080)


@pytest.fixture
def application() -> Iterator[Application]:
    """Creates clients of guarded applications, and closes them afterwards."""
    made: list[AsgiClient] = []

    def make(sessions: Sessions | None = None, exposure: Exposure = LOCAL, **how) -> AsgiClient:
        made.append(AsgiClient(guarded(sessions, exposure, **how), HERE))
        return made[-1]

    yield make
    for client in made:
        client.close()


def guarded(sessions: Sessions | None, exposure: Exposure, **how) -> Guard:
    app = FastAPI()
    if sessions:
        LoginPage(sessions, exposure, how.get("logins"), how.get("link", "")).add_to(app)

    async def home(request) -> PlainTextResponse:
        return PlainTextResponse(
            f"hello {request.scope.get('sojourn-user')}; {request.headers.get('x-forwarded-prefix')}"
        )

    async def talk(websocket) -> None:
        await websocket.accept()
        with suppress(WebSocketDisconnect):
            while True:
                await websocket.send_text(f"received {await websocket.receive_text()}")

    app.router.routes += [
        Route("/", home, methods=["GET", "POST"]), Route("/_nicegui/x.js", home), WebSocketRoute("/_nicegui_ws/", talk)
    ]  # fmt: skip
    return Guard(app, exposure=exposure, sessions=sessions)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1:8081", "", "127.0.0.1:8080.evil.example"]
)
def test_unknown_host_header_is_refused(application: Application, host) -> None:
    assert application().get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080", "[::1]:8080"])
def test_own_host_names_are_accepted(application: Application, host) -> None:
    answer = application().get("/", headers={"host": host})
    assert (answer.status_code, answer.text) == (200, "hello ; None")


def test_cross_origin_pages_cannot_post_or_open_a_websocket(application: Application) -> None:
    client = application()
    for origin in ("http://evil.example", "null", "http://127.0.0.1:8081", "https://127.0.0.1:8080"):
        assert client.post("/", headers={"origin": origin}).status_code == 403
        with pytest.raises(WebSocketDisconnect), client.websocket(SOCKET, headers={"origin": origin}):
            pass
        assert client.get("/_nicegui_ws/?transport=polling", headers={"origin": origin}).status_code == 403
    assert client.post("/").status_code == 403  # browsers always send it
    with pytest.raises(WebSocketDisconnect), client.websocket(SOCKET):
        pass
    assert client.get("/_nicegui_ws/", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/", headers={"origin": HERE}).status_code == 200
    with client.websocket(SOCKET, headers={"origin": HERE}) as socket:
        socket.send_text("x")
        assert socket.receive_text() == "received x"


def test_proxy_headers_are_dropped_and_security_headers_are_set(
    application: Application,
) -> None:
    answer = application().get("/", headers={"x-forwarded-prefix": "/evil"})
    assert answer.text == "hello ; None"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert "strict-transport-security" not in answer.headers


@pytest.fixture
def client(application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsgiClient:
    """A client of an application with one valid login."""
    monkeypatch.setattr(login_page, "MIN_LOGIN_SECONDS", 0.0)
    add_login(tmp_path / "logins", "ann", "correct horse")
    return application(Sessions(), logins=Logins(tmp_path / "logins"))


def log_in(client: AsgiClient, name: str, password: str, origin: str = HERE):
    return client.post("/login", data={"name": name, "password": password}, headers={"origin": origin})


def test_pages_require_a_login_until_the_session_ends(client: AsgiClient) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.get("/_nicegui/x.js").status_code == 200
    assert client.post("/", headers={"origin": HERE}).status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket(SOCKET, headers={"origin": HERE}):
        pass
    assert log_in(client, "ann", "correct horse", "http://evil.example").status_code == 403
    answer = log_in(client, "ann", "correct horse")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    assert client.get("/").text == "hello ann; None"
    with client.websocket(SOCKET, headers={"origin": HERE}) as socket:
        socket.send_text("x")
        assert socket.receive_text() == "received x"
        assert client.post("/logout", headers={"origin": HERE}).status_code == 303
        socket.send_text("y")  # messages of a page that is still open are dropped after logout
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()
    client.cookies.set(COOKIE, "x")
    assert client.get("/").status_code == 303


def test_repeated_wrong_logins_are_slowed_and_logged(
    client: AsgiClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login_page, "time", SimpleNamespace(monotonic=lambda: 0.0))  # however slow this machine is
    wrong = [log_in(client, "ann\x1b[2J<script>", "guess").status_code for _ in range(FREE_ATTEMPTS)]
    assert wrong == [401] * FREE_ATTEMPTS
    assert log_in(client, "ann", "correct horse").status_code == 429
    assert "wrong login no. 5 from testclient as ann<script>" in caplog.text
    assert "\x1b" not in caplog.text
    assert "guess" not in caplog.text
    assert "<script>" not in log_in(client, "<script>", "x").text


def test_login_link_requires_the_right_token(application: Application) -> None:
    client = application(Sessions(), link="right")
    assert client.get("/enter?token=wrong").status_code == 403
    assert client.get("/enter").status_code == 403
    assert log_in(client, "ann", "x").status_code == 403
    assert client.get("/").status_code == 303
    assert client.get("/enter?token=right").headers["location"] == "/"
    assert client.get("/").text == "hello link; None"
    assert application(Sessions()).get("/enter?token=").status_code == 403


def test_oversized_or_malformed_login_is_rejected(client: AsgiClient) -> None:
    assert log_in(client, "ann", "x" * 100_000).status_code == 401
    assert client.post("/login", content=b"\xff\xfe=&&&;=", headers={"origin": HERE}).status_code == 401


def test_login_file_is_validated_and_updated(tmp_path) -> None:
    file = tmp_path / "logins"
    with pytest.raises(ConfigError, match="10 to 500 characters"):
        add_login(file, "ann", "short")
    with pytest.raises(ConfigError, match="not a valid name"):
        add_login(file, "ann:x", "correct horse")
    add_login(file, "ann", "correct horse")
    add_login(file, "bob", "battery staple")
    logins = Logins(file)
    assert [logins.right(*pair) for pair in (("ann", "correct horse"), ("bob", "battery staple"))] == [True, True]
    assert not logins.right("ann", "battery staple")
    assert not logins.right("eve", "correct horse")
    assert "correct" not in file.read_text()
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if "ann" not in line))
    assert not logins.right("ann", "correct horse")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="readable by other users"):
        logins.right("bob", "battery staple")
    with pytest.raises(ConfigError, match="contains no users"):
        Logins(empty(tmp_path / "empty"))


def empty(file: Path) -> Path:
    file.touch(mode=0o600)
    return file


def test_malformed_hash_matches_no_password() -> None:
    assert matches("x" * 20, hashed("x" * 20))
    for text in ("", "scrypt", "scrypt$$", "scrypt$AAAA$AAAA", "plain$x$y", "scrypt$!$!"):
        assert not matches("", text)


def test_each_further_wrong_password_doubles_the_wait() -> None:
    attempts, now = LoginThrottle(), 0.0
    for _ in range(FREE_ATTEMPTS):
        assert attempts.wait("a", now) == 0.0
        attempts.failed("a", now)
    waits = []
    for _ in range(12):
        waits.append(attempts.wait("a", now))
        now += waits[-1]
        attempts.failed("a", now)
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == MAX_WAIT
    assert attempts.wait("b", now) == 0.0
    attempts.succeeded("a")
    assert attempts.wait("a", now) == 0.0
    now += 60.0
    for number in range(int(GLOBAL_LIMIT.burst)):
        assert attempts.wait("b", now) == 0.0
        attempts.failed(f"c{number}", now)
    assert attempts.wait("b", now) == 2.0  # an attacker with many addresses is throttled, too


def test_sessions_expire_by_age_and_inactivity_and_are_limited() -> None:
    sessions = Sessions()
    idle, busy = sessions.begin("ann", 0.0), sessions.begin("bob", 0.0)
    now = 0.0
    while now < AGE:
        assert sessions.who(busy, now) == "bob"
        now += IDLE / 2
    assert sessions.who(idle, now) is None
    assert sessions.who(busy, AGE + 1) is None
    first = sessions.begin("ann", now)
    for _ in range(MAX_SESSIONS):
        sessions.begin("eve", now)
    assert sessions.who(first, now) is None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"host": "0.0.0.0"}, "missing: a login .*, TLS .*, the address that browsers use"),
        ({"host": "192.168.1.4", "login_file": "x", "origin": "https://a"}, "missing: TLS"),
        ({"host": "::", "certificate": "c", "certificate_key": "k", "origin": "https://a"}, "missing: a login"),
        ({"behind_proxy": True}, "needs --origin"),
        ({"behind_proxy": True, "origin": "https://a", "host": "0.0.0.0"}, "reachable without going through the proxy"),
        ({"certificate": "c"}, "go together"),
        ({"origin": "fleet.example.org"}, "is not a server address"),
        ({"origin": "https://fleet.example.org/web"}, "is not a server address"),
    ],
)
def test_unsafe_exposure_to_other_machines_is_refused(how, words) -> None:
    with pytest.raises(ConfigError, match=words):
        Exposure(**{"host": "127.0.0.1", "port": 8080, **how}).check()


def test_allowed_origins_and_hosts_follow_the_exposure() -> None:
    far = Exposure(
        host="0.0.0.0",
        port=8443,
        origin="https://fleet.example.org:8443",
        login_file=Path("x"),
        certificate=Path("c"),
        certificate_key=Path("k"),
    )
    far.check()
    assert far.origins == {"https://fleet.example.org:8443"}
    assert far.hosts == {"fleet.example.org:8443"}
    assert far.secure
    proxied = Exposure(host="127.0.0.1", port=8080, origin="https://fleet.example.org", behind_proxy=True)
    proxied.check()
    assert "fleet.example.org" in proxied.hosts
    assert proxied.secure
    local = Exposure(host="localhost", port=80)
    assert "localhost" in local.hosts
    assert Exposure(host="127.0.0.2", port=8080).hosts == LOCAL.hosts | {"127.0.0.2:8080"}
