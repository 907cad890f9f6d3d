"""Every figure that a node tells Prometheus: its name, kind, labels and meaning; docs/operations.md lists them all.

Names follow Prometheus' conventions: base units, `_total` for what only grows, ratios from 0 to 1. What is told of the
whole fleet, by its coordinator, has no role in its name; what one agent or one edge server tells of itself has, so that
no sum over all nodes counts a visit three times. A label's values are words of a closed set, or names that an operator
gave (sites, runs, model lines), of which at most a fixed number is told. No label is called `job`: that word is
Prometheus' own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
Teller = Literal["every node", "agent", "edge server", "coordinator"]


class Metric(NamedTuple):
    """One figure: who tells it, what it says, and by which labels."""

    name: str
    kind: Kind
    teller: Teller
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
    "1 if the node's main loop answered this scrape; 0 if it did not within a second, and older figures are shown",
)
LINK_UP = Metric(
    "sojourn_link_up", "gauge", "every node", "1 while the broker over which these peers are reached is connected",
    ("peer",),
)  # fmt: skip
NETWORK_BYTES = Metric(
    "sojourn_network_bytes_total", "counter", "every node",
    "Bytes of messages, without what MQTT and TLS add; direction: received or sent", ("direction",),
)  # fmt: skip
DROPPED = Metric(
    "sojourn_messages_dropped_total", "counter", "every node", "Messages that were not valid, or came too quickly"
)
OUTBOX = Metric("sojourn_outbox_requests", "gauge", "every node", "Requests that wait for an answer and are repeated")
JOURNAL = Metric("sojourn_journal_bytes", "gauge", "every node", "Size of the journal on the disk")
DISK_FREE = Metric("sojourn_disk_free_bytes", "gauge", "every node", "Room that is left on the disk of the store")
DISK_SIZE = Metric("sojourn_disk_size_bytes", "gauge", "every node", "Size of the disk of the store")
CERTIFICATE = Metric(
    "sojourn_certificate_expiry_timestamp_seconds", "gauge", "every node",
    "When a certificate ends (the node's own, or the authority that it trusts), in seconds since 1970",
    ("certificate", "peer"),
)  # fmt: skip

AGENT_STATE = Metric(
    "sojourn_agent_state",
    "gauge",
    "agent",
    "1 for what the agent is at: idle, fetching, waiting or training",
    ("state",),
)
AGENT_VISITS = Metric(
    "sojourn_agent_visits_total", "counter", "agent",
    "Visits since the start; outcome: accepted, discarded, dropped or declined, the latter with its reason",
    ("outcome", "reason"),
)  # fmt: skip
AGENT_VISIT_SECONDS = Metric(
    "sojourn_agent_visit_duration_seconds", "histogram", "agent", "From the order of a visit to its trained result"
)
AGENT_LOSS = Metric("sojourn_agent_training_loss", "gauge", "agent", "The loss of the last visit that was trained")
AGENT_RESULTS = Metric(
    "sojourn_agent_results_held", "gauge", "agent", "Trained results that no edge server has answered"
)
AGENT_LIMIT = Metric(
    "sojourn_agent_limit_active", "gauge", "agent", "1 for the owner's limit by which visits are declined now",
    ("reason",),
)  # fmt: skip
AGENT_RELEASE = Metric(
    "sojourn_agent_release_state", "gauge", "agent", "1 for the state of a model line's newest order",
    ("line", "state"),
)  # fmt: skip
AGENT_VERSION = Metric(
    "sojourn_agent_release_version", "gauge", "agent", "The version of a model line that is served; 0: none", ("line",)
)

EDGE_DEVICES = Metric(
    "sojourn_edge_devices", "gauge", "edge server", "Devices of the site that are here; state: idle or visiting",
    ("state",),
)  # fmt: skip
EDGE_TOURS = Metric("sojourn_edge_tours", "gauge", "edge server", "Tours that are under way, or whose result waits")
EDGE_VISITS = Metric(
    "sojourn_edge_visits_total", "counter", "edge server",
    "Visits since the start; outcome: done, declined, lost or refused, with its reason", ("outcome", "reason"),
)  # fmt: skip
EDGE_VISIT_SECONDS = Metric(
    "sojourn_edge_visit_duration_seconds", "histogram", "edge server", "From handing a model over to keeping its result"
)

DEVICES = Metric(
    "sojourn_devices", "gauge", "coordinator",
    "Devices; state: idle, visiting, gone (for less than a day) or absent (for longer)", ("site", "state"),
)  # fmt: skip
SITE_UP = Metric(
    "sojourn_site_up", "gauge", "coordinator", "1 while a site's edge server is connected; 0 for a day after", ("site",)
)
JOBS = Metric("sojourn_jobs", "gauge", "coordinator", "Jobs by their status", ("status",))
ROUNDS = Metric(
    "sojourn_rounds_total", "counter", "coordinator", "Rounds that were closed since the start, of all jobs"
)
ROUND_SECONDS = Metric(
    "sojourn_round_duration_seconds", "histogram", "coordinator", "How long rounds took, of all jobs"
)
VISITS = Metric(
    "sojourn_visits_total", "counter", "coordinator",
    "Visits of closed rounds and estimations; outcome: done, declined, lost or refused, with its reason",
    ("outcome", "reason"),
)  # fmt: skip
VISIT_SECONDS = Metric(
    "sojourn_visit_duration_seconds", "histogram", "coordinator", "How long the visits took whose results were kept"
)
RUN_STATUS = Metric("sojourn_run_status", "gauge", "coordinator", "1 for the status of a job", ("run", "status"))
RUN_ROUNDS = Metric("sojourn_run_rounds", "gauge", "coordinator", "Rounds that a job has done", ("run",))
RUN_PLANNED = Metric("sojourn_run_planned_rounds", "gauge", "coordinator", "Rounds that a job is to do", ("run",))
RUN_TOURS = Metric("sojourn_run_tours", "gauge", "coordinator", "Tours of a job that are out now", ("run",))
RUN_ACCURACY = Metric(
    "sojourn_run_accuracy_ratio", "gauge", "coordinator", "Accuracy of a job's newest model on the test set", ("run",)
)
RUN_LOSS = Metric("sojourn_run_loss", "gauge", "coordinator", "Loss of a job's newest model on the test set", ("run",))
RUN_FIGURE = Metric(
    "sojourn_run_figure", "gauge", "coordinator",
    "Every figure of the job's task for its newest model (docs/tasks.md), the main one among them", ("run", "figure"),
)  # fmt: skip
RUN_PROGRESS = Metric(
    "sojourn_run_progress_timestamp_seconds", "gauge", "coordinator",
    "When a job whose turn it is, or that waits for devices, last got on, in seconds since 1970", ("run",),
)  # fmt: skip
ROLLOUT = Metric(
    "sojourn_rollout_status", "gauge", "coordinator", "1 for the status of a model line's newest rollout",
    ("line", "status"),
)  # fmt: skip
RELEASE_DEVICES = Metric(
    "sojourn_release_devices", "gauge", "coordinator",
    "Devices that a rollout has reached; state: asked (no answer yet), or what they reported", ("line", "state"),
)  # fmt: skip

METRICS: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All of them, in the order in which they stand here."""
EVERY_NODE: tuple[Metric, ...] = tuple(each for each in METRICS if each.teller == "every node")
