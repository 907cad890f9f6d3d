"""The live picture: a real fleet over a real Mosquitto, a device that is killed before its turn, and a spare."""

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
epochs = 800
[gate]
on = false
[tours]
on_lost_visit = "swap"
lease = 4.0
"""
TO_COME = "return [...document.querySelectorAll('.hops li.waiting bdi')].map(each => each.textContent)"
STEPPED_IN = """return document.querySelector('.ring .hop .spare') !== null
  && document.querySelector('.hops').innerText.includes('before it ' + arguments[0])"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    live = LiveFleet(tmp_path_factory.mktemp("live"), SITES, own_brokers=False)
    yield live
    live.stop()


@pytest.mark.timeout(400)  # six processes, a broker and a browser, on machines that do much else
def test_the_model_is_seen_travelling_and_a_spare_stepping_in(browser: Browser, fleet: LiveFleet, tmp_path: Path):
    broker = fleet.brokers["cloud"]
    with web("--broker", f"{broker.host}:{broker.port}", "--fleet", FLEET) as address:
        browser.open(f"{address}/jobs", width=900)  # it may take the browser longer to start than a job to end
        fleet.submit(JOB)
        browser.open(f"{address}/job/travels", width=900)
        browser.wait_for(".ring .model:not(.gone)", PATIENCE)  # the round has begun: estimates do not travel
        # What is shown may be a second old: the last device of the tour has surely not had the model yet.
        device = browser.wait(lambda: browser.js(TO_COME), "a device that waits for the model")[-1]
        fleet.kill(device)
        browser.wait(lambda: browser.js(STEPPED_IN, device), f"a spare in place of {device}", PATIENCE)
        browser.shot(tmp_path / "live.png")
        fleet.finish("travels")
        browser.wait_text("2 of 2", ".tiles")
        browser.wait(lambda: browser.text(".tiles dd") == "done", "the end")
        assert browser.violations() == []
        browser.wait_for("select[data-act=round] option[value='1']")
        if not browser.js(STEPPED_IN, device):
            browser.wait_for("button[data-act='round:1']").click()
        browser.wait(lambda: browser.js(STEPPED_IN, device), "the spare, from what was kept")
        assert browser.errors() == []
    report = tmp_path / "report"
    with fleet.operator() as operator:
        list(write_report(operator, "travels", report))
    (source,) = open_all([report])
    book = VisitBook(asyncio.run(source.visits(job="travels", last=1000)))
    tours = [tour for number in book.rounds for tour in book.travel(number).tours]
    assert any(hop.spare and hop.planned == device for tour in tours for hop in tour.hops)
    assert len(asyncio.run(source.job("travels")).history) == 2
