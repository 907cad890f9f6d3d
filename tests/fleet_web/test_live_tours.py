"""The live tour image: a real fleet over a real Mosquitto, a device killed before its turn, and a spare."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coordinator.console.job_report import write_report
from fleet_web.sources.folder_source import open_all
from fleet_web.story.job_story import VisitBook
from tests.fleet_web.browser import Browser, web
from tests.live.live_fleet import FLEET, LiveFleet, compile_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SITES = {"barn": ["pi-1", "pi-2", "pi-3", "pi-4", "pi-5"]}
JOB = """
name = "travels"
strategy = "naive-gsp"
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
[schedule]
fraction = 1.0
[gate]
on = false
[tours]
on_lost_visit = "swap"
lease = 600.0
"""
"""Nothing is estimated before the first tour. The lease is longer than the test may take to resume a device."""
HALTED = "[broker]\nkeepalive = 3600\n"
"""Settings of a device that the broker counts as online while its process is stopped."""
HOPS = "return [...document.querySelectorAll('.hops li bdi')].map(each => each.textContent)"
STEPPED_IN = """return document.querySelector('.ring .hop .spare') !== null
                    && document.querySelector('.hops').innerText.includes('earlier: ' + arguments[0])"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    folder = tmp_path_factory.mktemp("live")
    (folder / "agent.toml").write_text(HALTED)
    live = LiveFleet(folder, SITES, own_brokers=False, flags=(str(folder / "agent.toml"),))
    yield live
    signal_all(live, SITES["barn"], signal.SIGCONT)
    live.stop()


def signal_all(fleet: LiveFleet, names: Iterable[str], number: signal.Signals) -> None:
    for name in names:
        with suppress(ProcessLookupError):
            os.kill(fleet.processes[name].pid, number)


def test_live_page_shows_the_model_moving_and_a_spare_joining(browser: Browser, fleet: LiveFleet, tmp_path: Path):
    """Devices are halted while they hold the model, so that the page has time to show it."""
    compile_here(JOB)
    broker = fleet.brokers["cloud"]
    with web("--broker", f"{broker.host}:{broker.port}", "--fleet", FLEET) as address:
        browser.open(f"{address}/fleet", width=900)
        browser.wait_text("5 devices at 1 site: 5 online")
        signal_all(fleet, SITES["barn"], signal.SIGSTOP)
        fleet.submit(JOB)
        browser.open(f"{address}/job/travels", width=900)
        browser.wait_for(".ring .model:not(.gone)")
        browser.wait(lambda: len(browser.all(".hops li.waiting")) == 2, "two devices that wait for the model")
        first, second, last = browser.js(HOPS)
        fleet.kill(last)
        (fleet.folder / "agent.toml").write_text(f"{HALTED}[limits]\nmetered_file = '{tmp_path}'\n")
        fleet.start(last)  # from now on it declines, because the metered file exists
        signal_all(fleet, (first, second), signal.SIGCONT)
        browser.wait(lambda: browser.js(STEPPED_IN, last), f"a spare in place of {last}")
        browser.shot(tmp_path / "live.png")
        signal_all(fleet, {*SITES["barn"]} - {first, second, last}, signal.SIGCONT)
        assert fleet.finish("travels").status == "done"
        browser.wait_text("2 of 2", ".tiles")
        browser.wait(lambda: browser.text(".tiles dd") == "done", "the end")
        assert browser.violations() == []
        browser.wait_for("select[data-act=round] option[value='1']")
        browser.click("button[data-act='round:1']")
        browser.wait(lambda: browser.text(".tour h3") == "Tour 1 at barn", "the tour of the first round")
        assert browser.js(STEPPED_IN, last)
        assert browser.errors() == []
    report = tmp_path / "report"
    with fleet.operator() as operator:
        list(write_report(operator, "travels", report))
    (source,) = open_all([report])
    book = VisitBook(asyncio.run(source.visits(job="travels", last=1000)))
    tours = [tour for number in book.rounds for tour in book.travel(number).tours]
    assert any(hop.spare and hop.planned == last for tour in tours for hop in tour.hops)
    assert len(asyncio.run(source.job("travels")).history) == 2
