"""The cost of the page, and its delay.

Run from the root: python -m benchmarks.web_page live|large. Both need Mosquitto, and Debian's chromium and its driver.
`live`: twelve agents as processes; the time from a record in the coordinator's journal to the browser, and the
coordinator's CPU for a round with and without an open page, ten turns. `large`: a real coordinator and 2,000 simulated
devices; first paint relative to an empty page of the same library, memory and CPU of the web process.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.played_site import RunningSite
from coordinator.console.operator import Operator
from fleet_sim.demo import fleet as demo_fleet
from fleet_sim.demo.fleet import make_key
from fleet_sim.demo.processes import Processes
from sojourn.brokers.local_broker import start_broker
from sojourn.links.settings import LocalBroker
from tests.fleet_web.browser import chromium, web

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.links.settings import BrokerSettings
    from tests.fleet_web.browser import Browser

TURNS, ROUNDS = 10, 12
DEVICES = 2000
EMPTY = """
from fastapi import FastAPI
from nicegui import ui
import sys, uvicorn
@ui.page("/")
def empty():
    ui.label("empty")
app = FastAPI()
ui.run_with(app, tailwind=False, show_welcome_message=False)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""
LARGE_JOB = """
name = "large"
strategy = "fedavg"
rounds = 100000
threads = 1
[model]
options = { hidden = [16] }
[data]
test = "digits"
[arranger]
fraction = 0.05
"""
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WATCH = """
window.shown = [];
const table = [...document.querySelectorAll('.table-frame')].at(-1);
const look = () => {
  const text = table.querySelector('tbody tr td:last-child')?.textContent ?? '';
  const found = /demo round (\\d+)/.exec(text);
  const last = window.shown.at(-1);
  if (found && (!last || last[0] !== Number(found[1]))) window.shown.push([Number(found[1]), Date.now() / 1000]);
};
new MutationObserver(look).observe(table, {subtree: true, childList: true, characterData: true});
"""


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its threads, as counted by the scheduler."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> float:
    """Return the MB in RAM, and the private ones."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def child(words: str) -> int:
    """Return our process whose command line contains these words."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if words in line and parent == os.getpid():
            return int(folder.name)
    raise SystemExit(f"there is no process {words!r}")


@contextmanager
def live_fleet(folder: Path, rounds: int) -> Iterator[tuple[BrokerSettings, Operator, int]]:
    """A broker, a coordinator, two edge servers and twelve agents, each a process, at a long job."""
    demo = demo_fleet.Demo(
        devices=12, edges=2, rounds=rounds, target=None, strategy="visit", alpha=0.3, seed=1, brokers="one"
    )
    demo_fleet.deal_out(demo, folder)
    make_key(folder)
    with ExitStack() as stack:
        broker = stack.enter_context(demo_fleet.start_demo_broker(demo, demo_fleet.CLOUD, folder))
        processes = stack.enter_context(Processes(folder))
        brokers = {demo_fleet.CLOUD: broker}
        demo_fleet.start_servers(demo, brokers, processes, folder)
        operator = stack.enter_context(Operator(broker.settings, fleet=demo_fleet.FLEET, cloud=demo_fleet.CLOUD))
        demo_fleet.await_coordinator(operator, processes)
        operator.submit(demo_fleet.job_file(demo, folder))
        demo_fleet.start_agents(demo, brokers, processes, folder)
        wait_for_round(operator, 5)
        yield broker.settings, operator, child("coordinator run")


def wait_for_round(operator: Operator, number: int) -> None:
    while operator.jobs()[-1].round < number:
        time.sleep(0.5)


def connection(settings: BrokerSettings, fleet: str) -> list[str]:
    return ["--broker", f"{settings.host}:{settings.port}", "--fleet", fleet]


def measure_turns(browser: Browser, address: str, operator: Operator, pid: int) -> list[tuple[float, float]]:
    """Return CPU milliseconds of the coordinator for a round, without and with the page, in turns.

    Without: the web process is stopped.
    """
    page_pid = child("sojourn.cli web")
    found = []
    for turn in range(TURNS):
        pair = {}
        for page in (False, True) if turn % 2 == 0 else (True, False):
            browser.open("about:blank")
            os.kill(page_pid, signal.SIGCONT if page else signal.SIGSTOP)
            if page:
                browser.open(f"{address}/")
                browser.wait_text("demo round")
            time.sleep(1.5)
            first, used = operator.jobs()[-1].round, cpu(pid)
            wait_for_round(operator, first + ROUNDS)
            done = operator.jobs()[-1].round - first
            pair[page] = 1000 * (cpu(pid) - used) / done
            os.kill(page_pid, signal.SIGCONT)
        found.append((pair[False], pair[True]))
        print(f"turn {turn + 1}: {pair[False]:.1f} ms for a round without, {pair[True]:.1f} with", flush=True)
    return found


def measure_delay(browser: Browser, address: str, operator: Operator, seconds: float) -> list[float]:
    """Return seconds from a round's record to the browser."""
    browser.open(f"{address}/")
    browser.wait_text("demo round")
    browser.js(WATCH)
    time.sleep(seconds)
    shown: list[list[float]] = browser.js("return window.shown")
    ended = {it.round: it.at for it in operator.visits(last=12 * 400) if it.phase == "train"}
    return [at - ended[number] for number, at in ((int(number), at) for number, at in shown[1:]) if number in ended]


def live() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        live_fleet(Path(folder), 5000) as (settings, operator, pid),
        web(*connection(settings, demo_fleet.FLEET)) as address,
        chromium() as browser,
    ):
        delays = sorted(measure_delay(browser, address, operator, 30.0))
        print(
            f"journal to browser, {len(delays)} rounds: median {statistics.median(delays):.2f} s, "
            f"95 % {delays[int(0.95 * len(delays))]:.2f} s, longest {delays[-1]:.2f} s"
        )
        used = cpu(child("sojourn.cli web"))
        began = time.monotonic()
        turns = measure_turns(browser, address, operator, pid)
        took = time.monotonic() - began
        without, with_page = (statistics.median(pair[at] for pair in turns) for at in (0, 1))
        ratios = sorted(pair[1] / pair[0] for pair in turns)
        whole = sum(pair[1] for pair in turns) / sum(pair[0] for pair in turns)
        print(
            f"coordinator, CPU for a round: {without:.1f} ms without, {with_page:.1f} with: {with_page / without:.3f} x"
        )
        print(
            f"turn by turn: {ratios[0]:.2f} to {ratios[-1]:.2f} x, median {statistics.median(ratios):.3f}; "
            f"all together {whole:.3f}"
        )
        print(f"the web process: {100 * (cpu(child('sojourn.cli web')) - used) / took:.1f} % of a core meanwhile")


def paints(browser: Browser, pages: dict[str, str], times: int = 11) -> dict[str, tuple[float, float]]:
    """Return, by address, milliseconds to the first paint and until these words are visible: medians after the first.

    The pages run in turns, so that other load affects all of them.
    """
    first: dict[str, list[float]] = {address: [] for address in pages}
    seen: dict[str, list[float]] = {address: [] for address in pages}
    for _ in range(times):
        for address, words in pages.items():
            browser.open("about:blank")
            browser.open(address)
            browser.wait_text(words)
            seen[address].append(browser.js("return performance.now()"))
            first[address].append(browser.wait(lambda: browser.js(PAINT), "the first paint"))
    return {each: (statistics.median(first[each][1:]), statistics.median(seen[each][1:])) for each in pages}


@contextmanager
def empty_page() -> Iterator[str]:
    port = 18_931
    process = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)], cwd=tempfile.gettempdir())
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def large(devices: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(start_broker(LocalBroker(kind="mosquitto"), folder / "broker"))
        settings = broker.settings
        processes = stack.enter_context(Processes(folder))
        where = f"{settings.host}:{settings.port}"
        processes.start("cloud", "coordinator", "run", "--broker", where, "--store", str(folder / "cloud"))
        operator = stack.enter_context(Operator(settings, fleet="sojourn", cloud="cloud"))
        demo_fleet.await_coordinator(operator, processes)
        stack.enter_context(RunningSite(settings, "sojourn", "hall", devices, folder / "hall"))
        while sum(it.online for it in operator.devices()[0]) < devices:
            time.sleep(0.5)
        operator.submit(LARGE_JOB)
        wait_for_round(operator, 1)
        address = stack.enter_context(web(*connection(settings, "sojourn")))
        pid, browser = child("sojourn.cli web"), stack.enter_context(chromium())
        bare = stack.enter_context(empty_page())
        found = paints(browser, {bare: "empty", f"{address}/": "device-50"})
        (plain, plain_seen), (page, seen) = found.values()
        print(f"first paint: {page:.0f} ms, of an empty page {plain:.0f} ms: {page / plain:.2f} x")
        print(f"first rows of {devices:,} devices: {seen:.0f} ms, text of an empty page {plain_seen:.0f} ms")
        first, used, began = operator.jobs()[-1].round, cpu(pid), time.monotonic()
        cloud, before = child("coordinator run"), cpu(child("coordinator run"))
        time.sleep(30.0)
        took, rounds = time.monotonic() - began, operator.jobs()[-1].round - first
        print(
            f"30 s with the page open: {rounds} rounds of {devices // 20} visits; web process "
            f"{100 * (cpu(pid) - used) / took:.1f} % of a core and {memory(pid):.0f} MB, coordinator "
            f"{100 * (cpu(cloud) - before) / took:.1f} % of a core"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("live", "large"))
    parser.add_argument("--devices", type=int, default=DEVICES)
    given: Any = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    live() if given.what == "live" else large(given.devices)


if __name__ == "__main__":
    main()
