"""The live picture: a real fleet over a real Mosquitto, a device that is killed while it has the model, and a spare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coordinator.console.job_report import write_report
from fleet_web.folder.opening import open_all
from fleet_web.story.visit_book import VisitBook
from tests.fleet_web.browser import Browser, web
from tests.live.live_fleet import FLEET, PATIENCE, LiveFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SITES = {"barn": ["pi-1", "pi-2", "pi-3", "pi-4", "pi-5"]}
JOB = """
name = "travels"
rounds = 2
threads = 1
[model]
options = { hidden = [16] }
[data]
test = "digits"
[fleet]
devices = 5
[arranger]
sets = 1
size = 3
[estimator]
epochs = 1
[training]
epochs = 150
[gate]
on = false
[tours]
on_lost_visit = "swap"
lease = 4.0
"""
HERE = "return [...document.querySelectorAll('.hops li.here bdi')].map(each => each.textContent)"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    live = LiveFleet(tmp_path_factory.mktemp("live"), SITES, own_brokers=False)
    yield live
    live.stop()


def test_the_model_is_seen_travelling_and_a_spare_stepping_in(browser: Browser, fleet: LiveFleet, tmp_path: Path):
    broker = fleet.brokers["cloud"]
    with web("--broker", f"{broker.host}:{broker.port}", "--fleet", FLEET) as address:
        fleet.submit(JOB)
        browser.open(f"{address}/job/travels", width=900)
        browser.wait_for(".ring .model:not(.gone)", PATIENCE)  # the round has begun: estimates do not travel
        (device,) = browser.wait(lambda: browser.js(HERE), "a device that has the model")
        browser.js("window.ring = document.querySelector('.ring')")
        fleet.kill(device)
        browser.wait(lambda: "before it " + device in browser.text(".hops"), f"a spare in place of {device}")
        assert browser.all(".ring .hop .spare")
        browser.shot(tmp_path / "live.png")
        assert browser.js("return ring.isConnected")
        assert browser.violations() == []
        browser.wait(lambda: browser.js(HERE) not in ([], [device]), "the model to go on")
        fleet.finish("travels")
        browser.wait_text("2 of 2", ".tiles")
        browser.wait(lambda: browser.text(".tiles dd") == "done", "the end")
        browser.wait_for("select[data-act=round] option[value='1']")
        browser.wait_for("button[data-act='round:1']").click()
        browser.wait(lambda: "before it " + device in browser.text(".hops"), "the spare in round 1, from what was kept")
        assert browser.errors() == []
    report = tmp_path / "report"
    with fleet.operator() as operator:
        list(write_report(operator, "travels", report))
    (source,) = open_all([report])
    book = VisitBook(asyncio.run(source.visits(job="travels", last=1000)))
    assert any(hop.spare and hop.planned == device for tour in book.travel(1).tours for hop in tour.hops)
    assert len(asyncio.run(source.job("travels")).history) == 2
