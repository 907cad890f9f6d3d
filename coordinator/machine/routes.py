"""Through which sites devices are told of a release.

A site's roster is its own word, and several may name a device: on a shared broker all do, and a lying one may. So a
device that stays silent is told through another of them the next time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sojourn.node.machine import Send
from sojourn.protocol.release_messages import Ship
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coordinator.machine.rollout_progress import RolloutProgress
    from coordinator.rollout_records import LineState
    from sojourn.node.machine import Effect

Reach = dict[str, tuple[str, ...]]
"""The devices that each living site names."""
TRIES = 4
"""How often a device is told through one site before another is tried: 15 seconds."""
TOGETHER = 400
"""Devices in one message: with the longest names, and a small release riding along, it fits in any broker's packet."""


def sites_of(devices: Iterable[str], reach: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The sites that name each of these devices, in an order of the device's own: they share the work."""
    wanted = set(devices)
    found: dict[str, list[str]] = {}
    for site, there in reach.items():
        for device in there:
            if device in wanted:
                found.setdefault(device, []).append(site)
    return {device: sorted(sites, key=lambda site: _rank(device, site)) for device, sites in found.items()}


def shipments(line: LineState, devices: Iterable[str], reach: Reach, progress: RolloutProgress) -> list[Effect]:
    """Send to each of these devices that is here the order that it should be under."""
    loads: dict[tuple[str, bool], list[str]] = {}
    for device, sites in sorted(sites_of(devices, reach).items()):
        site = sites[progress.repeats[device] // TRIES % len(sites)]
        progress.via[device] = site
        progress.repeats[device] += _unheard(line, device)
        loads.setdefault((site, device in line.aside), []).append(device)
    effects: list[Effect] = []
    for (site, _), together in sorted(loads.items()):
        cargo = line.cargo_for(together[0])
        for at in range(0, len(together), TOGETHER):
            some = tuple(together[at : at + TOGETHER])
            effects.append(Send(Address("edge", site), Ship(cargo.order, cargo.graph, cargo.card, some)))
    return effects


def _unheard(line: LineState, device: str) -> bool:
    """Whether the device has not said a word of the order that it should be under."""
    report = line.reports.get(device)
    return report is None or report.serial < line.cargo_for(device).read.serial


def _rank(device: str, site: str) -> bytes:
    return hashlib.sha256(f"{device}/{site}".encode()).digest()
