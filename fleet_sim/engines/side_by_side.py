"""Several brief visits at once, with the device's own graphs and bits: their steps run side by side.

Objectives and optimisers are the device's, on vectors of shape (B, P); number by number they do what they do on one.
What is no plain descent (`descents`) runs one after another.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.training import objectives, optimisers
from edge_agent.training.work import Train, Trained
from fleet_sim.engines.descents import Descent, descends
from fleet_sim.engines.engine import outcome_of
from fleet_sim.engines.side_by_side_graphs import SideBySideGraphs, StepInput
from sojourn.errors import SojournError
from sojourn.model.session import REFUSED
from sojourn.node.machine import Did
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared
    from edge_agent.training.work import Warm
    from fleet_sim.engines.engine import Outcome, Shards
    from fleet_sim.engines.visit_trainer import ReadKit, VisitTrainer
    from sojourn.store.memory_blobs import MemoryBlobs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VisitHere:
    """A visit to be trained in this process; what it brings is in `store`, and what it makes goes there."""

    shards: Shards
    device: str
    key: str
    work: Train | Warm
    kit: ReadKit
    store: MemoryBlobs


class SideBySideTrainer:
    """Trains visits together where that is possible, and the others one after another."""

    def __init__(self, trainer: VisitTrainer) -> None:
        self._trainer = trainer
        self._graphs: tuple[Any, SideBySideGraphs] | None = None

    def train(self, visits: Sequence[VisitHere]) -> tuple[list[Outcome], int]:
        """The outcome of each visit, and how many of them were trained together with others."""
        outcomes: dict[int, Outcome] = {}
        groups: dict[Any, list[tuple[int, Descent]]] = {}
        for at, visit in enumerate(visits if len(visits) > 1 else ()):
            descent = self._descent(visit)
            if descent:
                groups.setdefault(descent.kind, []).append((at, descent))
        for group in groups.values():
            if len(group) > 1:
                outcomes |= self._together({at: visits[at].key for at, _ in group}, [descent for _, descent in group])
        together = len(outcomes)
        for at, visit in enumerate(visits):
            if at not in outcomes:
                outcomes[at] = self._trainer.train(
                    visit.shards, visit.device, visit.key, visit.work, {}, visit.kit, visit.store
                )
        return [outcomes[at] for at in range(len(visits))], together

    def _descent(self, visit: VisitHere) -> Descent | None:
        """The visit made ready; None where it has to run alone, or cannot run at all: then it is refused alone."""
        work = visit.work
        if not isinstance(work, Train) or not descends(work.visit.task) or work.visit.task.threads not in {0, 1}:
            return None
        try:
            prepared = self._trainer.prepare(visit.shards, visit.device, work, visit.kit)
            alone = prepared.kit.model.state or prepared.kit.learns.beside
            return None if alone else Descent.of(work, prepared, visit.store)
        except (SojournError, KeyError):
            return None

    def _together(self, keys: Mapping[int, str], group: Sequence[Descent]) -> dict[int, Outcome]:
        """The outcomes by the visits' places, as `keys` has them; none where they have to run alone after all."""
        began = perf_counter()
        try:
            ends = descend_side_by_side(group, self._graphs_of(group[0].prepared))
            done = [descent.result(*end) for descent, end in zip(group, ends, strict=True)]
        except (SojournError, *REFUSED) as error:
            log.debug("%d visits do not run together: %s", len(group), error)
            return {}
        seconds = (perf_counter() - began) / len(group)
        return {
            at: outcome_of(Did(key, _timed(each, descent.prepared, seconds)), descent.blobs)
            for (at, key), descent, each in zip(keys.items(), group, done, strict=True)
        }

    def _graphs_of(self, prepared: Prepared) -> SideBySideGraphs:
        if self._graphs is None or self._graphs[0] is not prepared.graphs:
            self._graphs = prepared.graphs, SideBySideGraphs(prepared.kit, prepared.graphs)
        return self._graphs[1]


def descend_side_by_side(
    group: Sequence[Descent], graphs: SideBySideGraphs
) -> list[tuple[NDArray[np.float32], list[float]]]:
    """The vector with which each visit ends, and the loss of each of its steps. A visit that is done stays so."""
    training = group[0].work.visit.task.training
    longest_first = sorted(range(len(group)), key=lambda at: -len(group[at].order))
    visits = [group[at] for at in longest_first]
    w = np.stack([visit.start for visit in visits])
    objective = objectives.begin(
        visits[0].objective,
        w.copy(),
        {name: np.stack([visit.received[name] for visit in visits]) for name in visits[0].received},
        {name: np.stack([visit.memory[name] for visit in visits]) for name in visits[0].memory},
    )
    assert objective is not None  # noqa: S101  # all but FedELMY's and one's own are known
    optimiser, ends = optimisers.begin(training), np.empty_like(w)
    losses: list[list[float]] = [[] for _ in visits]
    with np.errstate(over="ignore", invalid="ignore"):  # the gate stops a model that diverges
        for step in range(len(visits[0].order)):
            now = [_step_input(visit, step) for visit in visits if step < len(visit.order)]

            def slope(at: NDArray[np.float32], now: Sequence[StepInput] = now) -> Any:
                return graphs.losses_and_gradients(at, now)

            loss, direction = objective.direction(w, slope)
            optimiser.move(w, direction)
            for at in range(len(now)):
                losses[at].append(loss[at])
                if len(visits[at].order) == step + 1:
                    ends[at] = w[at]
    found = dict(zip(longest_first, zip(ends, losses, strict=True), strict=True))
    return [found[at] for at in range(len(group))]


def _step_input(visit: Descent, step: int) -> StepInput:
    """The samples and the noise of a step, as the device takes them."""
    index, kit = visit.order[step], visit.prepared.kit
    x, y = visit.samples.batch(index, kit.input.dtype)
    return StepInput(x, y, noise(visit.seed, step, len(index), kit.noise))


def _timed(done: Trained, prepared: Prepared, seconds: float) -> Trained:
    measured = done.metrics | {"seconds": seconds}
    return msgspec.structs.replace(done, metrics=measured, note=prepared.note, warnings=prepared.warnings)
