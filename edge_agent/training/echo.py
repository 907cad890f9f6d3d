"""A visit of MA-Echo: plain training from a model of the device's own, then what its data leaves free in each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.descent import descended, metrics
from edge_agent.training.handover import model_of, save_model, sent_model
from edge_agent.training.model_pool import shuffled
from edge_agent.training.objectives import Plain
from edge_agent.training.projections import layers_of, projections
from edge_agent.training.work import Trained
from sojourn.model import vectors
from sojourn.model.lengths import flat

if TYPE_CHECKING:
    from edge_agent.training.descent import Prepared, Progress
    from edge_agent.training.work import Train
    from sojourn.parts import Echo
    from sojourn.store.blobs import BlobStore


def train_echo(work: Train, settings: Echo, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train, and tell the projections of the model that is sent."""
    visit, spec = work.visit, prepared.kit.model
    layers_of(prepared.kit, settings)  # before anything is trained for nothing
    received = model_of(visit, blobs, spec)
    start = shuffled(received, spec, visit.seed) if settings.start == "own" else received
    end, passed = descended(start, Plain(), prepared, visit.task.training, visit.seed, progress)
    model = save_model(blobs, received, end, visit.task, spec)
    seen = sent_model(blobs, received, model, spec)
    told = projections(settings, prepared, seen, visit.task.training.batch)
    sent = {"model": model, "projections": vectors.save(blobs, told, "float32", flat(len(told)))}
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})
