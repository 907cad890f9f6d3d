"""How far two methods of a table are apart, seed by seed.

With one seed two methods have the same devices, the same data and the same first model: what of the luck of the draw
they share is not in their difference, so it tells more than two means with an interval each.
"""

from __future__ import annotations

from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING

from fleet_sim.papers.confidence import half_width
from sojourn.protocol.figure_names import SHARES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleet_sim.papers.kept_results import KeptRun


def difference_lines(
    pairs: Iterable[tuple[str, str]], done: Mapping[str, Sequence[KeptRun]], last: int
) -> list[dict[str, str]]:
    """A row for each pair that has a seed in common: the first method less the second, mean of the `last` rounds."""
    lines = []
    for first, second in pairs:
        others = {it.seed: it for it in done.get(second, ())}
        both = [(it, others[it.seed]) for it in done.get(first, ()) if it.seed in others]
        found = [value for it, other in both if isfinite(value := _difference(it, other, last))]
        if not found:
            continue
        of_shares = both[0][0].figure in SHARES
        lines.append(
            {
                "first less second": f"{first} - {second}",
                "seeds": str(len(found)),
                f"mean of the last {last} rounds": _shown(found, of_shares=of_shares),
                "seed by seed": ", ".join(_signed(value, of_shares=of_shares) for value in found),
            }
        )
    return lines


def _difference(it: KeptRun, other: KeptRun, last: int) -> float:
    """Over the last rounds that both have."""
    common = min(len(it.course), len(other.course))
    if not common:
        return float("nan")
    begin = max(0, common - last)
    return fmean(it.values[begin:common]) - fmean(other.values[begin:common])


def _shown(values: Sequence[float], *, of_shares: bool) -> str:
    mean, unit = _signed(fmean(values), of_shares=of_shares), " points" if of_shares else ""
    half = f" ± {_plain(half_width(values), of_shares=of_shares)}" if len(values) > 1 else ""
    return f"{mean}{half}{unit}"


def _signed(value: float, *, of_shares: bool) -> str:
    return f"{'+' if value >= 0 else '-'} {_plain(abs(value), of_shares=of_shares)}"


def _plain(value: float, *, of_shares: bool) -> str:
    return f"{100 * value:.1f}" if of_shares else f"{value:.2g}"
