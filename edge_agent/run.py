"""The running agent: `python -m edge_agent.run <flags as JSON> [file]`, without the command line's libraries.

`sojourn agent run` becomes this process: what is parsed with typer and rich must not stay in a small device's memory.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import msgspec

from edge_agent.agent import Agent
from edge_agent.data import describe
from edge_agent.limits import Limits
from edge_agent.objectives import NAMES
from edge_agent.own_objectives import check
from edge_agent.settings import AgentSettings
from edge_agent.training_process import TrainingProcess
from sojourn import __version__, logs
from sojourn.driver import Driver, run_until_signal
from sojourn.errors import SojournError
from sojourn.mqtt import MqttLink
from sojourn.node import Node
from sojourn.notify import Notifier
from sojourn.overrides import read_settings, store_folder
from sojourn.store import FolderStore
from sojourn.wire import Offer

log = logging.getLogger("sojourn")


def offer(settings: AgentSettings, threads: int) -> Offer:
    """What this device says of itself."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    objectives, data = (*NAMES, *settings.objectives), describe(settings.data)
    return Offer(
        __version__, platform.machine(), _runtime(), threads, memory, objectives, data, shares=settings.shares
    )  # fmt: skip


def assemble(settings: AgentSettings, notifier: Notifier | None = None) -> Driver:
    """An agent on its broker, its folder and its training process; a full disk is no hang to the `notifier`."""
    check(settings.objectives)
    threads = settings.threads or os.cpu_count() or 1
    about = offer(settings, threads)
    log.info("%s: data: %s", settings.name, about.data)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    limits = Limits(settings.limits, folder)
    agent = Agent(settings.name, about, edges=frozenset(settings.edges), objection=limits.objection)
    link = MqttLink(settings.broker, settings.name)
    store = FolderStore(folder)
    training = TrainingProcess(
        folder / "blobs", settings.data, threads=threads, idle_seconds=settings.idle_seconds, limits=limits
    )
    pause = (notifier or Notifier()).nap
    return Driver(Node(settings.fleet, agent, store, {"edge": link}, training, pause=pause))


def main(flags: str, file: str | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    given = msgspec.json.decode(flags, type=dict)
    logs.set_up(verbose=given.pop("verbose", False))
    try:
        notifier = Notifier.from_environment()
        run_until_signal(assemble(read_settings(file, given, AgentSettings), notifier), notifier)
    except SojournError as error:
        return logs.complain(error)
    return 0


def _runtime() -> str:
    """The version of onnxruntime, without loading it."""
    try:
        return f"onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
