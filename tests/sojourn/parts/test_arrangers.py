"""The inputs that arrangers need, depending on their settings."""

from __future__ import annotations

import pytest

from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    CustomArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
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
        (CustomArranger(part="mine:Pairs"), "nothing", False, False),
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
def test_arranger_needs_follow_from_its_settings(
    arranger: Arranger, needs: str, weighs: bool, distributions: bool
) -> None:
    assert (arranger.needs, arranger.weighs, arranger.distributions) == (needs, weighs, distributions)
    assert arranger.draws_by_samples == isinstance(arranger, CluSampArranger)


def test_giving_only_one_of_sets_and_size_counts_as_half_sized() -> None:
    given = [(0, 0), (2, 3), (2, 0), (0, 3)]
    assert [FedSeqArranger(sets=sets, size=size).half_sized for sets, size in given] == [False, False, True, True]
