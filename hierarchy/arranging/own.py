"""An arranger that a user wrote: called, and what it says looked at, before anything is sent to a device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from hierarchy.arranging.candidates import Arranged, ClientSet, Memo
from sojourn.errors import JobError
from sojourn.parts.own import load

if TYPE_CHECKING:
    from hierarchy.arranging.candidates import Roll, Turn
    from sojourn.parts import OwnArranger


def own_sets(settings: OwnArranger, roll: Roll, turn: Turn) -> Arranged:
    """What `arrange(roll, turn)` of the user's class gives; with sets alone, the memo stays as it was."""
    said = load(settings, "arrange").arrange(roll, turn)
    sets, memo = (said.sets, said.memo) if isinstance(said, Arranged) else (said, turn.memo)
    if not isinstance(sets, (list, tuple)) or not sets:
        raise JobError(f"{settings.part} arranged no sets; it must return Arranged, or a list of ClientSet")
    for number, each in enumerate(sets):
        if flaw := _flaw(each, roll):
            raise JobError(f"set {number} that {settings.part} arranged {flaw}")
    often = Counter(device for each in sets for device in each.devices)
    if settings.once and (again := [device for device, times in often.items() if times > 1]):
        raise JobError(f"{settings.part} arranged {again[0]} twice; if that is meant, set arranger.once = false")
    try:
        return Arranged(tuple(sets), msgspec.convert(memo, Memo))
    except msgspec.ValidationError as error:
        raise JobError(f"the memo of {settings.part} must be whole numbers by device name: {error}") from error


def _flaw(each: object, roll: Roll) -> str | None:
    """What is wrong with a set; None if nothing is."""
    if not isinstance(each, ClientSet):
        return f"is a {type(each).__name__}, not a ClientSet"
    if each.site not in roll.reach:
        return f"is at {each.site}, which is no site"
    if not isinstance(each.devices, (list, tuple)) or not each.devices:
        return "has no devices"
    if len(set(each.devices)) < len(each.devices):
        return "has a device twice; passes are the schedule's"
    if unknown := [device for device in each.devices if device not in roll.devices]:
        return f"has {unknown[0]}, which is no device here"
    if astray := [device for device in each.devices if device not in roll.reach[each.site]]:
        return f"has {astray[0]}, which does not reach {each.site}"
    return None
