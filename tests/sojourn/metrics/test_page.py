"""A running node's metrics over HTTP: as Prometheus reads them, while the node hangs, and only from this machine."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from hierarchy.edge.server import EdgeServer
from sojourn import errors
from sojourn.errors import MachineError
from sojourn.links.settings import BrokerSettings, TlsSettings
from sojourn.metrics import serving
from sojourn.metrics.catalogue import EVERY_NODE, SITE_UP
from sojourn.metrics.serving import NodeMetrics, metrics_served
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers
from sojourn.store.journal import FolderStore
from tests.ports import free_ports
from tests.sojourn.brokers.made_certificates import certificate_until
from tests.sojourn.metrics.silent_link import SilentLink
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sojourn.metrics.catalogue import MetricSource, Reading


@pytest.fixture(autouse=True)
def waits_for_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the start, so that a slow start is not taken for a hang."""
    monkeypatch.setattr(serving, "ANSWER_TIMEOUT", LIMIT)


class HostileSite:
    """A metric whose label is a peer's text."""

    def read(self, into: Reading, now: float) -> None:
        into.put(SITE_UP, 1, 'a"} 1\nsojourn_site_up{site="b\\')


class Broken:
    """A metric source that raises an exception."""

    def read(self, into: Reading, now: float) -> None:
        raise ZeroDivisionError


class Scraped:
    """An edge server on a thread, and its metrics page."""

    def __init__(self, driver: Driver, port: int) -> None:
        self.driver, self.port = driver, port

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def lines(self) -> dict[str, float]:
        status, text = self.get()
        assert status == 200
        rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in rows}


@contextmanager
def scraped(folder: Path, *more: MetricSource, broker: BrokerSettings | None = None) -> Iterator[Scraped]:
    link = SilentLink()
    node = Node(
        "f", EdgeServer("e", "c"), FolderStore(folder), {"device": link, "cloud": link}, InlineWorkers(lambda _: None)
    )
    driver, port = Driver(node), free_ports(1)[0]
    sources = [NodeMetrics(driver, lambda: 3), *more]
    with metrics_served(port, driver, sources, folder, {"cloud": broker or BrokerSettings()}):
        running = threading.Thread(target=driver.run)
        running.start()
        try:
            yield Scraped(driver, port)
        finally:
            driver.stop()
            running.join()


def test_page_has_common_metrics_and_passes_promtool(tmp_path: Path) -> None:
    with scraped(tmp_path) as page:
        status, text = page.get()
        lines = page.lines()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (status, checked.returncode, checked.stderr) == (200, 0, "")
    assert {name.partition("{")[0] for name in lines} >= {
        metric.name for metric in EVERY_NODE if metric.name != "sojourn_certificate_expiry_timestamp_seconds"
    }
    assert lines["sojourn_outbox_requests"] == 3
    assert lines['sojourn_link_up{peer="cloud"}'] == 0
    assert lines["sojourn_journal_bytes"] > 0
    assert 0 < lines["sojourn_disk_free_bytes"] < lines["sojourn_disk_size_bytes"]
    assert lines["process_resident_memory_bytes"] > 0


def test_hostile_label_text_adds_no_line(tmp_path: Path) -> None:
    with scraped(tmp_path, HostileSite()) as page:
        lines = page.lines()
    assert [name for name in lines if name.startswith("sojourn_site_up")] == [
        r'sojourn_site_up{site="a\"} 1 sojourn_site_up{site=\"b\\"}'
    ]


def test_hanging_node_serves_last_metrics_marked_unresponsive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_AGE", 0.0)
    with scraped(tmp_path) as page:
        assert page.lines()["sojourn_loop_responding"] == 1
        monkeypatch.setattr(serving, "ANSWER_TIMEOUT", 0.2)
        go_on, asked = threading.Event(), page.driver._queue.qsize()
        page.driver.call(lambda _now: there_for(go_on))
        for _ in range(3):
            lines = page.lines()
            assert lines["sojourn_loop_responding"] == 0
            assert lines["sojourn_outbox_requests"] == 3
        assert page.driver._queue.qsize() <= asked + 1  # it is not asked again while it has not answered
        go_on.set()
        wait_until(lambda: page.lines()["sojourn_loop_responding"] == 1, "the node to answer again")


def there_for(event: threading.Event) -> None:
    assert event.wait(LIMIT)


def test_failing_metric_source_is_logged_once_and_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "MAX_AGE", 0.0)
    with scraped(tmp_path, Broken(), HostileSite()) as page:
        for _ in range(3):
            text = page.get()[1]
            assert "sojourn_link_up" in text
            assert "sojourn_site_up" in text
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["cannot read metrics: Broken"]


def test_page_serves_only_local_requests(tmp_path: Path) -> None:
    with scraped(tmp_path) as page:
        assert page.get(Host="evil.example:80")[0] == 403
        assert page.get(Origin="https://evil.example")[0] == 403
        assert page.get("/secret")[0] == 404
        assert page.get("/")[0] == 200
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.2", page.port), 5):
            pass


def test_port_in_use_and_missing_package_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scraped(tmp_path / "one") as page:
        with (
            pytest.raises(MachineError, match=rf"metrics_port: 127.0.0.1:{page.port} cannot be used .*choose another"),
            metrics_served(page.port, page.driver, [], tmp_path, {}),
        ):
            pass
        monkeypatch.setattr(errors, "find_spec", lambda _name: None)
        with (
            pytest.raises(MachineError, match=r"metrics_port = 9870 needs .* pip install '\.\[metrics\]'"),
            metrics_served(9870, page.driver, [], tmp_path, {}),
        ):
            pass


def test_certificate_expiry_metric_follows_renewal(tmp_path: Path) -> None:
    file, name = tmp_path / "own.pem", 'sojourn_certificate_expiry_timestamp_seconds{certificate="own",peer="cloud"}'
    file.write_bytes(certificate_until(1_900_000_000))
    tls = TlsSettings(certificate_file=str(file), ca_file=str(tmp_path / "missing.pem"))
    with scraped(tmp_path / "store", broker=BrokerSettings(tls=tls)) as page:
        lines = page.lines()
        assert lines[name] == 1_900_000_000
        assert not [each for each in lines if 'certificate="authority"' in each]
        file.write_bytes(certificate_until(1_950_000_000))
        os.utime(file, (1, 1))  # another time in any case: clocks of file systems are coarse
        assert page.lines()[name] == 1_950_000_000
        file.write_bytes(b"rubbish")
        os.utime(file, (2, 2))
        assert name not in page.lines()
