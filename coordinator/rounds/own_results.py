"""How good the devices' own models are, as they tell it: means over devices, beside the figures of the job's model.

Each device has tested its model on samples of its own, which nobody else sees. So these figures are the devices' word:
what is out of range is left out, a device counts once, and how many devices have told one stands beside the mean.
"""

from __future__ import annotations

from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from sojourn.protocol.figure_names import MAIN, MERGED, OWN, OWN_DEVICES, SHARES, SPREAD, VALIDATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.protocol.task import Kind
    from sojourn.protocol.wire import VisitReport


def own_results(reports: Iterable[VisitReport], kind: Kind) -> dict[str, float]:
    """The mean of each figure over the devices that told it, the spread of the main one, and how many told that."""
    newest = {report.device: report.metrics for report in reports}
    main, found = OWN + MAIN[kind], dict[str, float]()
    for name in dict.fromkeys((main, f"{OWN}loss", OWN + VALIDATION, MERGED + MAIN[kind])):
        told = [metrics[name] for metrics in newest.values() if name in metrics and _sound(name, metrics[name])]
        if not told:
            continue
        found[name] = fmean(told)
        if name == main:
            found |= {main + SPREAD: pstdev(told), OWN_DEVICES: float(len(told))}
    return found


def _sound(name: str, figure: float) -> bool:
    """Whether a figure can be one: a share is from 0 to 1; that it is finite was seen when it came."""
    plain = name.removeprefix(OWN).removeprefix(MERGED)
    return 0.0 <= figure <= 1.0 if plain in SHARES or plain == VALIDATION else True
