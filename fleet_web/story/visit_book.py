"""The visits of a job that are known, by round: where its models went, who took part, and why visits failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.results.tallies import flagged, losses
from fleet_web.story.travel import RoundTravel, past_round, plain_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coordinator.results.tallies import Loss
    from sojourn.protocol.fleet_messages import VisitNote


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """How often a device took part. why: what is known of the newest visit that failed, or of why it has none."""

    device: str
    site: str
    done: int = 0
    failed: int = 0
    why: str = ""


class VisitBook:
    """Visits, kept by round. complete: whether all that the job had are in it."""

    def __init__(self, newest_first: Iterable[VisitNote] = (), *, complete: bool = True) -> None:
        self.complete = complete
        self._rounds: dict[int, list[VisitNote]] = {}
        self._estimates: list[VisitNote] = []
        for visit in reversed(list(newest_first)):
            self._add(visit)

    def _add(self, visit: VisitNote) -> None:
        if visit.phase == "train":
            self._rounds.setdefault(visit.round, []).append(visit)
        else:
            self._estimates.append(visit)

    def extended(self, newest_first: Sequence[VisitNote]) -> None:
        """Take in the visits of newer rounds; what is known already is left as it is."""
        known = self.newest
        for visit in reversed(newest_first):
            if visit.round > known:
                self._add(visit)

    @property
    def newest(self) -> int:
        """The newest round of which visits are known."""
        return max(self._rounds, default=0)

    @property
    def rounds(self) -> list[int]:
        """The rounds of which visits are known."""
        return sorted(self._rounds)

    def travel(self, number: int) -> RoundTravel:
        """The tours of a round that is over."""
        if number not in self._rounds:
            gap = f"The visits of round {number} are not known: what is older is forgotten, or was never written down."
            return RoundTravel(number, (), gap=gap)
        return past_round(number, self._rounds[number])

    def losses(self) -> list[Loss]:
        """Why visits came to nothing, the most frequent first."""
        return losses(self._rows())

    def flagged(self) -> list[Loss]:
        """What the gate would have refused, the most frequent reason first."""
        return flagged(self._rows())

    def _rows(self) -> list[dict[str, str]]:
        """The visits with a reason or a failure."""
        return [
            {"status": it.status, "reason": it.reason, "device": it.device}
            for visits in (self._estimates, *self._rounds.values())
            for it in visits
            if it.reason or it.status != "done"
        ]

    def shares(self, sites: Mapping[str, str]) -> list[DeviceShare]:
        """Who took part how often: the most visited first. sites: all devices that there are, and where they are."""
        done: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        why: dict[str, str] = {}
        where = dict(sites)
        for visits in self._rounds.values():
            for it in visits:
                where.setdefault(it.device, it.site)
                if it.status == "done":
                    done[it.device] += 1
                else:
                    failed[it.device] += 1
                    why[it.device] = f"{it.status}: {plain_reason(it.reason)}" if it.reason else it.status
        never = {
            it.device: f"declined to be estimated: {plain_reason(it.reason)}"
            for it in self._estimates
            if it.status != "done"
        }
        shares = [
            DeviceShare(device, site, done[device], failed[device], why.get(device) or _never(device, done, never))
            for device, site in where.items()
        ]
        return sorted(shares, key=lambda it: (-it.done, -it.failed, it.device))


def _never(device: str, done: Mapping[str, int], declined: Mapping[str, str]) -> str:
    """Why a device that was not visited was not, as far as that is known."""
    return "" if done[device] else declined.get(device, "no round has taken it")
