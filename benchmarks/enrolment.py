"""A hundred devices join: each creates keys and requests a certificate, one command accepts all, each fetches its own.

python -m benchmarks.enrolment [--devices 100]

The door is a real, separate process, and every device is a folder with its own keys. All requests come from
this process, several at a time, over TLS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sojourn.brokers import fleet as folders
from sojourn.errors import LinkError
from sojourn.joining import client
from sojourn.joining.identity import NodeIdentity
from sojourn.joining.messages import RequestPending, Token, Welcome, read_token
from tests.sojourn.brokers.guarded_broker import free_ports

AT_ONCE = 8


def sojourn(*arguments: object) -> str:
    command = [sys.executable, "-m", "sojourn.cli", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def join_with_retries(token: Token, folder: Path) -> RequestPending | Welcome:
    """Send a request like a device: repeat it if the server has too many connections."""
    while True:
        try:
            return client.join(token, client.fetch_authority(token), NodeIdentity(folder), "board", "benchmark")
        except LinkError:
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100)
    count = parser.parse_args().devices
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as many:
        fleet, (certificates, local, port) = Path(name) / "fleet", free_ports(3)
        ports = ["--certificate-port", certificates, "--local-port", local, "--door-port", port]
        sojourn("fleet", "init", "--host", "localhost", *ports, "--fleet-folder", fleet)
        at = ["--fleet-folder", fleet, "--reload", "true"]
        door = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", "fleet", "door", "--host", "127.0.0.1", *map(str, at)],
            stderr=subprocess.DEVNULL,
        )
        try:
            begun = time.monotonic()
            line = sojourn("fleet", "invite", "--count", count, "--prefix", "board", "--fleet-folder", fleet)
            token = read_token(line.split()[0])
            devices = [Path(name) / f"device-{number}" for number in range(count)]
            asked = list(many.map(lambda folder: join_with_retries(token, folder), devices))
            waiting = time.monotonic()
            sojourn("fleet", "accept", "--all", *at)
            accepted = time.monotonic()
            answers = list(many.map(lambda folder: join_with_retries(token, folder), devices))
            done = time.monotonic()
        finally:
            door.terminate()
            door.wait()
        names = {answer.name for answer in answers if isinstance(answer, Welcome)}
        members = folders.read(fleet).named("device")
    print(f"{sum(isinstance(each, RequestPending) for each in asked)} asked in {waiting - begun:.1f} s")
    print(f"accepted with one command in {accepted - waiting:.1f} s")
    print(f"{len(names)} have their certificates, {done - accepted:.1f} s later; {len(members)} members")
    print(f"in all {done - begun:.1f} s (reach 60)")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
