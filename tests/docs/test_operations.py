"""docs/operations.md lists all metrics and alerts, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from docs import make_metrics
from sojourn.metrics.catalogue import METRICS
from sojourn.protocol.visit_outcomes import OUTCOMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_metric_tables_match_the_catalogue() -> None:
    assert make_metrics.main(["--check"]) == 0
    assert [metric.name for metric in METRICS if f"| `{metric.name}` |" not in PAGE] == []
    assert set(re.findall(r"sojourn_\w+[a-z]", PAGE)) == {metric.name for metric in METRICS}


def test_every_alert_is_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy" / "observability" / "alerts.yml").read_text())
    rows = re.findall(r"^\| `(Sojourn\w+)` \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _, _ in rows] == alerts
    assert set(re.findall(r"Sojourn[A-Z]\w+", PAGE)) == set(alerts)


def test_every_outcome_reason_is_listed() -> None:
    assert {word for _, word in OUTCOMES if word and f"`{word}`" not in PAGE} == set()
