"""Describe a round's failures, and the devices that were skipped or are missing, as lines of text."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sojourn.parts import name_of
from sojourn.protocol.task import asked, asked_for

if TYPE_CHECKING:
    from coordinator.rounds.planning import PlanRound


MAX_LINES_SIZE = 8_000
"""Maximum bytes for the lines of a report, so that it fits in any broker's packet with a page of tours."""
MAX_NAMES_LENGTH = 2_000
"""Maximum characters for the names in one line; further devices are counted."""

MAX_SENTENCE_LENGTH = 1_000
"""Maximum characters for all causes in one sentence."""


class Failure(NamedTuple):
    """A failed visit or tour: its device or site, the full reason, and the number of lost visits."""

    name: str
    reason: str
    visits: int = 1


def grouped(failures: Iterable[Failure]) -> list[str]:
    """Return a line for each reason, in order of first occurrence, with all devices and sites that it affected."""
    affected: dict[str, Counter[str]] = {}
    for each in failures:
        affected.setdefault(each.reason, Counter())[each.name] += 1
    return [_line(counts, reason) for reason, counts in affected.items()]


def _line(counts: Counter[str], reason: str) -> str:
    affected_names = sorted(counts)
    if len(affected_names) > 1:
        kind = "sites" if affected_names[0].startswith("site ") else "devices"
        return f"{len(affected_names)} {kind} ({names(affected_names)}): {reason}"
    (name, times) = next(iter(counts.items()))
    return f"{name}: {reason} ({times} times)" if times > 1 else f"{name}: {reason}"


def names(items: Sequence[str], room: int = MAX_NAMES_LENGTH) -> str:
    """List names as far as they fit; the others are counted."""
    shown, length = [], 0
    for name in items:
        length += len(name) + 2
        if length > room:
            break
        shown.append(name)
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def in_a_sentence(problem: str, lines: Iterable[str]) -> str:
    """Return a problem with its causes, in one sentence that fits on a screen."""
    causes = list(lines)
    text = "; ".join(causes)
    if len(text) > MAX_SENTENCE_LENGTH:
        text = f"{text[:MAX_SENTENCE_LENGTH]}… ({len(causes)} causes)"
    return f"{problem}: {text}" if text else problem


def within_room(lines: Iterable[str], job: str) -> tuple[str, ...]:
    """Return the lines that fit, each whole and none twice; a last line counts those that were omitted."""
    shown: list[str] = []
    left_out = used = 0
    for line in dict.fromkeys(lines):
        used += len(line.encode())
        if shown and used > MAX_LINES_SIZE:
            left_out += 1
        else:
            shown.append(line)
    return (*shown, f"and {left_out} more like these: sojourn job visits {job}") if left_out else tuple(shown)


MAX_DEVICE_NAMES_LENGTH = 400
"""Maximum characters for the names of devices in one sentence; the others are counted."""
MAX_NAMED = 10
"""Maximum offline devices listed by name, the most recent first; the others are counted."""


def too_few(work: PlanRound, here: Sequence[str]) -> str | None:
    """Return why the online devices are not enough for the job to begin or continue, or None."""
    wanted, count = work.state.settings.fleet.devices, len(here)
    if work.state.begun:
        return None if here else f"no online device can do the job{_idle(work)}{offline_since(work)}"
    if count >= wanted:
        return None
    name = f" ({names(here, MAX_DEVICE_NAMES_LENGTH)})" if here else ""
    needed = f"{wanted} devices are needed to begin; {counted(here)} online{name}{_idle(work)}{offline_since(work)}"
    if not here:
        return needed
    command = f"sojourn job continue {work.state.name} --devices {count}"
    return f"{needed}. With fleet.devices = {count} it can begin with these ({command})"


def _idle(work: PlanRound) -> str:
    """List online devices that the job cannot use."""
    return "".join(f"; {line}" for line in skipped_devices(work, ()))


def skipped_devices(work: PlanRound, unestimated: Sequence[str]) -> list[str]:
    """List online devices that do not take part, and why; `unestimated` are those that could not be estimated."""
    settings, strategy, lines = work.state.settings, work.state.strategy, []
    if work.requiring_signature:
        reason = f"they require a signed job: sojourn job sign {work.state.name}"
        lines.append(left_out(reason, work.requiring_signature))
    if unable := [device for device in work.unable if device not in {*work.requiring_signature}]:
        asks, outcome = (*work.state.asks, *asked_for(strategy.objective)), strategy.objective.outcome
        words = ", ".join(sorted(asked(settings.encoding, strategy.training, strategy.estimator, asks, outcome)))
        update = f"update their agents{' and edge servers' if asks or outcome != 'one model' else ''}"
        reason = f"they do not offer what the job requires (objective {name_of(strategy.objective)}, {words}); {update}"
        lines.append(left_out(reason, unable))
    if work.unwilling:
        word = strategy.objective.consent or "class-counts"
        reason = f'their owners do not share what it requires; set shares = ["{word}"] in their agent.toml'
        lines.append(left_out(reason, work.unwilling))
    if unestimated:
        lines.append(left_out("they could not be estimated", unestimated))
    return lines


def left_out(reason: str, devices: Sequence[str]) -> str:
    """Return a line about online devices that do not take part."""
    return f"skipped, {reason}: {names(devices, MAX_DEVICE_NAMES_LENGTH)}"


def offline_since(work: PlanRound) -> str:
    """List the devices that were online before, and since when they are offline."""
    of_job = {device: at for device, at in work.offline.items() if device in work.state.fleet}
    devices = of_job if work.state.begun else work.offline
    newest = sorted(devices, key=lambda device: (-devices[device], device))
    if not newest:
        return ""
    listed = ", ".join(f"{device} (since {moment(devices[device])})" for device in newest[:MAX_NAMED])
    more = f" and {len(newest) - MAX_NAMED} more: sojourn fleet status" if len(newest) > MAX_NAMED else ""
    return f"; offline: {listed}{more}"


def moment(at: float) -> str:
    """Format a time for people."""
    return f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M} UTC"


def counted(devices: Sequence[str]) -> str:
    """Return the number of devices with the verb."""
    return f"{len(devices)} are" if len(devices) > 1 else "1 is" if devices else "none is"
