"""The files for Prometheus and Grafana: their own tools accept them, and they name only metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from sojourn.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "observability"
ALERTS, CASES = SHIPPED / "alerts.yml", ROOT / "tests" / "deploy" / "alert_cases.yml"
DASHBOARD = json.loads((SHIPPED / "grafana-dashboard.json").read_text())
REPORTED = {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}_{part}" for part in ("bucket", "count", "sum")]
        if metric.kind == "histogram"
        else [metric.name]
    )
}


def promtool(*words: str, folder: Path = SHIPPED) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alert_names() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text())


def named(text: str) -> set[str]:
    return set(re.findall(r"\bsojourn_\w+", text))


def expressions() -> list[str]:
    """Return the dashboard's queries, with its variables filled in."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [each.replace("$__rate_interval", "5m").replace("$site", ".*").replace("$run", ".*") for each in found]


def test_prometheus_accepts_rules_and_configuration() -> None:
    assert f"{len(alert_names())} rules found" in promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


def test_alerts_fire_exactly_when_expected() -> None:
    assert set(re.findall(r"alertname: (\w+)", CASES.read_text())) == set(alert_names())
    promtool("test", "rules", CASES.name, folder=CASES.parent)


def test_alerts_and_dashboard_use_only_existing_metrics() -> None:
    asked = named(ALERTS.read_text()) | {name for each in expressions() for name in named(each)}
    assert len(asked) > 25
    assert asked - REPORTED == set()
    variables = {name for each in DASHBOARD["templating"]["list"] for name in named(str(each["query"]))}
    assert variables - REPORTED == set()


def test_metrics_missing_from_the_dashboard_are_intended() -> None:
    """Metrics that are not drawn: those of a single agent, and those that only an alert needs."""
    asked = " ".join(expressions())
    assert {metric.name for metric in METRICS if metric.name not in asked} == {
        "sojourn_build_info", "sojourn_loop_responding", "sojourn_agent_state", "sojourn_agent_visit_duration_seconds",
        "sojourn_agent_training_loss", "sojourn_agent_results_held", "sojourn_agent_release_state",
        "sojourn_agent_release_version", "sojourn_edge_devices", "sojourn_edge_tours",
        "sojourn_edge_visit_duration_seconds",
    }  # fmt: skip


def test_prometheus_parses_every_dashboard_expression(tmp_path: Path) -> None:
    rules = [
        f"      - record: panel:{number}\n        expr: {json.dumps(each)}" for number, each in enumerate(expressions())
    ]
    (tmp_path / "panels.yml").write_text("groups:\n  - name: panels\n    rules:\n" + "\n".join(rules) + "\n")
    promtool("check", "rules", "panels.yml", folder=tmp_path)


def test_panels_do_not_overlap_and_have_unique_ids() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not mine & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= mine
