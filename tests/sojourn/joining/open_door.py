"""A real door of a fleet folder on a free port, and devices that use it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers import invitations
from sojourn.brokers.fleet import FleetFile
from sojourn.brokers.invitations import Invitation
from sojourn.brokers.join_server import JoinServer
from sojourn.joining import client
from sojourn.joining.identity import Membership, NodeIdentity
from sojourn.joining.messages import RequestPending, Token, Welcome
from tests.waiting import wait_until

FLEET = "field"
DAY = 86_400.0


class OpenDoor:
    """A running door, whose clock can be shifted by `shift` seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shift = 0.0
        self.reloads = 0
        self.door = JoinServer(folder, "127.0.0.1", 0, self._reload, wall=self.now)

    def now(self) -> float:
        return time.time() + self.shift

    def _reload(self) -> bool:
        self.reloads += 1
        return True

    def invite(self, **settings: object) -> Token:
        given = {"made": self.now(), "ends": self.now() + DAY, "uses": 1} | settings
        with folders.locked(self.folder):
            return invitations.invite(self.folder, msgspec.convert(given, Invitation), self.now())

    def accept(self, *names: str) -> list[str]:
        with folders.locked(self.folder):
            return invitations.accept(self.folder, names or None, self.now())

    def reject(self, *names: str) -> list[str]:
        with folders.locked(self.folder):
            return invitations.reject(self.folder, names or None, self.now())

    def met(self) -> int:
        """The number of open connections."""
        return self.door._open.total()

    def fleet(self) -> FleetFile:
        return folders.read(self.folder)


@contextlib.contextmanager
def open_door(folder: Path) -> Iterator[OpenDoor]:
    """Create a fleet and run its door; the folder contains the door's port."""
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
        folders.write(folder, fleet, folders.password_hashes(folder))
        yield made
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.close()


def ask(token: Token, folder: Path, name: str = "pi-1") -> RequestPending | Welcome:
    """Send the join request of a device with its keys in this folder."""
    return client.join(token, client.fetch_authority(token), NodeIdentity(folder), name, "a board")


def enrol(
    token: Token, folder: Path, name: str = "pi-1", *, accept: Callable[[str], object] | None = None
) -> NodeIdentity:
    """Return a device that has joined."""
    answer = ask(token, folder, name)
    if isinstance(answer, RequestPending):
        assert accept is not None
        accept(answer.name)
        answer = ask(token, folder, name)
    assert isinstance(answer, Welcome)
    identity = NodeIdentity(folder)
    identity.install(answer.certificate, answer.authorities)
    identity.remember(Membership(name=answer.name, host=token.host, port=token.port, stamp=bytes(16)))
    identity.settle()
    return identity
