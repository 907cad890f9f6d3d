"""Figures by name: which way is better, by how much, and as people read them."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from sojourn.protocol.figure_names import DIRECTIONS, FIGURES, MAIN, SHARES, called, figure_text, worsening


def test_every_figure_has_a_direction_and_each_kind_its_main_one_first() -> None:
    assert {name for names in FIGURES.values() for name in names} == set(DIRECTIONS)
    assert all(FIGURES[kind][0] == main for kind, main in MAIN.items())
    assert set(DIRECTIONS) >= SHARES


@pytest.mark.parametrize(
    ("name", "figure", "before", "lost"),
    [("rmse", 3.0, 2.0, 0.5), ("rmse", 1.0, 2.0, -0.5), ("accuracy", 0.4, 0.5, 0.2), ("r2", -2.0, -1.0, 1.0),
     ("loss", 0.0, 0.0, 0.0), ("loss", 1.0, 0.0, inf), ("accuracy", 1.0, 0.0, -inf)],
)  # fmt: skip
def test_a_figure_becomes_worse_by_its_own_direction(name: str, figure: float, before: float, lost: float) -> None:
    assert worsening(name, figure, before) == pytest.approx(lost)


def test_what_is_unknown_is_not_worse() -> None:
    assert isnan(worsening("rmse", nan, 1.0))
    assert isnan(worsening("rmse", 1.0, nan))
    assert isnan(worsening("unheard", 1.0, 2.0))


def test_only_shares_are_percentages() -> None:
    assert figure_text("accuracy", 0.876) == "87.6 %"
    assert figure_text("r2", 0.876) == "0.876"
    assert figure_text("rmse", 12.34567) == "12.35"
    assert figure_text("mae", 123456.7) == "123,457"
    assert figure_text("perplexity", 1.5e12) == "1.500e+12"
    assert figure_text("rmse", nan) == "-"
    assert (called("rmse"), called("anomaly_auc"), called("own")) == ("RMSE", "fault AUC", "own")
