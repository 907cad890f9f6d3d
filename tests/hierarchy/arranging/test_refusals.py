"""Arrangements that cannot be made, and their error messages."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hierarchy.arranging.arrangement import MAX_HOPS, ArrangeContext, Arranged, Candidates, arrange, check
from sojourn.errors import JobError
from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
)
from sojourn.protocol.messages import Tour


def some_candidates(count: int) -> Candidates:
    draw, devices = np.random.default_rng(1), tuple(f"d{number:04}" for number in range(count))
    return Candidates(
        devices, {"hall": frozenset(devices)}, draw.dirichlet([0.3] * 5, count), draw.integers(50, 300, count)
    )


def refusal(arranger: Arranger, candidates: Candidates) -> str | None:
    reason = check(arranger, candidates, ArrangeContext(1))
    if reason is not None:
        with pytest.raises(JobError) as raised:
            arrange(arranger, candidates, ArrangeContext(1))
        assert str(raised.value) == reason
    return reason


def test_too_few_devices_are_rejected() -> None:
    counted: dict[str, Arranger] = {
        "visit": VisitArranger(sets=4),
        "random": RandomArranger(sets=4),
        "fedseq": FedSeqArranger(sets=4, size=2),
        "icg": IcgArranger(sets=4),
        "fedcat": FedCatArranger(sets=4),
        "hiercluster": HierClusterArranger(sets=4),
        "clusamp": CluSampArranger(sets=4),
    }
    for name, arranger in counted.items():
        needed = f"{name} needs at least 4 devices for 4 sets; 3 are online"
        remedy = "arranger.sets = 3 would use all of them"
        assert refusal(arranger, some_candidates(3)) == f"{needed}: {remedy}"
        assert refusal(arranger, some_candidates(4)) is None
    free: dict[str, Arranger] = {
        "single": SingleArranger(),
        "chain": ChainArranger(),
        "site": SiteArranger(),
        "fedseq": FedSeqArranger(),
        "random": RandomArranger(sets=1),
    }
    for name, arranger in free.items():
        assert refusal(arranger, Candidates((), {})) == f"{name} needs at least 1 device; none is online"
        assert refusal(arranger, some_candidates(1)) is None


def test_devices_without_finite_signatures_are_rejected() -> None:
    candidates = some_candidates(4)
    unknown = Candidates(candidates.devices, candidates.reach, None, candidates.samples)
    odd = Candidates(
        candidates.devices, candidates.reach, np.array([[1.0], [2.0], [np.nan], [1.0]]), candidates.samples
    )
    needy: dict[str, Arranger] = {
        "visit": VisitArranger(sets=4),
        "fedseq": FedSeqArranger(),
        "icg": IcgArranger(sets=4),
        "hiercluster": HierClusterArranger(sets=4),
        "clusamp": CluSampArranger(sets=4),
    }
    for name, arranger in needy.items():
        assert refusal(arranger, unknown) == f"{name} needs a signature of every device; choose an estimator"
        assert refusal(arranger, odd) == f"{name} needs finite signatures; that of d0002 is not finite (1 in total)"
        assert refusal(arranger, candidates) is None
    assert refusal(FedSeqArranger(grouping="random"), unknown) is None


def test_rows_of_another_kind_are_rejected() -> None:
    candidates = some_candidates(4)
    weights = Candidates(
        candidates.devices, candidates.reach, candidates.signatures, candidates.samples, by_class=False
    )
    why = "needs one number for each class of every device; these rows have other columns"
    assert refusal(VisitArranger(), weights) == f"visit {why}"
    assert refusal(FedSeqArranger(), weights) == f"fedseq with kl {why}"
    assert refusal(FedSeqArranger(tau="gini"), weights) == f"fedseq with gini {why}"
    assert refusal(FedSeqArranger(tau="wasserstein"), weights) == f"fedseq with wasserstein {why}"
    fine: list[Arranger] = [FedSeqArranger(tau="cosine"), FedSeqArranger(tau="euclidean"), IcgArranger(sets=2)]
    for arranger in [*fine, FedSeqArranger(grouping="k-means"), HierClusterArranger(), CluSampArranger(sets=2)]:
        assert refusal(arranger, weights) is None
    below = Candidates(
        candidates.devices, candidates.reach, np.array([[1.0], [1.0], [-0.1], [1.0]]), candidates.samples
    )
    expected = "fedseq with kl needs rows without negative numbers; that of d0002 has some"
    assert refusal(FedSeqArranger(), below) == expected
    assert refusal(FedSeqArranger(tau="cosine"), below) is None


def test_missing_sample_counts_are_rejected() -> None:
    candidates = some_candidates(4)
    unknown = Candidates(candidates.devices, candidates.reach, candidates.signatures)
    why = "needs the number of samples of each device; choose an estimator that measures it"
    assert refusal(FedSeqArranger(), unknown) == f"fedseq {why}"
    assert refusal(FedSeqArranger(grouping="random"), unknown) == f"fedseq {why}"
    assert refusal(FedSeqArranger(sets=2, size=2, estimate="weighted-mean"), unknown) == f"fedseq {why}"
    assert refusal(CluSampArranger(sets=2), unknown) == f"clusamp {why}"
    assert refusal(FedSeqArranger(sets=2, size=2, grouping="random"), unknown) is None
    assert refusal(FedSeqArranger(sets=2, size=2, grouping="k-means"), unknown) is None
    assert refusal(FedSeqArranger(sets=2, size=2, grouping="greedy"), unknown) is None
    empty = Candidates(candidates.devices, candidates.reach, candidates.signatures, np.zeros(4, np.int64))
    assert refusal(CluSampArranger(sets=2), empty) == ("clusamp needs devices with samples; no online device has any")


def test_fedseq_needs_both_sets_and_size_or_neither() -> None:
    assert refusal(FedSeqArranger(sets=2), some_candidates(4)) == (
        "fedseq needs both sets and size, or neither; sets is 2 and size is 0"
    )
    assert refusal(FedSeqArranger(size=2), some_candidates(4)) == (
        "fedseq needs both sets and size, or neither; sets is 0 and size is 2"
    )


def test_tour_is_limited_to_hops_of_one_message() -> None:
    hops = msgspec.json.schema(Tour)["$defs"]["Tour"]["properties"]["hops"]
    assert hops["maxItems"] == MAX_HOPS
    candidates = some_candidates(3000)
    long: dict[str, Arranger] = {
        "visit": VisitArranger(sets=1, size=3000),
        "random": RandomArranger(sets=1, size=3000),
        "fedseq": FedSeqArranger(sets=1, size=3000),
        "hiercluster": HierClusterArranger(sets=1, size=3000),
    }
    for name, arranger in long.items():
        assert refusal(arranger, candidates) == f"{name} would make tours of 3000 visits; a tour has at most 2500"
        assert check(arranger, some_candidates(2500), ArrangeContext(1)) is None
    with pytest.raises(JobError, match="chain made a tour of 3000 visits; a tour has at most 2500"):
        arrange(ChainArranger(), candidates, ArrangeContext(1))
    assert isinstance(arrange(ChainArranger(), some_candidates(2500), ArrangeContext(1)), Arranged)
