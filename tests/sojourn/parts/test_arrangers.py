"""What an arranger needs is a property of its settings."""

from __future__ import annotations

import pytest

from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    OwnArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
)


@pytest.mark.parametrize(
    ("arranger", "needs", "weighs", "distributions"),
    [
        (SingleArranger(), "nothing", False, False),
        (RandomArranger(), "nothing", False, False),
        (FedCatArranger(), "nothing", False, False),
        (ChainArranger(), "nothing", False, False),
        (SiteArranger(), "nothing", False, False),
        (OwnArranger(part="mine:Pairs"), "nothing", False, False),
        (VisitArranger(), "classes", False, False),
        (IcgArranger(), "rows", False, False),
        (HierClusterArranger(), "rows", False, False),
        (CluSampArranger(), "rows", True, False),
        (FedSeqArranger(), "rows", True, True),
        (FedSeqArranger(tau="cosine"), "rows", True, False),
        (FedSeqArranger(grouping="k-means"), "rows", True, False),
        (FedSeqArranger(grouping="random"), "nothing", True, False),
        (FedSeqArranger(sets=2, size=3), "rows", False, True),
        (FedSeqArranger(sets=2, size=3, estimate="weighted-mean"), "rows", True, True),
        (FedSeqArranger(sets=2, size=3, estimate="weighted-mean", grouping="k-means"), "rows", False, False),
    ],
)
def test_what_an_arranger_needs(arranger: Arranger, needs: str, weighs: bool, distributions: bool) -> None:
    assert (arranger.needs, arranger.weighs, arranger.distributions) == (needs, weighs, distributions)
    assert arranger.draws_by_samples == isinstance(arranger, CluSampArranger)


def test_sets_and_size_go_together() -> None:
    given = [(0, 0), (2, 3), (2, 0), (0, 3)]
    assert [FedSeqArranger(sets=sets, size=size).half_sized for sets, size in given] == [False, False, True, True]
