"""Loaded graphs are reused by the next visit: opening a graph can take longer than a visit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.finishers.fedgen import first_generator
from sojourn.model import graphs, vectors
from sojourn.model.vectors import flat
from sojourn.parts import Generated, Outliers
from sojourn.protocol.spec import InputSpec
from tests.edge_agent.training.kits import CLASSES, Bench, visit_for

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train


def compiled(outputs: int, **how: Any) -> Compiled:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, outputs))
    return compile_kit(net, InputSpec((1, 8, 8)), CLASSES, mean=[8.0], std=[4.0], seed=1, **how)


def with_outliers(bench: Bench) -> Train:
    made = compiled(len(CLASSES) + 1, outliers=Outliers())
    return visit_for(bench.blobs, objective=Outliers(), model=made, epochs=1)


def with_a_generator(bench: Bench) -> Train:
    """A visit of the second round: in the first there is no frozen model."""
    settings, made = Generated(hidden=8), compiled(len(CLASSES), soft=True)
    work = visit_for(bench.blobs, objective=settings, model=made, epochs=1)
    generator = first_generator(settings, made.kit, 1)["generator"]
    sent = {"generator": vectors.save(bench.blobs, generator, "float32", flat(len(generator)))}
    visit = msgspec.structs.replace(
        work.visit, id=msgspec.structs.replace(work.visit.id, round=2), vectors=work.visit.vectors | sent
    )
    return msgspec.structs.replace(work, visit=visit)


@pytest.mark.parametrize(
    ("make", "loaded"),
    [
        (with_outliers, ["the training graph", "the graph of input gradients", "the training graph with outliers"]),
        (with_a_generator, ["the training graph", "the training graph with soft targets"]),
    ],
)
def test_second_visit_opens_no_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, loaded: list[str]
) -> None:
    bench, opened, really = Bench(tmp_path), list[str](), graphs.graph_session
    work = make(bench)

    def open_and_note(graph: bytes, threads: int, name: str, given: Any) -> Any:
        opened.append(name)
        return really(graph, threads, name, given)

    monkeypatch.setattr(graphs, "graph_session", open_and_note)
    first = bench.perform(work)
    assert opened == loaded
    assert bench.perform(work).vectors == first.vectors
    assert opened == loaded
    # A device that starts with this visit gets the same bits.
    other = Bench(tmp_path)
    assert other.perform(make(other)).vectors == first.vectors
