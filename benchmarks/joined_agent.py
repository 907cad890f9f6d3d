"""Memory of an idle agent that enrolled with its own keys, compared with one with a bundle, both over TLS.

python -m benchmarks.joined_agent [--seconds 60]

Both trust the fleet's release key, which a bundle and a token include, and run with the unit's command and environment,
on one Mosquitto with certificates. The enrolled one signs, and has checked its renewal (in a process that has ended by
then). PSS is of the agent's process only, while both run.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from benchmarks.agent_memory import sample
from benchmarks.idle_agent import unit
from coordinator.admin.credentials import agent_bundle
from edge_agent.joining import write_settings
from sojourn.brokers import fleet as folders
from sojourn.joining.identity import Membership, NodeIdentity
from sojourn.joining.messages import Welcome
from tests.sojourn.brokers.guarded_broker import GuardedBroker
from tests.sojourn.joining.open_door import ask, open_door

if TYPE_CHECKING:
    from tests.sojourn.joining.open_door import OpenDoor

SETTLE = 20.0


def bundled(folder: Path, broker: GuardedBroker) -> Path:
    """Create a device with a bundle and return its settings."""
    fleet, secret = folders.admit(broker.folder, "bundled", "device", "certificate")
    (folder / "bundled").mkdir()
    for name, data in agent_bundle(broker.folder, fleet, "bundled", secret, str(folder / "data.npz")).items():
        (folder / "bundled" / name).write_bytes(data)
    return folder / "bundled" / "agent.toml"


def joined(folder: Path, door: OpenDoor) -> Path:
    """Create a device that has joined and return its settings."""
    token, identity = door.invite(name="joined", authorised=True), NodeIdentity(folder / "joined" / "identity")
    welcome = ask(token, identity.folder, "joined")
    if not isinstance(welcome, Welcome):
        raise SystemExit("it was not let in")
    identity.install(welcome.certificate, welcome.authorities)
    identity.remember(Membership(name="joined", host=token.host, port=token.port, stamp=bytes(16)))
    file = folder / "joined" / "agent.toml"
    write_settings(file, identity, welcome, {"path": str(folder / "data.npz")}, None)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    words, added = unit()
    plain = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    found: dict[str, list[float]] = {"bundled": [], "joined": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw = np.random.default_rng(1)
        np.savez(folder / "data.npz", x=draw.random((200, 1, 8, 8), np.float32), y=draw.integers(0, 10, 200))
        broker = GuardedBroker(folder / "fleet", passwords=False)
        with open_door(folder / "fleet") as door:
            files = {"bundled": bundled(folder, broker), "joined": joined(folder, door)}
            with broker:
                agents = {
                    what: subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "sojourn.cli",
                            *words,
                            str(file),
                            "--store",
                            str(folder / f"{what}-store"),
                        ],
                        env=plain | added,
                    )
                    for what, file in files.items()
                }
                time.sleep(SETTLE)
                until = time.monotonic() + asked.seconds
                while time.monotonic() < until:
                    for what, agent in agents.items():
                        found[what].append(sample(agent.pid).pss)
                    time.sleep(2)
                seen = msgspec.json.decode((folder / "fleet" / "joining.json").read_bytes())["seen"]
                for agent in agents.values():
                    agent.send_signal(signal.SIGTERM)
                for agent in agents.values():
                    agent.wait()
    if "joined" not in seen:
        raise SystemExit("the agent that joined has not looked at the door")
    for what, sizes in found.items():
        print(f"{what}: PSS median {statistics.median(sizes):.1f} MB, most {max(sizes):.1f} MB, {len(sizes)} samples")
    more = statistics.median(found["joined"]) - statistics.median(found["bundled"])
    print(f"more with keys: {more:.1f} MB (reach 5); load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
