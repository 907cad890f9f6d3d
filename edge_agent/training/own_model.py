"""MetaFed's visit: a device that has a good model goes on from it, any other from the one received.

"MetaFed: Federated Learning among Federations with Cyclic Knowledge Distillation for Personalized Healthcare" (Chen et
al., 2022). Which of the two it is, a device says by the right answers on samples that it holds out (its flag, which is
never taken back); what a phase means stands in `sojourn.parts.objectives`. Only on the ring the model goes on; what a
device makes alone stays there, and the model received goes back as it came.

What the paper leaves open:
- A device without a model of its own (it came later, or lost its store) takes the one received, whatever the phase.
- The first device of a ring has no model to learn from: it goes on from its own. If it is lost, the next one is first.
- The model received is copied once for a visit, not once for an epoch.
- Without samples to ask, both models have no right answers: a device then keeps its own only below a threshold of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.descent import descended, metrics
from edge_agent.training.handover import memory_of, model_of, save_model
from edge_agent.training.held_out import own_figures, parted, share_right
from edge_agent.training.objectives import Plain
from edge_agent.training.reasons import Unsupported
from edge_agent.training.second_stream import TwoStream
from edge_agent.training.work import Trained
from sojourn.model import vectors
from sojourn.model.norm_layers import norms_of, with_norms
from sojourn.protocol.figure_names import OWN, VALIDATION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared, Progress
    from edge_agent.training.held_out import SampleParts
    from edge_agent.training.objectives import Objective
    from edge_agent.training.work import Train
    from sojourn.parts import Common
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.spec import ModelSpec
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]

MINE, GOOD = "own", "own-good"
"""The two names of the model that a device remembers: without its flag, and with it."""


@dataclass(frozen=True)
class StartRule:
    """Where a visit starts, and how strongly it is drawn to the features of the model received; 0 for not at all."""

    start: Vector
    pull: float = 0.0


def train_own_model(work: Train, settings: Common, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train the device's own model, or the one received, and keep what comes of it."""
    visit, spec = work.visit, prepared.kit.model
    received, (memory, remembered) = model_of(visit, blobs, spec), memory_of(work, blobs, spec)
    own, is_good = next(iter(memory.values()), None), GOOD in memory
    parts = parted(prepared.samples, settings.validation, settings.test)
    rule = start_rule(settings, visit, received, own, is_good=is_good, prepared=prepared, parts=parts)
    training = msgspec.structs.replace(
        visit.task.training, epochs=settings.passes(visit.task.training.epochs, visit.earlier)
    )
    learns = replace(prepared, samples=parts.learnt)
    objective = _objective(rule, received, prepared)
    end, passed = descended(rule.start, objective, learns, training, visit.seed, progress)
    right = share_right(prepared, end, parts.validation)
    name = GOOD if is_good or right > settings.threshold else MINE
    measured = metrics(passed) | {"remembered": float(remembered)} | own_figures(prepared, end, parts.test)
    measured |= {OWN + VALIDATION: right} if parts.validation else {}
    handed_on = received if settings.alone else end
    sent = {"model": save_model(blobs, received, handed_on, visit.task, spec)}
    kept = {name: vectors.save(blobs, end, "float32", spec)}
    return Trained(sent, len(prepared.samples), measured, None, kept)


def start_rule(  # all that the choice is made of
    settings: Common,
    visit: Visit,
    received: Vector,
    own: Vector | None,
    *,
    is_good: bool,
    prepared: Prepared,
    parts: SampleParts,
) -> StartRule:
    """From its own model, drawn to the one received or not; or from that one."""
    if own is None:
        return StartRule(received)
    if settings.phase == "warm-up" or (settings.phase == "begin" and not visit.earlier):
        return StartRule(own)
    if not is_good:
        return StartRule(_taken(received, own, settings, prepared.kit.model))
    if settings.phase != "personalise":
        return StartRule(own, settings.lam)
    theirs, mine = (share_right(prepared, w, parts.validation) for w in (received, own))
    return StartRule(own, pull_towards(settings, theirs, mine))


def pull_towards(settings: Common, theirs: float, mine: float) -> float:
    """How strongly a device that personalises is drawn, by the right answers of the model received and of its own.

    Not at all where the model received is no better and below the floor; lam where it has 20 % more right answers; a
    tenth of lam where both have as many.
    """
    if theirs <= mine and theirs < settings.floor:
        return 0.0
    drawn: float = settings.lam * 10.0 ** min(1.0, 5.0 * (theirs - mine)) / 10.0
    return drawn


def _taken(received: Vector, own: Vector, settings: Common, spec: ModelSpec) -> Vector:
    """The model received, with its BatchNorm layers or with the device's own."""
    return received if settings.share_norms else with_norms(received, norms_of(own, spec), spec)


def _objective(rule: StartRule, received: Vector, prepared: Prepared) -> Objective:
    """The plain loss, or that with the features drawn to those of the model received."""
    if not rule.pull:
        return Plain()
    if not prepared.kit.two_stream:
        raise Unsupported("the kit has no graph that compares features with those of another model")
    return TwoStream((received,), (rule.pull,))
