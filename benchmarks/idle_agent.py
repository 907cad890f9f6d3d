"""Memory and processor time of an idle agent, with the unit's command and environment.

python -m benchmarks.idle_agent [--minutes 10] [--mandate] [--metrics]

It is connected to a Mosquitto with an edge server, has limits to check, trusts a release key and serves a release, so
all its parts are active; it has done one visit. With --mandate it has operators' keys, and the visit was of a signed
job. With --metrics it has a port for Prometheus, which is scraped every 15 seconds. Processor time is that of the
process and its children, from /proc.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from benchmarks.agent_memory import PROC, sample, tree
from coordinator.console.signing import Terms, give, prepared
from coordinator.jobs.data import digits_split
from coordinator.releases.orders import orders_for
from sojourn.protocol.release import HealthRules
from sojourn.protocol.signing import Signer
from tests.live.live_fleet import FLEET, LiveFleet
from tests.live.release_goods import digits_release
from tests.sojourn.brokers.guarded_broker import free_ports

UNIT = Path(__file__).parents[1] / "deploy" / "device" / "sojourn-agent.service"
SETTLE = 30.0
PAUSE, SCRAPED = 5.0, 3
"""Seconds between two samples, and after how many of them it is scraped."""
JOB = 'name = "one"\nrounds = 1\nstrategy = "fedavg"\ndata.test = "digits"\n'


def unit() -> tuple[list[str], dict[str, str]]:
    """Return the arguments of the unit's command, and its environment variables."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    command = next(shlex.split(value) for key, _, value in lines if key == "ExecStart")
    added = [value.partition("=") for key, _, value in lines if key == "Environment"]
    return command[1:-1], {name: value for name, _, value in added}


def processor_seconds(pids: list[int]) -> float:
    """Return the time used so far by these processes and their ended children."""
    used = 0
    for pid in pids:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        used += sum(int(field) for field in fields[11:15])
    return used / os.sysconf("SC_CLK_TCK")


def start(folder: Path, fleet: LiveFleet, key: Path, *, mandate: bool, port: int) -> subprocess.Popen[bytes]:
    """Start the agent like systemd; with operators' keys, if mandates are requested."""
    x, y = digits_split(train=True)
    np.savez(folder / "data.npz", x=x, y=y)
    file = folder / "agent.toml"
    broker = fleet.brokers["cloud"]
    file.write_text(
        f'name = "one"\nfleet = "{FLEET}"\nstore = "{folder / "one"}"\nmetrics_port = {port}\n'
        f'[broker]\nhost = "{broker.host}"\nport = {broker.port}\n[data]\npath = "{folder / "data.npz"}"\n'
        f'[release]\nkey_file = "{key}"\n[limits]\nthrottle_at = 70\nstop_at = 80\nfree_memory = 64\nfree_disk = 256\n'
        + (f'[mandate]\nkeys_file = "{key}"\n' if mandate else "")
    )
    words, added = unit()
    plain = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    return subprocess.Popen([sys.executable, "-m", "sojourn.cli", *words, file], env=plain | added)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mandate", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        signer = Signer.generate(folder / "release.key")
        (folder / "release.pub").write_text(signer.public)
        key = folder / "release.pub"
        flags = ("--mandate-keys", str(key)) if asked.mandate else ()
        fleet = LiveFleet(folder, {"edge-1": ["one"]}, own_brokers=False, cloud_flags=flags)
        fleet.kill("one")  # the broker knows its name; the measured agent is the unit's
        port = free_ports(1)[0] if asked.metrics else 0
        process = start(folder, fleet, key, mandate=asked.mandate, port=port)
        try:
            with fleet.operator() as operator:
                operator.jobs(timeout=60)
                operator.submit(JOB)
                if asked.mandate:
                    give(operator, prepared(operator, "one", JOB, Terms("ann"), lambda _step: None), signer)
                fleet.wait(lambda: operator.job("one").status == "done", "the visit")
                release = digits_release(1)
                forward, back = orders_for(release, None, FLEET, signer)
                operator.rollout(forward, back, release, (1.0,), HealthRules(soak=0))
                fleet.wait(lambda: operator.releases("digits")[0].status == "done", "the release on the device")
            time.sleep(SETTLE)
            before, begun = processor_seconds(tree(process.pid)), time.monotonic()
            taken = []
            while time.monotonic() - begun < 60 * asked.minutes:
                time.sleep(PAUSE)
                taken.append(sample(process.pid))
                if port and len(taken) % SCRAPED == 0:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").close()
            used, passed = processor_seconds(tree(process.pid)) - before, time.monotonic() - begun
        finally:
            process.terminate()
            process.wait()
            fleet.stop()
    pss, alone = ([each[number] for each in taken] for number in (0, 1))
    print(f"{passed / 60:.0f} minutes, {len(taken)} samples, {max(each.processes for each in taken)} process")
    middle = statistics.median(pss)
    print(f"summed PSS median {middle:.1f} MB, most {max(pss):.1f} MB (reach 65); alone {max(alone):.1f} MB")
    print(f"processor {used:.2f} s: {100 * used / passed:.3f} % of one core (reach 0.5)")


if __name__ == "__main__":
    main()
