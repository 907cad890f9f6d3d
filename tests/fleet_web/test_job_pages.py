"""*Job* and *Compare* in a real browser, with result folders of real simulations."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.keys import Keys

from coordinator.results.folder import ROUNDS, VISITS
from tests.fleet_web.browser import Browser, web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
WATCH = """
window.changes = 0, window.removed = [], window.shifted = 0, window.travelled = false;
new MutationObserver(found => {
  changes += found.length;
  travelled ||= document.querySelector(".tour .ring .hop.here") !== null;
  for (const each of found) for (const node of each.removedNodes)
    if (node.matches?.("article, svg, ol, li, .hop, .model")) removed.push(node.outerHTML);
}).observe(document.querySelector(".tours"), {subtree: true, childList: true, attributes: true});
new PerformanceObserver(list => { for (const each of list.getEntries()) shifted += each.value; })
  .observe({type: "layout-shift"});
"""
TURNED = "\u202ebackwards\u2066 \x1b[31mred"


@pytest.fixture(scope="module")
def hostile(run_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose devices and failure reasons have hostile names."""
    folder = tmp_path_factory.mktemp("evil") / "hostile"
    shutil.copytree(run_folders["visit"], folder)
    for name in (VISITS, "devices.csv"):
        text = (folder / name).read_text().replace("device-01", _cell(EVIL)).replace("device-02", _cell(TURNED))
        (folder / name).write_text(text.replace("device-03", "w" * 5000).replace("failed: dropped out", _cell(EVIL)))
    return folder


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.fixture(scope="module")
def growing(run_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which only the first round is written yet."""
    folder = tmp_path_factory.mktemp("grows") / "growing"
    shutil.copytree(run_folders["visit"], folder)
    (folder / "model.onnx").unlink()
    for name in (ROUNDS, VISITS):
        lines = (folder / name).read_text().splitlines(keepends=True)
        of_first = [line for line in lines[1:] if line.startswith("1,") or "/1/" in line]
        assert lines[1 : len(of_first) + 1] == of_first
        (folder / name).write_text("".join([lines[0], *of_first]))
    return folder


@pytest.fixture(scope="module")
def address(run_folders: dict[str, Path], hostile: Path, growing: Path) -> Iterator[str]:
    folders = [*run_folders.values(), hostile, growing]
    with web(*(word for folder in folders for word in ("--results", str(folder)))) as found:
        yield found


def job(address: str, folder: str, name: str = "visit") -> str:
    return f"{address}/job/{name}?of={folder}"


@pytest.mark.parametrize(("width", "dark"), [(320, True), (1920, False)])
def test_simulation_folder_is_shown_as_a_job_page(
    browser: Browser, address: str, width: int, dark: bool, tmp_path: Path
):
    browser.open(job(address, "visit"), width=width, dark=dark)
    browser.wait_text("Participation")
    browser.wait_for(".tour .ring .hop.done")
    browser.wait_for(".scroll tbody tr")
    assert browser.text("h1") == "visit"
    assert "3 of 3" in browser.text(".tiles")
    assert len(browser.all(".charts figure")) >= 4
    assert browser.js("return document.body.classList.contains('body--dark')") is dark
    assert browser.overflow() <= 0
    assert browser.violations() == []
    assert browser.errors() == []
    assert browser.shot(tmp_path / "job.png").stat().st_size > 10_000


def test_replaying_a_round_keeps_the_ring_elements(browser: Browser, address: str):
    browser.open(job(address, "visit"))
    browser.wait_for(".tour .ring .hop.done")
    heading = browser.text(".tour h3")
    browser.click("button[data-act='round:2']")
    browser.wait(lambda: browser.text(".tour h3") != heading, "the tours of round 2")
    browser.js("window.ring = document.querySelector('.ring'); window.node = ring.querySelector('[data-key=hop-0]')")
    browser.js(WATCH)
    browser.click("button[data-act='replay:']")
    browser.wait(lambda: browser.js("return travelled && changes > 20"), "ten pictures a second")
    assert browser.js("return removed") == []
    assert browser.js("return shifted") < 0.01
    browser.click("button[data-act='replay:']")
    browser.wait(lambda: not browser.all(".ring .hop.here, .ring .hop.waiting"), "the end of the replay")
    assert browser.js("return ring.isConnected && node.isConnected && ring === document.querySelector('.ring')")


def test_curves_can_be_shown_by_round_time_and_bytes(browser: Browser, address: str):
    browser.open(job(address, "visit"))
    for act, words in (("by:bytes", "MB over MQTT"), ("by:time", "seconds"), ("by:round", "round")):
        button = browser.wait_for(f"button[data-act='{act}']")
        button.send_keys(Keys.ENTER)  # by keyboard
        browser.wait(partial(below_is, browser, words), words)
        assert browser.js("return document.activeElement.dataset.act") == act  # the focus is kept


def below_is(browser: Browser, words: str) -> bool:
    return words in browser.js("return document.querySelector('.charts .axis')?.textContent ?? ''")


def test_single_device_tours_form_one_ring_per_site(browser: Browser, address: str):
    browser.open(job(address, "fedavg", "fedavg"))
    browser.wait_for(".tour .ring")
    assert [it.text for it in browser.all(".tour h3")] == ["Site site-1", "Site site-2"]


def test_hostile_names_stay_text(browser: Browser, address: str):
    browser.open(job(address, "hostile"), width=320)
    browser.wait_text("Participation")
    browser.wait_for(".scroll tbody tr")
    assert "owned" not in browser.driver.title
    assert browser.all(".page img, .page script") == []
    shown = browser.text()
    assert "<script>" in shown
    assert "backwards red" in shown
    assert "\u202e" not in shown
    assert browser.overflow() <= 0
    assert browser.errors() == []
    assert browser.violations() == []


def test_growing_folder_is_followed_without_losing_position(
    browser: Browser, address: str, growing: Path, run_folders: dict[str, Path]
):
    browser.open(job(address, "growing"))
    browser.wait_text("1 of 3", ".tiles")
    browser.wait_for(".scroll tbody tr")  # the last section: what is above it moves no more
    browser.js("window.tile = document.querySelector('.tiles dd'); window.scrollTo(0, 300)")
    for name in (VISITS, ROUNDS):
        whole = (run_folders["visit"] / name).read_text()
        with (growing / name).open("a") as file:  # the last section: nothing above it moves any more
            file.write(whole.removeprefix((growing / name).read_text()))
    browser.wait_text("3 of 3", ".tiles")
    assert browser.js("return tile.isConnected && window.scrollY") == 300


def test_all_jobs_are_listed_and_link_to_their_pages(browser: Browser, address: str):
    browser.open(f"{address}/jobs")
    browser.wait(lambda: len(browser.all("tbody tr")) == 4, "four jobs")
    assert browser.violations() == []
    browser.click("a[href='/job/fedavg?of=fedavg']")
    browser.wait_for(".tour .ring")
    assert browser.text("h1") == "fedavg"


def test_unknown_job_is_reported(browser: Browser, address: str):
    browser.open(job(address, "visit", "unknown"))
    browser.wait_text("contains the job 'visit'")


@pytest.mark.parametrize(("width", "dark"), [(320, False), (1920, True)])
def test_compared_runs_overlap_and_curves_hide_by_keyboard(browser: Browser, address: str, width: int, dark: bool):
    browser.open(f"{address}/compare", width=width, dark=dark)
    browser.wait_for(".charts [data-key=curve-1]")
    assert browser.overflow() <= 0
    assert browser.violations() == []
    browser.wait_for("button[data-act='hide:1']").send_keys(Keys.SPACE)
    browser.wait(lambda: not browser.all(".charts [data-key=curve-1]"), "the curve to be hidden")
    assert browser.all(".charts [data-key=curve-0]")
    assert browser.wait_for("button[data-act='hide:1']").get_attribute("aria-pressed") == "false"
    target = browser.wait_for("input[data-act=target]")
    target.send_keys("5 %", Keys.ENTER)
    browser.wait_text("rounds to target")
    browser.wait_for("input[data-act=target]").send_keys("much", Keys.ENTER)
    browser.wait_text("target")
    browser.wait_for(".gap[role=alert]")
