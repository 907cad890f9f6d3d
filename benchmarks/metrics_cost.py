"""The cost of metrics: the coordinator's work on a round with a scrape every second, and a scrape of a large fleet.

python -m benchmarks.metrics_cost [--turns 10] [--devices 5000]

A round: the processor time of a coordinator for a round of FedAvg with four devices, as a process next to an edge
server and the devices on a real Mosquitto, from a job's submission to its end; one with a port that is scraped every
second, and one without, in turns, so that other load affects both.
A scrape: of a coordinator in this process with N devices, a job and a rollout to all of them: the time on the node's
thread (without changes, and after a change of every device), the total time over HTTP, and the number of series and
bytes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.idle_agent import processor_seconds
from sojourn.metrics.catalogue import Reading
from sojourn.metrics.serving import NodeMetrics, metrics_served
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.operator_messages import Submit
from sojourn.store.journal import MemoryStore
from tests.coordinator.machine.cloud_bench import OPERATOR, text
from tests.coordinator.machine.rollout_bench import RolloutBench
from tests.live.live_fleet import LiveFleet
from tests.sojourn.brokers.guarded_broker import free_ports
from tests.sojourn.metrics.silent_link import SilentLink

if TYPE_CHECKING:
    from coordinator.machine.coordinator import Coordinator

ROUNDS, EVERY = 20, 1.0


class Scraper:
    """Request the page every second, like Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self.scrapes = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            scrape(self._port)
            self.scrapes += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        found: bytes = answer.read()
        return found


class PlainFleet(LiveFleet):
    """Four devices, an edge server and a coordinator as real processes; the coordinator optionally has a port."""

    def __init__(self, folder: Path, *, port: int | None) -> None:
        folder.mkdir()
        flags = ("--metrics-port", str(port)) if port else ()
        devices = [f"pi-{number}" for number in range(1, 5)]
        super().__init__(folder, {"edge-1": devices}, own_brokers=False, cloud_flags=flags)

    def processor(self) -> float:
        """Return the coordinator's CPU seconds so far."""
        return processor_seconds([self.processes["cloud"].pid])


def rounds(folder: Path, turns: int) -> tuple[dict[str, list[float]], int]:
    """Return milliseconds of the coordinator's processor time for a round, in each turn, and the number of scrapes."""
    found: dict[str, list[float]] = {"scraped": [], "without": []}
    (port,), scrapes = free_ports(1), 0
    fleets = {what: PlainFleet(folder / what, port=port if what == "scraped" else None) for what in found}
    try:
        for turn in range(turns + 1):
            for what in ("scraped", "without") if turn % 2 else ("without", "scraped"):
                job = (
                    f'name = "job-{turn}"\nstrategy = "fedavg"\nrounds = {ROUNDS}\nthreads = 1\ndata.test = "digits"\n'
                )
                job += "model.options.hidden = [16]\nfleet.devices = 4\ntraining.lr = 0.02\n"
                scraper = Scraper(port) if what == "scraped" else None
                before = fleets[what].processor()
                view = fleets[what].run(job, f"job-{turn}")
                if view.status != "done" or any(report.tours != 4 for report in view.history):
                    raise SystemExit(f"{view.detail} {[report.failures for report in view.history]}")
                if turn:
                    found[what].append(1e3 * (fleets[what].processor() - before) / ROUNDS)
                if scraper:
                    scraper.close()
                    scrapes += scraper.scrapes
    finally:
        for fleet in fleets.values():
            fleet.stop()
    return found, scrapes


class LargeBench(RolloutBench):
    """A coordinator with many devices, without the slow comparison with a twin."""

    def replayed(self, cut: int = 0) -> Coordinator:  # noqa: ARG002  # the signature is the bench's
        return self.cloud


def large(devices: int) -> LargeBench:
    """Return a coordinator with all devices online, selected by a job, and half of them in a rollout."""
    bench = LargeBench([f"device-{number:05}" for number in range(devices)])
    bench.receive(OPERATOR, Submit("t", text("job")))
    bench.compile()
    bench.plan()
    bench.begin(stages=(1.0,))
    for device in list(bench.line().members)[::2]:
        bench.report(device, 1)
    return bench


def held(bench: LargeBench, times: int = 20) -> tuple[float, float]:
    """Return milliseconds on the node's thread to read the metrics: unchanged, and after all devices have changed."""
    metrics, same, changed = bench.cloud.metrics(), [], []
    now = time.time()
    for turn in range(times):
        bench.cloud.sites._forget()  # noqa: SLF001  # as if a roster had come
        bench.cloud.sites.here()
        bench.cloud._rollouts.revisions["l"] += 1  # noqa: SLF001  # as if a device had reported
        for found in (changed, same):
            begun = time.perf_counter()
            reading = Reading()
            for each in metrics:
                each.read(reading, now + turn)
            found.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(same), statistics.median(changed)


def served(bench: LargeBench, folder: Path, times: int = 20) -> tuple[float, float, int, int]:
    """Return milliseconds of a scrape over HTTP, its processor time (with the client's), its series and its bytes."""
    link = SilentLink()
    node = Node("f", bench.cloud, MemoryStore(), {"edge": link, "cloud": link}, InlineWorkers(lambda _: None))
    driver, (port,), taken, used = Driver(node), free_ports(1), list[float](), list[float]()
    # It does not run jobs: only the requests run on its thread.
    for name in ("start", "tick", "close", "will", "wake_at"):
        setattr(node, name, lambda *_how: None)
    sources = NodeMetrics(driver, lambda: bench.cloud.unanswered), *bench.cloud.metrics()
    with metrics_served(port, driver, sources, folder, {}):
        running = threading.Thread(target=driver.run)
        running.start()
        for _ in range(times):
            time.sleep(0.3)  # avoids the cached reply
            begun, before = time.perf_counter(), time.process_time()
            page = scrape(port)
            taken.append(1e3 * (time.perf_counter() - begun))
            used.append(1e3 * (time.process_time() - before))
        driver.stop()
        running.join()
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    return statistics.median(taken), statistics.median(used), series, len(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--devices", type=int, default=5000)
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for devices in (10, asked.devices):
            bench = large(devices)
            same, changed = held(bench)
            print(f"{devices} devices: the node's thread is held for {same:.2f} ms, {changed:.2f} ms after all changed")
            whole, used, series, size = served(bench, folder)
            what = f"{whole:.1f} ms, {used:.1f} ms of processor time; {series} series, {size} bytes"
            print(f"{devices} devices: a scrape takes {what}", flush=True)
        found, scrapes = rounds(folder, asked.turns)
        for what, times in found.items():
            row = " ".join(f"{each:.2f}" for each in times)
            print(f"the coordinator, ms of processor time for a round, {what}: {statistics.median(times):.2f}; {row}")
        scraped, without = (statistics.median(found[what]) for what in ("scraped", "without"))
        print(f"with / without: {scraped / without:.3f} (reach 1.05, with the page); {scrapes} scrapes")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
