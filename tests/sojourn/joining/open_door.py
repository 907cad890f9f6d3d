"""A real door of a fleet's folder, on a port of its own, and devices that come to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers import joining
from sojourn.brokers.door import Door
from sojourn.brokers.fleet import FleetFile
from sojourn.brokers.joining_file import Invitation
from sojourn.joining import asking
from sojourn.joining.identity import Membership, NodeIdentity
from sojourn.joining.token import Token
from sojourn.joining.words import RequestNoted, Welcome
from tests.waiting import wait_until

FLEET = "field"
DAY = 86_400.0


class OpenDoor:
    """A door that is open; its clock is `shift` seconds off, as if it were another day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shift = 0.0
        self.reloads = 0
        self.door = Door(folder, "127.0.0.1", 0, self._reload, wall=self.now)

    def now(self) -> float:
        return time.time() + self.shift

    def _reload(self) -> bool:
        self.reloads += 1
        return True

    def invite(self, **said: object) -> Token:
        given = {"made": self.now(), "ends": self.now() + DAY, "uses": 1} | said
        with folders.alone(self.folder):
            return joining.invite(self.folder, msgspec.convert(given, Invitation), self.now())

    def accept(self, *names: str) -> list[str]:
        with folders.alone(self.folder):
            return joining.accept(self.folder, names or None, self.now())

    def reject(self, *names: str) -> list[str]:
        with folders.alone(self.folder):
            return joining.reject(self.folder, names or None, self.now())

    def met(self) -> int:
        """How many connections the door serves now."""
        return self.door._open.total()

    def fleet(self) -> FleetFile:
        return folders.read(self.folder)


@contextlib.contextmanager
def open_door(folder: Path) -> Iterator[OpenDoor]:
    """A new fleet with an open door; its folder knows the door's port."""
    if not (folder / folders.FLEET_FILE).exists():
        folders.create(folder, FleetFile(fleet=FLEET, hosts=("localhost",)), signed_here=True)
    made, loop = OpenDoor(folder), asyncio.new_event_loop()
    serving = loop.create_task(made.door.serve())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: made.door.port, "the door to open")
        fleet = msgspec.structs.replace(folders.read(folder), door=made.door.port)
        folders.write(folder, fleet, folders.hashes_of(folder))
        yield made
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()


def ask(token: Token, folder: Path, name: str = "pi-1") -> RequestNoted | Welcome:
    """What a device with its keys in this folder is answered."""
    return asking.join(token, asking.authority_of(token), NodeIdentity(folder), name, "a board")


def enrol(
    token: Token, folder: Path, name: str = "pi-1", *, accept: Callable[[str], object] | None = None
) -> NodeIdentity:
    """A device that joins, all the way."""
    answer = ask(token, folder, name)
    if isinstance(answer, RequestNoted):
        assert accept is not None
        accept(answer.name)
        answer = ask(token, folder, name)
    assert isinstance(answer, Welcome)
    identity = NodeIdentity(folder)
    identity.install(answer.certificate, answer.authorities)
    identity.remember(Membership(name=answer.name, host=token.host, port=token.port, stamp=bytes(16)))
    identity.settle()
    return identity
