"""Debian's Prometheus scrapes every role during a job over Mosquitto, and alerts when a device is offline."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.metrics.catalogue import METRICS
from tests.live.live_fleet import LiveFleet, job_text
from tests.ports import free_ports
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = Path(__file__).parents[2] / "deploy" / "observability"
SITES = {"edge-1": ["pi-1", "pi-2"], "edge-2": ["pi-3", "pi-4"]}
SCRAPED = {"cloud": "sojourn-coordinator", "edge-1": "sojourn-edge", "pi-1": "sojourn-agent"}


class MeasuredFleet(LiveFleet):
    """A fleet of which one node of each role serves metrics."""

    def __init__(self, folder: Path) -> None:
        self.ports = dict(zip(SCRAPED, free_ports(len(SCRAPED)), strict=True))
        super().__init__(folder, SITES, own_brokers=False)

    def _add(self, name: str, command: list[str]) -> None:
        more = ["--metrics-port", str(self.ports[name])] if name in self.ports else []
        super()._add(name, [*command, *more])


class Prometheus:
    """A real Prometheus with the shipped configuration, except for ports and shorter timeouts."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        (self.port,) = free_ports(1)
        folder.mkdir()
        text = (SHIPPED / "prometheus.yml").read_text().replace("15s", "2s")
        for name, job in SCRAPED.items():
            text = re.sub(rf"(job_name: {job}\n.*\n.*127\.0\.0\.1:)\d+", rf"\g<1>{ports[name]}", text)
        (folder / "prometheus.yml").write_text(text)
        (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", (SHIPPED / "alerts.yml").read_text()))
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **how: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(how)}") as it:
            return json.load(it)["data"]

    def value(self, expression: str) -> float | None:
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT)

    def wait(self, expression: str, holds: Callable[[float], bool]) -> None:
        """Wait until a value holds: on a busy machine a scrape may fail, and its metrics are missing for a while."""

        def is_so() -> bool:
            found = self.value(expression)
            return found is not None and holds(found)

        self._wait(is_so, expression, lambda: (self.value(expression), self.ask("targets")))

    def wait_for_alerts(self, *names: str) -> None:
        self._wait(lambda: self.firing() >= set(names), f"the alerts {names}", lambda: self.ask("alerts"))

    @staticmethod
    def _wait(condition: Callable[[], bool], what: str, details: Callable[[], object]) -> None:
        def holds() -> bool:
            try:
                return condition()
            except OSError:
                return False  # it is still starting

        wait_until(holds, what, details)


def test_prometheus_shows_a_job_and_offline_device_and_site(tmp_path: Path) -> None:
    fleet = MeasuredFleet(tmp_path)
    prometheus = Prometheus(tmp_path / "prometheus", fleet.ports)
    try:
        prometheus.wait("sum(up)", lambda up: up == len(SCRAPED))
        prometheus.wait('sum(sojourn_devices{state="idle"})', lambda devices: devices == 4)
        assert fleet.run(job_text("digits", 2), "digits").status == "done"
        prometheus.wait('sojourn_run_rounds{run="digits"}', lambda rounds: rounds == 2)
        prometheus.wait('sojourn_run_status{run="digits",status="done"}', lambda is_so: is_so == 1)
        prometheus.wait('sojourn_run_accuracy_ratio{run="digits"}', lambda accuracy: 0.3 < accuracy <= 1)
        prometheus.wait("sojourn_round_duration_seconds_count", lambda rounds: rounds == 2)
        prometheus.wait('sojourn_visits_total{outcome="done"}', lambda visits: visits == 12)  # four were estimations
        prometheus.wait('sojourn_edge_visits_total{outcome="done"}', lambda visits: visits >= 1)
        prometheus.wait('sojourn_agent_visits_total{outcome="accepted"}', lambda visits: visits == 3)
        prometheus.wait("min(sojourn_link_up)", lambda up: up == 1)
        known = set(prometheus.ask("label/__name__/values"))
        lacking = {m.name for m in METRICS if not {m.name, f"{m.name}_count"} & known}
        assert lacking <= {  # there is no release here, no TLS, and no job under way
            "sojourn_certificate_expiry_timestamp_seconds", "sojourn_agent_release_state", "sojourn_release_devices",
            "sojourn_agent_release_version", "sojourn_rollout_status", "sojourn_run_progress_timestamp_seconds",
        }  # fmt: skip
        assert not prometheus.firing() & {
            "SojournDeviceOffline", "SojournSiteOffline", "SojournRunStuck", "SojournManyDeclines",
            "SojournReleaseCalledBack",
        }  # fmt: skip
        fleet.kill("pi-4")
        prometheus.wait_for_alerts("SojournDeviceOffline")
        # Both sites reach all devices.
        prometheus.wait('sum(sojourn_devices{state="offline"})', lambda devices: devices == 1)
        fleet.kill("edge-1")
        prometheus.wait_for_alerts("SojournSiteOffline", "SojournNodeDown")
        prometheus.wait('sojourn_site_up{site="edge-1"}', lambda up: up == 0)
        prometheus.wait('sojourn_site_up{site="edge-2"}', lambda up: up == 1)
    finally:
        prometheus.stop()
        fleet.stop()
