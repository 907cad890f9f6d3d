"""An arranger that a user wrote: called, and what it returns looked at, before anything is sent to a device."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from hierarchy.arranging.candidates import Arranged, ClientSet, Memo
from sojourn.errors import JobError
from sojourn.parts.own import load

if TYPE_CHECKING:
    from hierarchy.arranging.candidates import ArrangeContext, Candidates
    from sojourn.parts import OwnArranger


def own_sets(settings: OwnArranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """What `arrange(candidates, context)` of the user's class gives; with sets alone, the memo stays as it was."""
    answer = load(settings, "arrange").arrange(candidates, context)
    sets, memo = (answer.sets, answer.memo) if isinstance(answer, Arranged) else (answer, context.memo)
    if not isinstance(sets, (list, tuple)) or not sets:
        raise JobError(f"{settings.part} arranged no sets; it must return Arranged, or a list of ClientSet")
    for number, each in enumerate(sets):
        if flaw := _flaw(each, candidates):
            raise JobError(f"set {number} that {settings.part} arranged {flaw}")
    often = Counter(device for each in sets for device in each.devices)
    if settings.once and (again := [device for device, times in often.items() if times > 1]):
        raise JobError(f"{settings.part} arranged {again[0]} twice; if that is meant, set arranger.once = false")
    try:
        return Arranged(tuple(sets), msgspec.convert(memo, Memo))
    except msgspec.ValidationError as error:
        raise JobError(f"the memo of {settings.part} must be whole numbers by device name: {error}") from error


def _flaw(each: object, candidates: Candidates) -> str | None:
    """What is wrong with a set; None if nothing is."""
    if not isinstance(each, ClientSet):
        return f"is a {type(each).__name__}, not a ClientSet"
    if each.site not in candidates.reach:
        return f"is at {each.site}, which is no site"
    if not isinstance(each.devices, (list, tuple)) or not each.devices:
        return "has no devices"
    if len(set(each.devices)) < len(each.devices):
        return "has a device twice; passes are the schedule's"
    if unknown := [device for device in each.devices if device not in candidates.devices]:
        return f"has {unknown[0]}, which is no device here"
    if astray := [device for device in each.devices if device not in candidates.reach[each.site]]:
        return f"has {astray[0]}, which does not reach {each.site}"
    return None
