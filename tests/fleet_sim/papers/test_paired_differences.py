"""Paired differences of two methods, per seed."""

import pytest

from fleet_sim.papers.paper_table import KeptRun, read_table
from fleet_sim.papers.table_page import PAGE, difference_lines, write_page
from sojourn.errors import ConfigError

NAN = float("nan")


def kept(method, seed, values, metric="accuracy"):
    course = [
        {"round": str(at), metric: str(value), "loss": "1", "bytes": "1", "clock": "1"}
        for at, value in enumerate(values, 1)
    ]
    return KeptRun(method, seed, "2026-11-18", 1, metric, NAN, NAN, course, 1, 0, "")


def test_shared_variation_cancels_in_the_difference():
    first = [kept("a", seed, [0.0, 0.5 + 0.1 * seed + 0.01]) for seed in (1, 2, 3)]
    second = [kept("b", seed, [0.9, 0.5 + 0.1 * seed]) for seed in (1, 2, 3)]
    (line,) = difference_lines([("a", "b")], {"a": first, "b": second}, last=1)
    assert list(line.values()) == ["a - b", "3", "+ 1.0 ± 0.0 points", "+ 1.0, + 1.0, + 1.0"]


def test_only_seeds_and_rounds_of_both_methods_count():
    done = {"a": [kept("a", 1, [0.5, 0.6]), kept("a", 2, [0.1])], "b": [kept("b", 1, [0.7, 0.8, 0.0])]}
    (line,) = difference_lines([("a", "b"), ("a", "c")], done, last=10)
    assert list(line.values()) == ["a - b", "1", "- 20.0 points", "- 20.0"]


def test_diverged_runs_are_skipped_and_rmse_has_no_points():
    done = {
        "a": [kept("a", seed, [value], "rmse") for seed, value in ((1, 0.5), (2, NAN), (3, 0.7))],
        "b": [kept("b", seed, [0.25], "rmse") for seed in (1, 2, 3)],
    }
    (line,) = difference_lines([("a", "b")], done, last=10)
    assert line["seeds"] == "2"
    assert line["per seed"] == "+ 0.25, + 0.45"
    assert line["mean of the last 10 rounds"] == "+ 0.35 ± 1.3"


def test_pairs_of_a_table_are_checked_and_shown_on_its_page(tmp_path):
    (tmp_path / "table.toml").write_text('title = "Two"\npairs = [["a", "b"]]\n')
    (tmp_path / "a.toml").write_text('name = "a"\n')
    with pytest.raises(ConfigError, match="no method 'b' in this folder"):
        read_table(tmp_path)
    (tmp_path / "b.toml").write_text('name = "b"\n')
    table, _ = read_table(tmp_path)
    runs = {(name, 1): kept(name, 1, values) for name, values in (("a", [0.5, 0.75]), ("b", [0.5, 0.5]))}
    write_page(tmp_path, table, {"a": {}, "b": {}}, runs)
    assert "| a - b | 1 | + 12.5 points | + 12.5 |" in (tmp_path / PAGE).read_text()
