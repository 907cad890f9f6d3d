"""VISIT's claims about its sets against FedSeq's and HierCluster's (Figs. 2 and 3 of the paper)."""

from __future__ import annotations

import numpy as np
import pytest

from hierarchy.arranging.arrangement import ArrangeContext, Candidates, arrange, quality_of
from sojourn.parts import Arranger, FedSeqArranger, HierClusterArranger, VisitArranger

DEVICES = tuple(f"d{number:03}" for number in range(100))
SPLITS = range(10)


def split(alpha: float, seed: int) -> Candidates:
    """Return the label distributions of a Dirichlet split as slightly noisy signatures."""
    draw = np.random.default_rng(seed)
    labels = draw.dirichlet([alpha] * 10, len(DEVICES))
    signatures = np.clip(labels + draw.normal(0, 0.02, labels.shape), 0, 1)
    return Candidates(DEVICES, {"hall": frozenset(DEVICES)}, signatures)


def means(arranger: Arranger, fleets: list[Candidates]) -> dict[str, float]:
    found = [
        quality_of(arrange(arranger, candidates, ArrangeContext(seed)).sets, candidates)
        for seed, candidates in enumerate(fleets)
    ]
    return {name: float(np.mean([each[name] for each in found])) for name in ("vts", "inter_cs", "intra_cs")}


@pytest.mark.parametrize(
    ("alpha", "sets", "size"),
    [
        *((alpha, 9, 4) for alpha in (0.05, 0.1, 0.25, 0.5, 1.0)),
        *((0.05, sets, size) for sets, size in ((4, 9), (6, 6), (12, 3), (18, 2))),
    ],
)
def test_visit_is_most_balanced_and_fedseq_most_diverse(alpha: float, sets: int, size: int) -> None:
    fleets = [split(alpha, seed) for seed in SPLITS]
    visit = means(VisitArranger(sets=sets, size=size), fleets)
    fedseq = means(FedSeqArranger(tau="cosine", estimate="mean", sets=sets, size=size), fleets)
    hiercluster = means(HierClusterArranger(sets=sets, size=size), fleets)
    assert visit["vts"] > fedseq["vts"] + 0.01 > hiercluster["vts"] + 0.06
    assert visit["inter_cs"] > fedseq["inter_cs"] + 0.01 > hiercluster["inter_cs"] + 0.06
    assert fedseq["intra_cs"] < visit["intra_cs"] - 0.01
    assert visit["intra_cs"] < hiercluster["intra_cs"] - 0.1
