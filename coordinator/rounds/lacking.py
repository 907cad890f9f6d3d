"""Who is lacking in a round, and who is here and takes no part: sentences with names, and with what to do about it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from coordinator.rounds.failure_lines import names
from sojourn.parts import name_of
from sojourn.protocol.abilities import asked, asked_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.rounds.planning import PlanRound

NAMES_ROOM = 400
"""Characters for the names of devices in one sentence; the others are counted."""
NAMED = 10
"""At most this many devices that are gone are named, those that went last first; the others are counted."""


def too_few(work: PlanRound, here: Sequence[str]) -> str | None:
    """Why the devices that are here are not enough for the job to begin, or to go on; None if they may be."""
    wanted, count = work.state.settings.fleet.devices, len(here)
    if work.state.begun:
        return None if here else f"no device is here that can do the job{_idle(work)}{away(work)}"
    if count >= wanted:
        return None
    who = f" ({names(here, NAMES_ROOM)})" if here else ""
    needed = f"{wanted} devices are needed to begin; {counted(here)} here{who}{_idle(work)}{away(work)}"
    if not here:
        return needed
    command = f"sojourn job continue {work.state.name} --devices {count}"
    return f"{needed}. With fleet.devices = {count} it would begin with these ({command})"


def _idle(work: PlanRound) -> str:
    """Who is here and is of no use to the job."""
    return "".join(f"; {line}" for line in left_aside(work, ()))


def left_aside(work: PlanRound, mute: Sequence[str]) -> list[str]:
    """Who is here and takes no part, and why; `mute` are those that could not be estimated."""
    settings, strategy, lines = work.state.settings, work.state.strategy, []
    if work.demanding:
        why = f"they do only what an operator signed: sojourn job sign {work.state.name}"
        lines.append(left_out(why, work.demanding))
    if unable := [device for device in work.unable if device not in {*work.demanding}]:
        asks, outcome = (*(work.state.asks or ()), *asked_for(strategy.objective)), strategy.objective.outcome
        words = ", ".join(sorted(asked(settings.encoding, strategy.training, strategy.estimator, asks, outcome)))
        update = f"update their agents{' and edge servers' if asks or outcome != 'one model' else ''}"
        why = f"without all that the job asks for (objective {name_of(strategy.objective)}, {words}), {update}"
        lines.append(left_out(why, unable))
    if work.unwilling:
        word = strategy.objective.consent or "class-counts"
        why = f'their owners do not share what it asks for, which shares = ["{word}"] in their agent.toml does'
        lines.append(left_out(why, work.unwilling))
    if mute:
        lines.append(left_out("they could not be estimated", mute))
    return lines


def left_out(why: str, devices: Sequence[str]) -> str:
    """A line about devices that are here and take no part."""
    return f"left out, {why}: {names(devices, NAMES_ROOM)}"


def away(work: PlanRound) -> str:
    """The devices that were here before, and since when they are gone."""
    of_job = {device: at for device, at in work.gone.items() if device in work.state.fleet}
    gone = of_job if work.state.begun else work.gone
    newest = sorted(gone, key=lambda device: (-gone[device], device))
    if not newest:
        return ""
    told = ", ".join(f"{device} (since {moment(gone[device])})" for device in newest[:NAMED])
    more = f" and {len(newest) - NAMED} more: sojourn fleet status" if len(newest) > NAMED else ""
    return f"; gone: {told}{more}"


def moment(at: float) -> str:
    """A time for people."""
    return f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M} UTC"


def counted(devices: Sequence[str]) -> str:
    """How many there are, with the verb."""
    return f"{len(devices)} are" if len(devices) > 1 else "1 is" if devices else "none is"
