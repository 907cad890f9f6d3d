"""FedBN's visit: what BatchNorm layers hold stays on the device, and all else is shared.

"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (Li et al., ICLR 2021). A device puts the
numbers that it kept into the BatchNorm layers of the model received, trains, and keeps those that came of it. In their
place the numbers received go back, so that whoever sees the result learns nothing of them, and the job's model has
those of its start for ever: a device that comes later, or has lost what it kept, begins with these.

The model is tested twice on samples that it never trains on: as it was put together, which is what the last round's
merge made of it for this device, and as it was trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edge_agent.training.descent import descended, metrics
from edge_agent.training.handover import memory_of, model_of, save_model
from edge_agent.training.held_out import own_figures, parted
from edge_agent.training.objectives import Plain
from edge_agent.training.work import Trained
from sojourn.model import vectors
from sojourn.model.norm_layers import norm_spec, norms_of, with_norms
from sojourn.protocol.figure_names import MERGED

if TYPE_CHECKING:
    from edge_agent.training.descent import Prepared, Progress
    from edge_agent.training.work import Train
    from sojourn.parts import LocalNorms
    from sojourn.store.blobs import BlobStore

NORMS = "norms"
"""What a device remembers: the numbers of its BatchNorm layers, and nothing else of its model."""


def train_with_own_norms(
    work: Train, settings: LocalNorms, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train the model received with the device's own BatchNorm layers."""
    visit, spec = work.visit, prepared.kit.model
    of_norms, received = norm_spec(spec), model_of(visit, blobs, spec)
    memory, remembered = memory_of(work, blobs, of_norms)
    start = with_norms(received, memory[NORMS], spec) if NORMS in memory else received
    parts = parted(prepared.samples, 0.0, settings.test)
    learns = replace(prepared, samples=parts.learnt)
    end, passed = descended(start, Plain(), learns, visit.task.training, visit.seed, progress)
    measured = metrics(passed) | own_figures(prepared, end, parts.test)
    measured |= own_figures(prepared, start, parts.test, MERGED)
    if not of_norms.size:  # all is shared, and nothing is to be remembered
        return Trained(
            {"model": save_model(blobs, received, end, visit.task, spec)}, len(prepared.samples), measured, None, {}
        )
    shared = with_norms(end, norms_of(received, spec), spec)
    kept = {NORMS: vectors.save(blobs, norms_of(end, spec), "float32", of_norms)}
    sent = {"model": save_model(blobs, received, shared, visit.task, spec)}
    return Trained(sent, len(prepared.samples), measured | {"remembered": float(remembered)}, None, kept)
