"""The HTTP endpoint: real requests to a real process."""

from __future__ import annotations

import http.client
import io
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from edge_agent.inference import endpoint_process
from edge_agent.inference.endpoint import MAX_BODY, PredictionApi, RefusedRequest
from edge_agent.inference.endpoint_process import EndpointProcess
from edge_agent.inference.model import Model, Serving
from edge_agent.inference.usage import ErrorToken
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.releases.orders import Usage
from sojourn.errors import ConfigError, ModelError
from sojourn.local_http import MAX_CONNECTIONS
from sojourn.protocol.release import ProbeCheck
from sojourn.protocol.spec import InputSpec, TableSpec
from tests.edge_agent.releases.releases_made import CLASSES, LINE, Shop, card_of, graph_of
from tests.ports import free_ports
from tests.processes import has_ended
from tests.there import there
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = "pictures"
TOKEN = "a token for error reports"


class Site:
    """A store with two lines, and an endpoint that serves it."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder / "store")
        self.shop.serve(2)
        self.shop.serve(1, card=picture_card(), graph=graph_of(PIXELS, shape=(1, 2, 2)))
        (self.port,) = free_ports(1)
        self.token = folder / "token"
        self.token.write_text(f"{TOKEN}\n")
        self.token.chmod(0o640)
        self.process = EndpointProcess(self.shop.store, self.port, str(self.token))
        self.process.start()
        wait_until(self.answers, "the endpoint to answer")

    def answers(self) -> bool:
        return self.status() == 200

    def status(self) -> int:
        """Return the status of the response; 0 without a response."""
        try:
            return self.ask("GET", "/")[0]
        except (OSError, http.client.HTTPException):
            return 0

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, names)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read() or b"null")
        finally:
            connection.close()

    def predict(self, x: Any, line: str = LINE) -> tuple[int, Any]:
        return self.ask("POST", f"/{line}/predict", msgspec.json.encode({"x": x}), Content_Type="application/json")


PIXELS = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32) / 255
"""Of 2 x 2 pixels, the first is evidence for `left`, the others for `other`."""


def picture_card() -> Any:
    probe = ProbeCheck(1, np.zeros(4, "<f4").tobytes(), np.zeros(2, "<f4").tobytes(), 0.0)
    return card_of(1, PIXELS, line=PICTURES, classes=("left", "other"), input=InputSpec((1, 2, 2)), probe=probe)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("endpoint"))
    yield site
    site.process.close()


def test_index_and_card_list_the_served_lines(site: Site) -> None:
    assert site.ask("GET", "/") == (
        200,
        {
            "lines": [
                {"line": LINE, "version": 2, "classes": list(CLASSES)},
                {"line": PICTURES, "version": 1, "classes": ["left", "other"]},
            ]
        },
    )
    status, card = site.ask("GET", f"/{LINE}")
    assert status == 200
    assert (card["version"], card["classes"], card["input"]["shape"]) == (2, list(CLASSES), [3])
    assert card["accuracy"] is None  # the accuracy is unknown
    assert "probe" not in card


def test_json_samples_are_predicted(site: Site) -> None:
    status, answer = site.predict([[1, 0, 0], [0, 0, 5]])
    assert status == 200
    assert (answer["line"], answer["version"], answer["classes"]) == (LINE, 2, ["cat", "owl"])
    np.testing.assert_allclose(answer["probabilities"][0], np.exp([2, 0, 0]) / np.exp([2, 0, 0]).sum(), atol=1e-6)
    assert site.predict([0, 1, 0])[1]["classes"] == ["dog"]


def test_npy_arrays_are_predicted(site: Site) -> None:
    file = io.BytesIO()
    np.save(file, np.eye(3))
    status, answer = site.ask("POST", f"/{LINE}/predict", file.getvalue(), Content_Type="application/x-npy")
    assert (status, answer["classes"]) == (200, list(CLASSES))


def test_rows_by_name_are_predicted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    table = TableSpec(("temp", "rpm", "load"), "state")
    site.shop.serve(1, card=card_of(1, line="pumps", table=table))
    try:
        rows: list[dict[str, Any]] = [{"rpm": 1, "load": 0, "temp": 0}, {"load": 1, "temp": 0, "rpm": 0, "state": "ok"}]
        for x, classes in ((rows, ["dog", "owl"]), (rows[0], ["dog"])):
            status, answer = site.predict(x, "pumps")
            assert (status, answer["classes"]) == (200, classes)
        head = {"Content_Type": "text/csv"}
        status, answer = site.ask("POST", "/pumps/predict", b"rpm,id,load,temp\n1,7,0,0\n", **head)
        assert (status, answer["classes"]) == (200, ["dog"])
        for x, error in (
            ({"rpm": 1}, "the row lacks the columns 'temp' and 'load'; it has 'rpm'"),
            (rows[0] | {"speed": 1}, "the row has the column 'speed', which the model does not use"),
        ):
            status, answer = site.predict(x, "pumps")
            assert (status, error in answer["error"]) == (400, True)
        status, answer = site.ask("POST", "/pumps/predict", b"1,0,0\n", **head)
        assert (status, "has no column names" in answer["error"]) == (400, True)
        assert site.ask("GET", "/pumps")[1]["table"] == {"columns": ["temp", "rpm", "load"], "label": "state"}
        with Model("pumps", site.shop.store) as model:
            assert model.classify({"load": 0, "rpm": 1, "temp": 0}) == "dog"
            assert model.classify(rows) == ["dog", "owl"]
    finally:
        site.process.close()


def test_csv_rows_are_predicted(site: Site) -> None:
    body = b"a,b,c,label\n0,1,0,dog\n0,0,1,owl\n"
    status, answer = site.ask("POST", f"/{LINE}/predict", body, Content_Type="text/csv")
    assert (status, answer["classes"]) == (200, ["dog", "owl"])


@pytest.mark.parametrize("x", [[1, 2], [[1, 2, 3], [1]], ["a", "b", "c"], [{}], [None, 1, 2], "abc", []])
def test_invalid_samples_are_a_bad_request(site: Site, x: Any) -> None:
    status, answer = site.predict(x)
    assert status == 400
    assert answer["error"]


def hostile_npy() -> bytes:
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + b"1234"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"", 400),
        ("application/json", b"{", 400),
        ("application/json", b'{"x": ' + b"[" * 100_000, 400),
        ("application/x-npy", b"\x93NUMPY", 400),
        ("application/x-npy", hostile_npy(), 400),
        ("image/png", b"\x89PNG\r\n", 400),
        ("text/html", b"<p>", 415),
    ],
)
def test_bodies_that_contradict_their_type_are_rejected(site: Site, kind: str, body: bytes, status: int) -> None:
    found, answer = site.ask("POST", f"/{LINE}/predict", body, Content_Type=kind)
    assert (found, bool(answer["error"])) == (status, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing-here", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", f"/{LINE}/predict", 405),
        ("POST", f"/{LINE}", 405),
        ("POST", "/no-line/predict", 404),
        ("DELETE", f"/{LINE}", 501),
    ],
)
def test_other_paths_and_methods_are_rejected(site: Site, method: str, path: str, status: int) -> None:
    assert site.ask(method, path, b'{"x": [1, 0, 0]}' if method == "POST" else None)[0] == status


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.evil.example", "127.0.0.1@evil", "[::1", ""],
)
def test_foreign_host_header_is_refused(site: Site, host: str) -> None:
    assert site.ask("GET", "/", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.2:80", "[::1]:80"])
def test_local_host_names_are_accepted(site: Site, host: str) -> None:
    assert site.ask("GET", "/", Host=host)[0] == 200


def test_cross_origin_pages_cannot_report_errors(site: Site) -> None:
    assert site.ask("POST", f"/{LINE}/error", b"no", Origin="https://evil.example")[0] == 403
    assert site.ask("POST", f"/{LINE}/error", b"no", Origin="null")[0] == 403
    assert site.ask("GET", "/", Origin="http://localhost:3000")[0] == 200


def test_body_needs_a_length_within_the_limit(site: Site) -> None:
    large = b"0" * (MAX_BODY + 1)
    assert site.ask("POST", f"/{LINE}/predict", large)[0] == 413
    assert site.ask("POST", f"/{LINE}/predict", None, Transfer_Encoding="chunked")[0] == 411
    assert site.ask("POST", f"/{LINE}/predict", b"{}", Content_Length="-1")[0] == 411
    assert site.predict([[1, 0, 0]] * 1025)[0] == 413


def test_excess_connections_get_503(site: Site) -> None:
    silent: list[socket.socket] = []

    def crowded() -> bool:
        """Whether all connections are in use; on a busy machine, idle ones may have timed out already."""
        silent.extend(socket.create_connection(("127.0.0.1", site.port)) for _ in range(MAX_CONNECTIONS))
        return site.status() == 503

    try:
        wait_until(crowded, "a connection that is turned away")
    finally:
        for each in silent:
            each.close()
    wait_until(site.answers, "room for a connection")


def test_reported_error_reaches_the_agent(site: Site) -> None:
    usages: SimpleQueue[Usage] = SimpleQueue()
    listener = UsageListener(site.shop.store, usages.put)
    bearer = f"Bearer {TOKEN}"
    status, answer = site.ask("POST", f"/{LINE}/error", b"that was a dog", Authorization=bearer)
    assert (status, answer) == (200, {"line": LINE, "version": 2, "noted": True})
    usage = usages.get(timeout=LIMIT)
    while not usage.health.errors:
        usage = usages.get(timeout=LIMIT)
    listener.close()
    assert (usage.line, usage.version, usage.health.errors) == (LINE, 2, 1)


@pytest.mark.parametrize("shown", [{}, *({"Authorization": word} for word in ("Bearer", f"Bearer {TOKEN}x", TOKEN))])
def test_error_report_without_valid_token_is_unauthorized(site: Site, shown: dict[str, str]) -> None:
    status, answer = site.ask("POST", f"/{LINE}/error", b"a lie", **shown)
    assert (status, answer["error"]) == (401, "the token is missing or wrong: send Authorization: Bearer TOKEN")
    assert site.predict([[1, 0, 0]])[0] == 200  # predictions need no token


def test_error_reports_are_refused_without_a_configured_token(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "store")
    shop.serve(2)
    api = PredictionApi(shop.store)
    with pytest.raises(RefusedRequest, match="error reports are disabled") as refused:
        api.note_error(LINE, "a lie", "Bearer ")
    assert refused.value.status == 403


def test_failing_rows_count_against_a_release_only_with_token(tmp_path: Path, monkeypatch: Any) -> None:
    """Otherwise, anyone who finds such rows could cause a rollback."""
    shop = Shop(tmp_path / "store")
    shop.serve(2)
    errors: list[str] = []
    api = PredictionApi(shop.store, ErrorToken(TOKEN))
    monkeypatch.setattr(Model, "_error", lambda _model, _serving, text: errors.append(text))
    monkeypatch.setattr(Serving, "predict", failing)
    body = b'{"x": [1, 0, 0]}'
    for authorization, count in ((None, 0), ("Bearer no", 0), (f"Bearer {TOKEN}", 1)):
        with pytest.raises(ModelError):
            api.predict(LINE, "application/json", body, authorization)
        assert len(errors) == count
    api._models[LINE].close()


def failing(_serving: Serving, _x: object) -> Any:
    raise ModelError("an index is out of range")


def test_weak_or_exposed_token_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert not ErrorToken.read(None)
    with pytest.raises(ConfigError, match="cannot be read"):
        ErrorToken.read(str(file))
    for text, mode, why in ((TOKEN, 0o644, "readable by all users"), ("short", 0o600, "has 5 characters")):
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(ConfigError, match=why):
            ErrorToken.read(str(file))
    file.write_text(TOKEN)
    assert ErrorToken.read(str(file)).shown_in(f"bearer  {TOKEN} ")


def test_endpoint_listens_on_loopback_only(site: Site) -> None:
    # All of 127/8 is loopback: an endpoint on all addresses would also respond on this one.
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", site.port), timeout=LIMIT)


def picture(size: tuple[int, int], light: tuple[int, int], form: str) -> bytes:
    """A dark image with one bright quarter."""
    image, file = Image.new("L", size, 0), io.BytesIO()
    image.paste(255, (light[0], light[1], light[0] + size[0] // 2, light[1] + size[1] // 2))
    image.save(file, form)
    return file.getvalue()


@pytest.mark.parametrize(("light", "output"), [((0, 0), "left"), ((32, 0), "other")])
@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_images_are_resized_for_the_model(site: Site, light: tuple[int, int], output: str, form: str) -> None:
    body = picture((64, 64), light, form)
    status, answer = site.ask("POST", f"/{PICTURES}/predict", body, Content_Type=f"image/{form}")
    assert (status, answer["classes"]) == (200, [output])


def test_pixels_of_matching_images_are_unchanged(site: Site) -> None:
    body = picture((2, 2), (0, 0), "png")
    answer = site.ask("POST", f"/{PICTURES}/predict", body, Content_Type="image/png")[1]
    assert answer["probabilities"] == [pytest.approx([np.e / (np.e + 1), 1 / (np.e + 1)], abs=1e-6)]


def test_small_file_with_a_huge_image_is_refused(site: Site) -> None:
    body = picture((5000, 5000), (0, 0), "png")
    assert len(body) < MAX_BODY
    status, answer = site.ask("POST", f"/{PICTURES}/predict", body, Content_Type="image/png")
    assert status == 400
    assert "5000 x 5000 pixels are too many" in answer["error"]


def test_dead_endpoint_restarts_and_ends_with_its_agent(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(endpoint_process, "_MIN_PAUSE", 0.05)
    monkeypatch.setattr(endpoint_process, "GRACE", LIMIT)
    monkeypatch.setattr("sojourn.processes.GRACE", LIMIT)
    site = Site(tmp_path)
    first = site.process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: site.process.pid not in (first, None) and site.answers(), "another process that answers")
    second = site.process.pid
    site.process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(second or 0, 0)
    with pytest.raises(OSError, match="refused"):
        site.ask("GET", "/")


def test_endpoint_ends_when_its_agent_is_killed(tmp_path: Path) -> None:
    Shop(tmp_path / "store").serve(1)
    (port,) = free_ports(1)
    program = (
        "import pathlib, time; from edge_agent.inference.endpoint_process import EndpointProcess\n"
        f"endpoint = EndpointProcess(pathlib.Path({str(tmp_path / 'store')!r}), {port})\n"
        "endpoint.start()\nwhile endpoint.pid is None: time.sleep(0.01)\n"
        "print(endpoint.pid, flush=True)\ntime.sleep(3600)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as agent:
        try:
            pid = int(there(agent.stdout).readline())
        finally:
            agent.kill()
    wait_until(lambda: has_ended(pid), "the end of the endpoint")
