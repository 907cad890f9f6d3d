"""Tests of the page of a simulation, from generated tables."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from coordinator.results.folder import COLUMNS, ROUNDS, VISITS, ResultFolder, write_table
from coordinator.results.job_metrics import MEANING
from coordinator.results.plots import NAMED, course_chart, is_logarithmic, participation_chart, time_unit
from coordinator.results.report import draw, summary_html
from coordinator.results.run_description import what_was_run
from coordinator.results.visit_totals import DEVICE_COLUMNS, DEVICES, SITE_COLUMNS, SITES
from hierarchy.arranging.measures import quality

CONFIG = """
strategy = "visit"
seed = 3
[simulation]
devices = 1200
sites = 1
data = "a<b>.npz"
board = ["raspberry-pi-4", "raspberry-pi-5"]
[split]
by = "dirichlet"
alpha = 0.3
[availability]
dropout = 0.25
"""


@pytest.fixture
def results(tmp_path: Path) -> ResultFolder:
    """Return results with two rounds, the first of which is better, and three visits, two of which are lost."""
    (tmp_path / "config.toml").write_text(CONFIG)
    measures = (0.9, 0.2, 0.8, "", "", "")
    rounds = [
        (1, 0.75, 0.5, 2, 2, 1, 2_500_000, 0.25, 5.0, *measures),
        (2, 0.5, 0.6, 2, 1, 2, 1_000_000, 90, 95.0, *measures),
    ]
    write_table(tmp_path / ROUNDS, COLUMNS[ROUNDS], rounds)
    lost = "data: device-2 has no samples"
    write_table(
        tmp_path / VISITS,
        COLUMNS[VISITS],
        [
            (1, "site-1", "job/1/0", "device-1", 0, "done", "", 5, 1.0, 0.5, 1.0, 10, 20),
            *((1, "site-1", "job/1/0", "device-2", 1, "declined", lost, 0, 0.0, "", 0.0, 10, 20) for _ in range(2)),
        ],
    )
    write_table(tmp_path / SITES, SITE_COLUMNS, [("site-1", 2, 1, 1, 2, 61.0, 30_000_000, 60)])
    write_table(tmp_path / DEVICES, DEVICE_COLUMNS, [("device-1", "raspberry-pi-4", 5, 1, 0, 1.0, 10, 20)])
    return ResultFolder(tmp_path, resume=True)


class Words(HTMLParser):
    """The text of a page, its pictures, and whether every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.pictures = "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs)["src"] or "")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_report_summary_has_setup_results_and_losses(results: ResultFolder) -> None:
    text = " ".join(Words(summary_html(results)).text.split())
    assert text.startswith(
        "Strategy visit, model mlp, seed 3. 1,200 simulated devices (raspberry-pi-4, raspberry-pi-5) at 1 site, "
        "a<b>.npz split by dirichlet (alpha 0.3). A visit fails with probability 0.25."
    )
    for words in (
        "50.0 % accuracy at the end",
        "75.0 % at best, in round 1",
        "3.5 MB over MQTT",
        "3 of 6 visits lost in rounds",
    ):
        assert words in text
    assert "declined: it has no samples 2 device-2" in text


def test_page_has_units_pictures_and_metric_explanations(results: ResultFolder) -> None:
    draw(results, "job <1>", ["device-1", "device-2"])
    page = (results.path / "report.html").read_text()
    read = Words(page)
    text = " ".join(read.text.split())
    assert read.open == []
    assert read.pictures == ["accuracy.png", "quality.png", "participation.png"]
    assert all((results.path / name).stat().st_size for name in read.pictures)
    assert "job <1>" in text
    assert "1 75.0 % 0.5000 2 2 1 2.50 250 ms 5.0 s 0.900 0.200 0.800" in text
    assert "2 50.0 % 0.6000 2 1 2 1.00 1 min 30 s 1 min 35 s 0.900" in text
    assert "site-1 2 1 1 2 1 min 01 s 30.00 0.00" in text
    assert all(MEANING[name] in text for name in ("vts", "intra_cs", "inter_cs"))
    assert MEANING["cpd"] not in text
    assert "http" not in page


@pytest.mark.parametrize(("devices", "drawn"), [(NAMED, 2 * NAMED), (NAMED + 1, 2), (5000, 2)])
def test_visits_of_many_devices_are_drawn_as_one_outline(devices: int, drawn: int) -> None:
    names = [f"device-{number}" for number in range(devices)]
    visits = [{"device": names[0], "status": status} for status in ("done", "done", "lost")]
    (axis,) = participation_chart(visits, names).axes
    assert len(axis.patches) == drawn
    assert (axis.dataLim.ymin, axis.dataLim.ymax) == (0, 3)
    assert axis.get_xlim() == (0.5, devices + 0.5)


def test_page_works_without_visits_and_pictures(results: ResultFolder) -> None:
    for name, columns in ((VISITS, COLUMNS[VISITS]), (SITES, SITE_COLUMNS), (DEVICES, DEVICE_COLUMNS)):
        write_table(results.path / name, columns, ())
    draw(results, "live", [], pictures_too=False)
    read = Words((results.path / "report.html").read_text())
    assert read.pictures == []
    assert "50.0 % accuracy at the end" in " ".join(read.text.split())
    assert "Sites" not in read.text
    draw(results, "live", [])
    assert Words((results.path / "report.html").read_text()).pictures == ["accuracy.png", "quality.png"]


def test_axes_have_whole_rounds_and_percent(results: ResultFolder) -> None:
    chart = course_chart({"a": [results.rows(ROUNDS)]})
    chart.canvas.draw()
    rounds, *_ = chart.axes
    assert all(tick == int(tick) for tick in rounds.get_xticks())
    assert rounds.get_yticklabels()[-1].get_text() == "100 %"
    assert [axis.get_xlabel() for axis in chart.axes] == ["round", "seconds on the fleet's clock", "MB over MQTT"]


def test_every_arrangement_metric_is_explained() -> None:
    assert set(quality(np.ones((2, 2)), [[0], [1]], counts=True)) == set(MEANING)


def test_live_job_is_described_without_simulation() -> None:
    assert what_was_run({"strategy": "fedavg"}) == "Strategy fedavg, model mlp, seed 0."


@pytest.mark.parametrize("model", ['"net:Net"', '{ name = "net:Net" }'])
def test_report_names_the_model_in_both_forms(results: ResultFolder, model: str) -> None:
    results.settings(f'strategy = "keel"\nmodel = {model}\ntask = "regression"\nobjective = "prox"')
    draw(results, "pets", [], pictures_too=False)
    assert "Regression: strategy keel, model net:Net, seed 0." in (results.path / "report.html").read_text()


def test_times_are_drawn_in_the_unit_that_reads_well() -> None:
    units = {seconds: time_unit(seconds) for seconds in (0.0, 299.0, 300.0, 18_000.0, 1_080_000.0)}
    assert [unit for _, unit in units.values()] == ["seconds", "seconds", "minutes", "hours", "days"]
    assert units[1_080_000.0][0] == 86_400.0


def test_only_metrics_that_differ_by_far_are_drawn_by_logarithm() -> None:
    assert is_logarithmic("loss", [0.1, 3.1, np.nan])
    assert not is_logarithmic("loss", [0.1, 3.0])
    assert not is_logarithmic("loss", [0.0, 3.0])
    assert not is_logarithmic("loss", [])
    assert not is_logarithmic("accuracy", [0.01, 1.0])
    assert not is_logarithmic("vts", [0.01, 1.0])
