"""The catalogue of all Prometheus metrics, and containers for their values."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

from sojourn.errors import Fault
from sojourn.text import clean

# docs/operations.md lists all metrics.
#
# Names follow Prometheus' conventions: base units, `_total` for counters, ratios from 0 to 1. The coordinator's metrics
# of the whole fleet have no role in their names; an agent's or edge server's own metrics do, so that a sum over all
# nodes does not count a visit three times. Label values are from a closed set, or names chosen by operators (sites,
# runs, model lines), of which a limited number is reported. No label is called `job`, which Prometheus uses itself.

Kind = Literal["gauge", "counter", "histogram"]
Reporter = Literal["every node", "agent", "edge server", "coordinator"]


class Metric(NamedTuple):
    """A metric: its reporter, meaning and labels."""

    name: str
    kind: Kind
    reporter: Reporter
    what: str
    labels: tuple[str, ...] = ()


BUILD = Metric(
    "sojourn_build_info",
    "gauge",
    "every node",
    "1; the node's version, role (agent, edge, coordinator) and own name",
    ("version", "role", "name"),
)
RESPONDING = Metric(
    "sojourn_loop_responding",
    "gauge",
    "every node",
    "1 if the node's main loop replied to this scrape; 0 if it did not within a second and older values are shown",
)
LINK_UP = Metric(
    "sojourn_link_up", "gauge", "every node", "1 while the broker over which these peers are reached is connected",
    ("peer",),
)  # fmt: skip
NETWORK_BYTES = Metric(
    "sojourn_network_bytes_total", "counter", "every node",
    "Bytes of messages, without the overhead of MQTT and TLS; direction: received or sent", ("direction",),
)  # fmt: skip
DROPPED = Metric(
    "sojourn_messages_dropped_total", "counter", "every node", "Messages dropped as invalid or by the rate limit"
)
OUTBOX = Metric("sojourn_outbox_requests", "gauge", "every node", "Requests that wait for a reply and are resent")
JOURNAL = Metric("sojourn_journal_bytes", "gauge", "every node", "Size of the journal on disk")
DISK_FREE = Metric("sojourn_disk_free_bytes", "gauge", "every node", "Free space on the disk of the store")
DISK_SIZE = Metric("sojourn_disk_size_bytes", "gauge", "every node", "Size of the disk of the store")
CERTIFICATE = Metric(
    "sojourn_certificate_expiry_timestamp_seconds", "gauge", "every node",
    "Expiry of a certificate (the node's own, or the trusted authority's), in seconds since 1970",
    ("certificate", "peer"),
)  # fmt: skip

AGENT_STATE = Metric(
    "sojourn_agent_state",
    "gauge",
    "agent",
    "1 for the agent's current state: idle, fetching, waiting or training",
    ("state",),
)
AGENT_VISITS = Metric(
    "sojourn_agent_visits_total", "counter", "agent",
    "Visits since the start; outcome: accepted, discarded, dropped or declined; declined visits have a reason",
    ("outcome", "reason"),
)  # fmt: skip
AGENT_VISIT_SECONDS = Metric(
    "sojourn_agent_visit_duration_seconds",
    "histogram",
    "agent",
    "Seconds from the request for a visit to its trained result",
)
AGENT_LOSS = Metric("sojourn_agent_training_loss", "gauge", "agent", "Loss of the last trained visit")
AGENT_RESULTS = Metric(
    "sojourn_agent_results_held", "gauge", "agent", "Trained results that no edge server has acknowledged"
)
AGENT_LIMIT = Metric(
    "sojourn_agent_limit_active", "gauge", "agent", "1 for the owner's limit that currently declines visits",
    ("reason",),
)  # fmt: skip
AGENT_RELEASE = Metric(
    "sojourn_agent_release_state", "gauge", "agent", "1 for the state of a model line's newest rollout order",
    ("line", "state"),
)  # fmt: skip
AGENT_VERSION = Metric(
    "sojourn_agent_release_version", "gauge", "agent", "Served version of a model line; 0: none", ("line",)
)

EDGE_DEVICES = Metric(
    "sojourn_edge_devices", "gauge", "edge server", "Online devices of the site; state: idle or visiting",
    ("state",),
)  # fmt: skip
EDGE_TOURS = Metric("sojourn_edge_tours", "gauge", "edge server", "Tours that are in progress, or whose result waits")
EDGE_VISITS = Metric(
    "sojourn_edge_visits_total", "counter", "edge server",
    "Visits since the start; outcome: done, declined, lost or refused, with its reason", ("outcome", "reason"),
)  # fmt: skip
EDGE_VISIT_SECONDS = Metric(
    "sojourn_edge_visit_duration_seconds",
    "histogram",
    "edge server",
    "Seconds from sending a model to storing its result",
)

DEVICES = Metric(
    "sojourn_devices", "gauge", "coordinator",
    "Devices; state: idle, visiting, offline (for less than a day) or absent (for longer)", ("site", "state"),
)  # fmt: skip
SITE_UP = Metric(
    "sojourn_site_up", "gauge", "coordinator", "1 while a site's edge server is online; 0 for a day after", ("site",)
)
JOBS = Metric("sojourn_jobs", "gauge", "coordinator", "Jobs by their status", ("status",))
ROUNDS = Metric("sojourn_rounds_total", "counter", "coordinator", "Closed rounds of all jobs since the start")
ROUND_SECONDS = Metric(
    "sojourn_round_duration_seconds", "histogram", "coordinator", "Duration of rounds of all jobs, in seconds"
)
VISITS = Metric(
    "sojourn_visits_total", "counter", "coordinator",
    "Visits of closed rounds and estimations; outcome: done, declined, lost or refused, with its reason",
    ("outcome", "reason"),
)  # fmt: skip
VISIT_SECONDS = Metric(
    "sojourn_visit_duration_seconds",
    "histogram",
    "coordinator",
    "Duration of visits whose results were kept, in seconds",
)
RUN_STATUS = Metric("sojourn_run_status", "gauge", "coordinator", "1 for the status of a job", ("run", "status"))
RUN_ROUNDS = Metric("sojourn_run_rounds", "gauge", "coordinator", "Completed rounds of a job", ("run",))
RUN_PLANNED = Metric("sojourn_run_planned_rounds", "gauge", "coordinator", "Planned rounds of a job", ("run",))
RUN_TOURS = Metric("sojourn_run_tours", "gauge", "coordinator", "Running tours of a job", ("run",))
RUN_ACCURACY = Metric(
    "sojourn_run_accuracy_ratio", "gauge", "coordinator", "Accuracy of a job's newest model on the test set", ("run",)
)
RUN_LOSS = Metric("sojourn_run_loss", "gauge", "coordinator", "Loss of a job's newest model on the test set", ("run",))
RUN_METRIC = Metric(
    "sojourn_run_metric", "gauge", "coordinator",
    "Every metric of the job's task for its newest model (docs/tasks.md)", ("run", "metric"),
)  # fmt: skip
RUN_PROGRESS = Metric(
    "sojourn_run_progress_timestamp_seconds", "gauge", "coordinator",
    "Time of the last progress of a running job, or of one that waits for devices, in seconds since 1970", ("run",),
)  # fmt: skip
ROLLOUT = Metric(
    "sojourn_rollout_status", "gauge", "coordinator", "1 for the status of a model line's newest rollout",
    ("line", "status"),
)  # fmt: skip
RELEASE_DEVICES = Metric(
    "sojourn_release_devices", "gauge", "coordinator",
    "Devices that a rollout has reached; state: asked (no reply yet), or the reported state", ("line", "state"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All metrics, in the order of their definitions."""
EVERY_NODE: tuple[Metric, ...] = tuple(each for each in METRICS if each.reporter == "every node")


BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""The histogram's upper bounds in seconds, from a short visit to a long round."""
LABEL = 64
"""Maximum characters of a label value."""


class Distribution(NamedTuple):
    """A cumulative histogram: the count for each of `BOUNDS`, the total count, and the sum."""

    counts: tuple[int, ...]
    sum: float


class Durations:
    """A histogram of durations, for use on one thread."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def seen(self) -> Distribution:
        """Return the histogram so far."""
        return Distribution(tuple(accumulate(self._counts)), self._sum)


class Reading:
    """Metric values, by label values."""

    def __init__(self) -> None:
        self.values: dict[Metric, dict[tuple[str, ...], float | Distribution]] = {}

    def put(self, metric: Metric, value: float | Distribution, *labels: str) -> None:
        """Set a value; label values are cleaned and truncated, because they may be a peer's text."""
        if len(labels) != len(metric.labels):
            raise Fault(f"{metric.name} has the labels {metric.labels}, and not {labels}")
        self.values.setdefault(metric, {})[tuple(clean(label, LABEL) for label in labels)] = value

    def put_one_of(self, metric: Metric, words: Iterable[str], word: str, *labels: str) -> None:
        """Set the current word of a closed set to 1, and all others to 0."""
        for each in words:
            self.put(metric, float(each == word), *labels, each)


class MetricSource(Protocol):
    """A source of a node's metrics, read on the node's thread, so that nothing changes meanwhile."""

    def read(self, into: Reading, now: float) -> None:
        """Put the current values; this must be fast, because it blocks the node. `now` is wall-clock time."""


class VisitCounts:
    """Counts of visits by outcome and reason, and the durations of successful visits."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.durations = Durations()

    def add(self, outcome: str, reason: str, seconds: float | None = None) -> None:
        """Count a visit."""
        self.counts[outcome, reason] += 1
        if seconds is not None:
            self.durations.add(seconds)

    def put(self, into: Reading, visits: Metric, durations: Metric, known: Iterable[tuple[str, str]]) -> None:
        """Set both metrics; `known` are the outcomes and reasons that are reported from the start, as 0."""
        for outcome, reason in known:
            into.put(visits, self.counts[outcome, reason], outcome, reason)
        into.put(durations, self.durations.seen())
