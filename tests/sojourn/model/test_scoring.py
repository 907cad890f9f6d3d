"""Repeated scoring runs the trunk once per sample if the features fit into the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from sojourn.model import scoring
from sojourn.model.exemplar_view import ExemplarView
from sojourn.model.exemplars import Exemplars, signature, signature_of
from sojourn.model.graphs import Graphs, probe_vector
from sojourn.model.scoring import ScoredSamples, scores_of
from sojourn.model.workload import built_in
from sojourn.protocol.spec import Trunk
from tests.sojourn.model.test_kit_rules import trunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = built_in().input.shape
KIT = msgspec.structs.replace(built_in(), trunk=Trunk(trunk({"x": ["b", *SHAPE]}, {"features": ["b", *SHAPE]}), SHAPE))
W = probe_vector(KIT.model.sizes)
COUNT = 300


class CountedTrunk(Graphs):
    """Graphs that count the samples that pass through their trunk."""

    rows = 0

    def features(self, x: NDArray[np.generic]) -> NDArray[np.generic]:
        self.rows += len(x)
        return super().features(x)


def samples() -> Exemplars:
    draw = np.random.default_rng(1)
    return Exemplars.of(draw.integers(0, 255, (COUNT, *SHAPE), dtype=np.uint8), draw.integers(0, 10, COUNT))


@pytest.mark.parametrize("cores", [1, 2])
def test_test_set_passes_the_trunk_once(cores: int) -> None:
    graphs, plain = CountedTrunk(KIT), Graphs(built_in())
    scored = ScoredSamples(samples(), graphs, cores=cores)
    begun = graphs.rows
    assert begun in (COUNT, COUNT + 1)
    found = scores_of(graphs, W, scored, cores=cores)
    assert found == scores_of(plain, W, ScoredSamples(samples(), plain))
    assert signature_of(graphs, W, scored, 10) == signature(plain, W, samples(), 10)
    assert graphs.rows == begun


def test_features_over_the_memory_limit_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_CACHED", 1000)
    graphs, plain = CountedTrunk(KIT), Graphs(built_in())
    scored = ScoredSamples(samples(), graphs)
    for times in (1, 2):
        assert scores_of(graphs, W, scored) == scores_of(plain, W, ScoredSamples(samples(), plain))
        assert graphs.rows == 1 + times * COUNT


def test_exemplars_pass_the_trunk_once() -> None:
    graphs, plain = CountedTrunk(KIT), Graphs(built_in())
    views = [ExemplarView(KIT, graphs, samples()), ExemplarView(built_in(), plain, samples())]
    begun = graphs.rows
    for digest in (b"1", b"2"):
        assert views[0].loss(W, digest) == views[1].loss(W, digest)
        assert np.array_equal(views[0].gradient(W, digest), views[1].gradient(W, digest))
    assert graphs.rows == begun == 128
