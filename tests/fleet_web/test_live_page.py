"""A page that stays open over a real coordinator: operator actions, and recovery from restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleet_web.security.logins import add_login
from tests.fleet_web.browser import Browser, web
from tests.live.live_fleet import FLEET, LiveFleet, job_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    live = LiveFleet(tmp_path_factory.mktemp("page"), {"hall": ["pi-1"]}, own_brokers=False)
    yield live
    live.stop()


def test_confirmed_action_is_audited_and_page_survives_restarts(
    browser: Browser, fleet: LiveFleet, tmp_path: Path
) -> None:
    broker, logins = fleet.brokers["cloud"], tmp_path / "logins"
    add_login(logins, "ann", "correct horse")
    arguments = ("--broker", f"{broker.host}:{broker.port}", "--fleet", FLEET, "--operate", "--login-file", str(logins))
    with web(*arguments) as address:
        browser.open(f"{address}/fleet")
        for name, text in (("name", "ann"), ("password", "correct horse")):
            browser.wait_for(f"input[name={name}]").send_keys(text)
        browser.click("button")
        browser.wait_text("1 device at 1 site")
        with fleet.operator() as operator:
            operator.submit(job_text("waits", devices=4))  # no device is online, so the job waits
        browser.open(f"{address}/job/waits")
        browser.wait_text("Actions")
        browser.press("Stop …")
        browser.press("No")
        browser.wait(lambda: not browser.all(".q-dialog"), "the dialog to close")
        browser.press("Stop …")
        browser.press("Yes, stop")
        browser.wait_text("Stopped waits.")
        with fleet.operator() as operator:
            assert operator.job("waits").status == "stopped"
            acts = [(it.who, it.what, it.outcome) for it in operator.audit()]
        assert acts == [("operator", "submit waits", "done"), ("operator", "stop waits", "done")]
        browser.open(f"{address}/log")
        browser.wait_text("stop waits, done")
        browser.open(f"{address}/fleet")
        browser.wait_text("1 device at 1 site: 1 online")
        browser.js("window.same = true")
        fleet.kill("cloud")
        fleet.restart_broker()
        browser.wait_text("The coordinator cannot be reached")
        assert "pi-1" in browser.text()  # the last known state
        fleet.start("cloud")
        browser.wait(lambda: "cannot be reached" not in browser.text(), "the coordinator again")
        fleet.kill("pi-1")
        browser.wait_text("offline for")
        assert browser.js("return window.same")  # the page was not reloaded
