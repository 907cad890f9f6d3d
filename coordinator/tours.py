"""The tours of the round under way: asked for, heard of, on their way back. A restart finds all of it out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.itinerary import settings_of, tour_message
from sojourn.machine import Pull
from sojourn.topics import Address

if TYPE_CHECKING:
    from coordinator.coordinator_records import JobState, TourPlan
    from sojourn.machine import Effect
    from sojourn.messages import Toured, TourProgress
    from sojourn.outbox import Outbox


class Tours:
    """What a coordinator knows of tours and may forget: leases, progress, results that are being fetched."""

    def __init__(self, outbox: Outbox) -> None:
        self.progress: dict[int, TourProgress] = {}
        self._outbox = outbox
        self._leases: dict[int, float] = {}
        self._coming: dict[int, Toured] = {}
        self._lacking: dict[int, set[bytes]] = {}

    def ask(self, job: JobState, tour: TourPlan, now: float) -> list[Effect]:
        """Ask a site to lead a tour."""
        settings = settings_of(job.text)
        self._leases[tour.number] = now + settings.tours.site_lease
        message = tour_message(job, settings, tour)
        return [*self._outbox.ask(("tour", tour.number), Address("edge", tour.site), message, now)]

    def ask_all(self, job: JobState, now: float) -> list[Effect]:
        """Ask for every tour that is still out."""
        out = [
            tour for tour in job.tours
            if tour.leg == job.leg and tour.number not in job.arrived and tour.number not in job.given_up
        ]  # fmt: skip
        return [effect for tour in out for effect in self.ask(job, tour, now)]

    def ask_again(self, job: JobState, site: str, now: float) -> list[Effect]:
        """A site was born again and may have forgotten its tours, if it lost its store or its power."""
        out = [tour for tour in job.tours if tour.site == site and tour.number in self._leases]
        asked = [tour for tour in out if not self._outbox.open(("tour", tour.number))]
        return [effect for tour in asked for effect in self.ask(job, tour, now)]

    def heard_of(self, job: JobState, tour: TourPlan, message: TourProgress, now: float) -> None:
        """A site gave a sign of life from a tour."""
        self._outbox.settle(("tour", tour.number))
        self.progress[tour.number] = message
        self._renew(job, tour, now)

    def heard_from(self, job: JobState, site: str, now: float) -> None:
        """A site spoke: while its results are fetched, that is a sign of life too."""
        for tour in job.tours if self._coming else ():
            if tour.site == site and tour.number in self._coming:
                self._renew(job, tour, now)

    def fetch(self, tour: TourPlan, message: Toured) -> list[Effect]:
        """A tour has ended: get its result, unless that is under way."""
        self._outbox.settle(("tour", tour.number))
        if tour.number in self._coming:
            return []
        self._coming[tour.number] = message
        needed = [*message.vectors.values(), message.reports]
        self._lacking[tour.number] = {ref.digest for ref in needed}
        return [Pull(ref, Address("edge", tour.site)) for ref in dict.fromkeys(needed)]

    def pulled(self, digest: bytes) -> list[Toured]:
        """A blob is here; returns the results that are complete now."""
        complete = []
        for number, lacking in list(self._lacking.items()):
            lacking.discard(digest)
            if not lacking:
                complete.append(self._coming[number])
                self.forget(number)
        return complete

    def pull_failed(self, digest: bytes) -> None:
        """A blob cannot be had; the site offers its result again until it is accepted, and then it is fetched again."""
        for number, lacking in list(self._lacking.items()):
            if digest in lacking:
                del self._lacking[number], self._coming[number]

    def forget(self, number: int) -> None:
        """Nothing more is expected of a tour."""
        self._outbox.settle(("tour", number))
        for known in (self._leases, self._coming, self._lacking, self.progress):
            known.pop(number, None)

    def overdue(self, now: float) -> list[int]:
        """The tours whose sites gave no sign of life for too long."""
        return [number for number, ends in self._leases.items() if ends <= now]

    def wake_at(self) -> float | None:
        """When the next lease ends."""
        return min(self._leases.values(), default=None)

    def live(self) -> set[bytes]:
        """The blobs that are being fetched."""
        return {ref.digest for it in self._coming.values() for ref in [*it.vectors.values(), it.reports]}

    def _renew(self, job: JobState, tour: TourPlan, now: float) -> None:
        if tour.number in self._leases:
            self._leases[tour.number] = now + settings_of(job.text).tours.site_lease
