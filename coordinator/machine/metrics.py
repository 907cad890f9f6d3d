"""Prometheus metrics of a coordinator: its fleet, its jobs and its rollouts."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, get_args

from coordinator.fleet_records import VisitOutcome
from coordinator.job_state import JobState
from coordinator.jobs.goal import metric_of
from coordinator.machine.rollouts import Rollouts
from coordinator.machine.tours import RoundTours
from coordinator.records import ENDED, DevicesEstimated, JobRecord, RoundClosed, RoundFailed
from coordinator.rollout_records import LineState
from sojourn.metrics.catalogue import (
    DEVICES,
    JOBS,
    RELEASE_DEVICES,
    ROLLOUT,
    ROUND_SECONDS,
    ROUNDS,
    RUN_ACCURACY,
    RUN_LOSS,
    RUN_METRIC,
    RUN_PLANNED,
    RUN_PROGRESS,
    RUN_ROUNDS,
    RUN_STATUS,
    RUN_TOURS,
    SITE_UP,
    VISIT_SECONDS,
    VISITS,
    Durations,
    Reading,
    VisitCounts,
)
from sojourn.protocol.metric_names import TASK_METRICS
from sojourn.protocol.release import ReleaseState, RolloutStatus
from sojourn.protocol.visit_outcomes import OUTCOMES, reason_word
from sojourn.protocol.wire import JobStatus, Member

if TYPE_CHECKING:
    from coordinator.machine.coordinator import Coordinator

    Here = dict[str, tuple[str, Member]]


# Fleet metrics count devices by site and state; they name no device.
#
# Five thousand devices are a few numbers for each site, counted only after a change. Site labels are limited, since
# any client that can connect as an edge server chooses its own name.

MAX_SITES = 100
"""Maximum number of sites with their own label; further ones are counted together."""
OTHER_SITES = "_others"
"""The label of the others: no site can have this name."""
DAY = 86_400.0
"""Seconds after which a disconnected device counts as absent, and a disconnected site is no longer reported."""
RECOUNT_INTERVAL = 60.0
"""Seconds after which devices are counted again without a change, since some may have become absent."""
DEVICE_STATES = ("idle", "visiting", "offline", "absent")


class FleetMetrics:
    """Devices by site and state, and which sites are up."""

    def __init__(self, coordinator: Coordinator, tours: RoundTours) -> None:
        self._coordinator = coordinator
        self._tours = tours
        self._labels: dict[str, str] = {}
        """The sites that have their own label, in the order in which they connected."""
        self._up_at: dict[str, float] = {}
        """When each site was last up, if known."""
        self._here: Here | None = None
        self._changes = -1
        self._count_at = 0.0
        self._counts: Counter[tuple[str, str]] = Counter()

    def read(self, into: Reading, now: float) -> None:
        """Add the current values."""
        self._count(now)
        self._forget_labels(now)
        visiting = self._visiting()
        counts = Counter({(self._label(site), state): 0 for site in self._sites(now) for state in DEVICE_STATES})
        for (site, state), count in self._counts.items():
            counts[self._label(site), state] += count
        for site, count in visiting.items():
            counts[self._label(site), "idle"] -= count
            counts[self._label(site), "visiting"] += count
        for (site, state), count in counts.items():
            into.put(DEVICES, max(0, count), site, state)
        self._read_sites(into, now)

    def _read_sites(self, into: Reading, now: float) -> None:
        alive, up = self._coordinator.sites.alive, dict[str, bool]()
        for site in self._sites(now):
            label = self._label(site)
            up[label] = up.get(label, True) and site in alive  # sites counted together are up if all are
        for label, each in up.items():
            into.put(SITE_UP, float(each), label)

    def _sites(self, now: float) -> list[str]:
        """Return the sites that are up, or were within a day."""
        self._up_at |= dict.fromkeys(sorted(self._coordinator.sites.alive), now)
        self._up_at = {site: at for site, at in self._up_at.items() if now - at < DAY}
        return list(self._up_at)

    def _forget_labels(self, now: float) -> None:
        """Free the labels of sites that are no longer reported."""
        current = {*self._sites(now), *(site for site, _ in self._counts)}
        self._labels = {site: label for site, label in self._labels.items() if site in current}

    def _label(self, site: str) -> str:
        if site not in self._labels and len(self._labels) < MAX_SITES:
            self._labels[site] = site
        return self._labels.get(site, OTHER_SITES)

    def _visiting(self) -> Counter[str]:
        """Return how many tours are at a device now, by site."""
        found: Counter[str] = Counter()
        if not self._tours.progress or self._here is None:
            return found
        devices = {it.device for it in self._tours.progress.values() if it.device is not None}
        for device in devices:
            if at := self._here.get(device):
                found[at[0]] += 1
        return found

    def _count(self, now: float) -> None:
        """Count devices again if some connected or disconnected, or may count as absent by now."""
        here, seen = self._coordinator.sites.here(), self._coordinator.state.seen
        changes = seen.changes_dropped + len(seen.changes)
        if here is self._here and changes == self._changes and now < self._count_at:
            return
        self._here, self._changes, self._count_at = here, changes, now + RECOUNT_INTERVAL
        self._counts = Counter((site, "idle") for site, _ in here.values())
        for device, it in seen.devices.items():
            if device in here:
                continue
            # A device recorded as connected that has not reappeared since the start counts as disconnected now.
            went = now if it.online else it.since
            self._counts[it.site, "offline" if now - went < DAY else "absent"] += 1
            self._up_at[it.site] = max(went, self._up_at.get(it.site, 0.0))


# Job metrics: rounds, model quality, and outcomes of visits.
#
# A job is called a run here, since `job` has another meaning in Prometheus. Only some runs have a label: an
# hourly job must not add a thousand of them to every scrape.

MAX_RUNS = 5
"""Number of jobs with their own label: those that are not over first, then those that ended last."""
STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)


class RunMetrics:
    """Jobs, rounds and visits."""

    def __init__(self, coordinator: Coordinator, tours: RoundTours) -> None:
        self._coordinator = coordinator
        self._tours = tours
        self._rounds = Durations()
        self._rounds_closed = 0
        self._visits = VisitCounts()
        self._moves = 0
        self._progress: dict[str, float] = {}
        """When each job in progress last made progress, if known."""

    def recorded(self, record: object, now: float) -> None:
        """Count the visits of a recorded round, and note the job's progress."""
        if isinstance(record, JobRecord):
            self._progress[record.job] = now
        if isinstance(record, RoundClosed):
            self._rounds_closed += 1
            self._rounds.add(record.report.seconds)
        if isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
            for each in record.visited:
                self._count(each)

    def _count(self, visit: VisitOutcome) -> None:
        took = visit.seconds if visit.status == "done" else None
        self._visits.add(visit.status, reason_word(visit.status, visit.reason), took)

    def read(self, into: Reading, now: float) -> None:
        """Add the current values."""
        jobs = list(self._coordinator.state.jobs.values())
        statuses = Counter(state.status for state in jobs)
        for status in STATUSES:
            into.put(JOBS, statuses[status], status)
        into.put(ROUNDS, self._rounds_closed)
        into.put(ROUND_SECONDS, self._rounds.seen())
        self._visits.put(into, VISITS, VISIT_SECONDS, OUTCOMES)
        for state in distinguished(jobs):
            self._read_run(state, into)
        self._read_progress(jobs, into, now)

    def _read_run(self, state: JobState, into: Reading) -> None:
        name, visible, settings = state.name, state.visible_rounds, state.settings
        into.put_one_of(RUN_STATUS, STATUSES, state.status, name)
        into.put(RUN_ROUNDS, visible, name)
        into.put(RUN_PLANNED, settings.all_rounds, name)
        into.put(RUN_TOURS, len(state.tours) - len(state.arrived) - len(state.given_up), name)
        if not 0 < visible <= len(state.history):
            return
        report = state.history[visible - 1]
        for metric, value in ((RUN_ACCURACY, report.accuracy), (RUN_LOSS, report.loss)):
            if isfinite(value):
                into.put(metric, value, name)
        for metric_name in TASK_METRICS[settings.task.kind]:
            if isfinite(value := metric_of(report, metric_name)):
                into.put(RUN_METRIC, value, name, metric_name)

    def _read_progress(self, jobs: list[JobState], into: Reading, now: float) -> None:
        """Report when jobs last made progress, by their records or by the tours of the current job."""
        moved, self._moves = self._tours.moves != self._moves, self._tours.moves
        open_ = [state for state in jobs if state.status not in (*ENDED, "queued")]
        self._progress = {state.name: self._progress.get(state.name, now) for state in open_}
        for state in open_:
            if moved and state.tours:
                self._progress[state.name] = now
        for state in distinguished(open_):
            into.put(RUN_PROGRESS, self._progress[state.name], state.name)


def distinguished(jobs: list[JobState]) -> list[JobState]:
    """Return the jobs that have their own label."""
    unfinished = [state for state in jobs if state.status not in ENDED][:MAX_RUNS]
    over = sorted(
        (state for state in jobs if state.status in ENDED), key=lambda state: state.ended or 0.0, reverse=True
    )
    return [*unfinished, *over[: MAX_RUNS - len(unfinished)]]


MAX_LINES = 20
"""Number of model lines with their own label: those of the newest rollouts."""
ASKED = "asked"
"""The state of a device that has not answered its order."""
ROLLOUT_STATES = (ASKED, *get_args(ReleaseState))


class RolloutMetrics:
    """Rollouts by status, and their devices by state: counted again when a line has changed."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._counts: dict[str, tuple[int, LineState, Counter[str]]] = {}
        """By line: the revision that was counted, the rollout, and the number of devices in each state."""

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # no metric here depends on the time
        """Add the current values."""
        for line in list(self._rollouts.durable.lines.values())[-MAX_LINES:]:
            into.put_one_of(ROLLOUT, get_args(RolloutStatus), line.status, line.line)
            counts = self._counted(line)
            for state in ROLLOUT_STATES:
                into.put(RELEASE_DEVICES, counts[state], line.line, state)

    def _counted(self, line: LineState) -> Counter[str]:
        revision, known = self._rollouts.revisions[line.line], self._counts.get(line.line)
        if known is None or known[0] != revision or known[1] is not line:
            known = revision, line, self._count(line)
            self._counts[line.line] = known
        return known[2]

    def _count(self, line: LineState) -> Counter[str]:
        forward, back = line.payload.read.serial, line.back.read.serial
        found: Counter[str] = Counter()
        for device in line.members:
            report = self._rollouts.newest(line, device)
            answered = report is not None and report.serial >= (back if device in line.set_aside else forward)
            found[report.state if report and answered else ASKED] += 1
        return found
