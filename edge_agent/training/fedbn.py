"""The visit of FedBN: the parameters of BatchNorm layers stay on the device, and all others are shared.

"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (Li et al., ICLR 2021). A device puts its
stored parameters into the BatchNorm layers of the received model, trains, and stores the new ones. It sends back the
received BatchNorm parameters, so that the result reveals nothing about its own. The job's model therefore keeps its
initial BatchNorm parameters, and a device that joins later, or has lost its own, starts with these.

The model is tested twice on samples that it never trains on: before training, which measures the last round's merge on
this device, and after training.
"""

from __future__ import annotations

from dataclasses import replace

from edge_agent.training.descent import Prepared, Progress, descended, metrics
from edge_agent.training.held_out import own_metrics, parted
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Plain
from edge_agent.training.visit_vectors import memory_of, model_of, save_model
from sojourn.model import vectors
from sojourn.model.layers import norm_spec, norms_of, with_norms
from sojourn.parts import LocalNorms
from sojourn.protocol.metric_names import MERGED
from sojourn.store.blobs import BlobStore

NORMS = "norms"
"""The name of a device's memory: the parameters of its BatchNorm layers."""


def train_with_own_norms(
    work: Train, settings: LocalNorms, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train the received model with the device's own BatchNorm layers."""
    visit, spec = work.visit, prepared.kit.model
    of_norms, received = norm_spec(spec), model_of(visit, blobs, spec)
    memory, remembered = memory_of(work, blobs, of_norms)
    start = with_norms(received, memory[NORMS], spec) if NORMS in memory else received
    parts = parted(prepared.samples, 0.0, settings.test)
    learns = replace(prepared, samples=parts.training)
    end, passed = descended(start, Plain(), learns, visit.task.training, visit.seed, progress)
    measured = metrics(passed) | own_metrics(prepared, end, parts.test)
    measured |= own_metrics(prepared, start, parts.test, MERGED)
    if not of_norms.size:  # without BatchNorm layers, all parameters are shared
        return Trained(
            {"model": save_model(blobs, received, end, visit.task, spec)}, len(prepared.samples), measured, None, {}
        )
    shared = with_norms(end, norms_of(received, spec), spec)
    kept = {NORMS: vectors.save(blobs, norms_of(end, spec), "float32", of_norms)}
    sent = {"model": save_model(blobs, received, shared, visit.task, spec)}
    return Trained(sent, len(prepared.samples), measured | {"remembered": float(remembered)}, None, kept)
