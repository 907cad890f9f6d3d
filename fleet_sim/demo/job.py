"""The demo's job: the numbers of a paper, made for a hundred devices and hours, cut to what is on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.strategies import named
from sojourn.parts import (
    CluSampArranger,
    Elmy,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    OneShot,
    PhasedRing,
    RandomArranger,
    Ring,
    SequentialToParallel,
    VisitArranger,
)

if TYPE_CHECKING:
    from coordinator.strategies import Strategy
    from fleet_sim.demo.fleet import Demo

TRAINING = {"epochs": 2, "batch": 16, "lr": 0.05}
MODEL_POOL_TRAINING = {"epochs": 5, "batch": 16, "lr": 0.003}
MODEL_POOL = {"models": 3, "warmup": 5}
WARMUP = 5
"""Epochs that devices of MetaFed train alone."""


def demo_job(name: str, demo: Demo) -> dict[str, Any]:
    """The demo's job file as tables."""
    strategy = named(demo.strategy, "--strategy")
    has_model_pool = isinstance(strategy.objective, Elmy)
    job: dict[str, Any] = {
        "name": name,
        "strategy": demo.strategy,
        "seed": demo.seed,
        "threads": 1,
        "model": {"name": "mlp"},
        "data": {"test": "digits"},
        "fleet": {"devices": demo.devices},
        "training": MODEL_POOL_TRAINING if has_model_pool else TRAINING,
        **({"objective": MODEL_POOL} if has_model_pool else {}),
        **_arranger(strategy, demo),
        **_schedule(strategy, demo),
    }
    if demo.target:
        job["target"] = demo.target
    return job


def _arranger(strategy: Strategy, demo: Demo) -> dict[str, Any]:
    share = max(1, demo.devices // demo.edges)
    match strategy.arranger:
        case VisitArranger() | HierClusterArranger():
            return {"arranger": {"sets": demo.edges, "size": share}}
        case RandomArranger(size=size) if size:
            return {"arranger": {"sets": demo.edges, "size": share}}
        case RandomArranger() | IcgArranger():
            return {"arranger": {"sets": demo.edges}}
        case FedCatArranger() | CluSampArranger():
            return {"arranger": {"sets": max(1, demo.devices // 2)}}
        case FedSeqArranger():
            return {"arranger": {"max_devices": share}}
        case _:
            return {}


def _schedule(strategy: Strategy, demo: Demo) -> dict[str, Any]:
    match strategy.schedule:
        case Ring() if strategy.schedule.trips > 1:
            return {"schedule": {"trips": min(demo.rounds, strategy.schedule.trips)}}
        case PhasedRing():
            return {"schedule": {"trips": max(1, demo.rounds - 2)}, "objective": {"warmup": WARMUP}}
        case Ring() | OneShot():
            return {}
        case SequentialToParallel():
            return {"schedule": {"beta": demo.edges}, "rounds": demo.rounds}
        case _:
            return {"rounds": demo.rounds}
