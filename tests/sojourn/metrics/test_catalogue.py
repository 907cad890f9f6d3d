"""The names and labels of metrics follow Prometheus' conventions."""

from __future__ import annotations

import re

from sojourn.metrics.catalogue import METRICS

UNITS = ("_bytes", "_seconds", "_ratio", "_total", "_info")


def test_metric_names_have_our_prefix_and_unit() -> None:
    assert len(METRICS) > 30
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"sojourn_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith("_duration_seconds")
        assert metric.what
        assert not metric.what.endswith(".")


def test_labels_exclude_devices_and_reserved_names() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {
        "version", "role", "name", "peer", "direction", "certificate", "state", "outcome", "reason", "line", "site",
        "status", "run", "metric",
    }  # fmt: skip
    named = [metric.name for metric in METRICS if "name" in metric.labels]
    assert named == ["sojourn_build_info"]  # of the node itself
