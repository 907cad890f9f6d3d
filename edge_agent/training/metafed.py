"""The visit of MetaFed: a device with a good own model trains that one, any other trains the received model.

"MetaFed: Federated Learning among Federations with Cyclic Knowledge Distillation for Personalized Healthcare" (Chen et
al., 2022). Whether a device's model is good depends on its accuracy on held-out samples; this flag is never reset. For
the phases see `sojourn.parts.objectives`. The trained model is sent only in the phases on the ring; otherwise it stays
on the device, and the received model is sent back unchanged.

What the paper leaves open:
- A device without an own model (it joined later, or lost its store) takes the received one in every phase.
- The first device of a ring has no model to learn from: it trains its own. If that device is lost, the next is first.
- The received model is copied once per visit, not once per epoch.
- Without held-out samples, the accuracy of both models is 0: a device then keeps its own only if the threshold is below
  0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.descent import Prepared, Progress, descended, metrics
from edge_agent.training.held_out import SampleParts, accuracy, own_metrics, parted
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Objective, Plain, TwoStream
from edge_agent.training.visit_vectors import Unsupported, memory_of, model_of, save_model
from sojourn.model import vectors
from sojourn.model.layers import norms_of, with_norms
from sojourn.parts import Common
from sojourn.protocol.messages import Visit
from sojourn.protocol.metric_names import OWN, VALIDATION
from sojourn.protocol.spec import ModelSpec
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

MINE, GOOD = "own", "own-good"
"""The name of a device's stored model: without the flag for a good model, and with it."""


@dataclass(frozen=True)
class StartRule:
    """The model that a visit starts from, and the weight of the pull towards the received model's features."""

    start: Vector
    pull: float = 0.0


def train_own_model(work: Train, settings: Common, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train the device's own model, or the received one, and store the result."""
    visit, spec = work.visit, prepared.kit.model
    received, (memory, remembered) = model_of(visit, blobs, spec), memory_of(work, blobs, spec)
    own, is_good = next(iter(memory.values()), None), GOOD in memory
    parts = parted(prepared.samples, settings.validation, settings.test)
    rule = start_rule(settings, visit, received, own, is_good=is_good, prepared=prepared, parts=parts)
    training = msgspec.structs.replace(
        visit.task.training, epochs=settings.passes(visit.task.training.epochs, visit.earlier)
    )
    learns = replace(prepared, samples=parts.training)
    objective = _objective(rule, received, prepared)
    end, passed = descended(rule.start, objective, learns, training, visit.seed, progress)
    validated = accuracy(prepared, end, parts.validation)
    name = GOOD if is_good or validated > settings.threshold else MINE
    measured = metrics(passed) | {"remembered": float(remembered)} | own_metrics(prepared, end, parts.test)
    measured |= {OWN + VALIDATION: validated} if parts.validation else {}
    sent_back = received if settings.alone else end
    sent = {"model": save_model(blobs, received, sent_back, visit.task, spec)}
    kept = {name: vectors.save(blobs, end, "float32", spec)}
    return Trained(sent, len(prepared.samples), measured, None, kept)


def start_rule(  # all inputs of the choice
    settings: Common,
    visit: Visit,
    received: Vector,
    own: Vector | None,
    *,
    is_good: bool,
    prepared: Prepared,
    parts: SampleParts,
) -> StartRule:
    """Choose between the device's own model, with or without a pull, and the received one."""
    if own is None:
        return StartRule(received)
    if settings.phase == "warm-up" or (settings.phase == "begin" and not visit.earlier):
        return StartRule(own)
    if not is_good:
        return StartRule(_taken(received, own, settings, prepared.kit.model))
    if settings.phase != "personalise":
        return StartRule(own, settings.lam)
    theirs, mine = (accuracy(prepared, w, parts.validation) for w in (received, own))
    return StartRule(own, pull_towards(settings, theirs, mine))


def pull_towards(settings: Common, theirs: float, mine: float) -> float:
    """Return the weight of the pull in the personalisation phase, from the accuracies of both models.

    0 if the received model is not better and below the floor; lam if its accuracy is higher by at least 0.2; a tenth of
    lam if both are equal.
    """
    if theirs <= mine and theirs < settings.floor:
        return 0.0
    weight: float = settings.lam * 10.0 ** min(1.0, 5.0 * (theirs - mine)) / 10.0
    return weight


def _taken(received: Vector, own: Vector, settings: Common, spec: ModelSpec) -> Vector:
    """Return the received model, with its BatchNorm layers or with the device's own."""
    return received if settings.share_norms else with_norms(received, norms_of(own, spec), spec)


def _objective(rule: StartRule, received: Vector, prepared: Prepared) -> Objective:
    """Return the plain objective, or the one with a pull towards the received model's features."""
    if not rule.pull:
        return Plain()
    if not prepared.kit.two_stream:
        raise Unsupported("the kit has no graph that compares features with those of another model")
    return TwoStream((received,), (rule.pull,))
