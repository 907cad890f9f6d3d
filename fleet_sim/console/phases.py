"""Which phase of a simulation a piece of code belongs to: by the room that it is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

LOADING = "loading the program"
PREPARING = "preparing data"
COMPILING = "compiling the model"
STARTING = "starting the fleet"
PLANNING = "planning and arranging"
WAITING = "waiting for training"
TRAINING = "training in this process"
HANDING = "handing visits to workers"
MOVING = "models and messages"
CHECKING = "checking (the gate)"
MERGING = "merging"
EVALUATING = "evaluating"
WRITING = "checkpoints and tables"
VIEW = "live view"
OTHER = "all else"
PHASES = (
    LOADING, PREPARING, COMPILING, STARTING, PLANNING, WAITING, TRAINING, HANDING, MOVING, CHECKING, MERGING,
    EVALUATING, WRITING, VIEW, OTHER,
)  # fmt: skip
"""In the order in which they are shown."""

PLACES = {
    "fleet_sim/datasets/": PREPARING,
    "fleet_sim/preparing.py": PREPARING,
    "sojourn/data/": PREPARING,
    "coordinator/compiling/": COMPILING,
    "coordinator/rounds/preparing.py": COMPILING,
    "coordinator/rounds/kit_cache.py": COMPILING,
    "coordinator/machine/work.py:_elsewhere": COMPILING,
    "fleet_sim/run.py:__init__": STARTING,
    "fleet_sim/engines/choosing.py": STARTING,
    "coordinator/rounds/planning.py": PLANNING,
    "coordinator/rounds/schedules.py": PLANNING,
    "hierarchy/arranging/": PLANNING,
    "fleet_sim/world/engine_training.py:_outcome": WAITING,
    "fleet_sim/engines/": HANDING,
    "fleet_sim/engines/serial.py": TRAINING,
    "fleet_sim/engines/visit_trainer.py": TRAINING,
    "fleet_sim/engines/torch_graphs.py": TRAINING,
    "fleet_sim/engines/batched.py": TRAINING,
    "fleet_sim/engines/lockstep.py": TRAINING,
    "edge_agent/training/": TRAINING,
    "fleet_sim/world/": MOVING,
    "fleet_sim/run.py:_courses": MOVING,
    "fleet_sim/run.py:_advance": MOVING,
    "hierarchy/edge/gate.py": CHECKING,
    "hierarchy/edge/rules.py": CHECKING,
    "hierarchy/edge/exemplar_view.py": CHECKING,
    "coordinator/rounds/tour_check.py": CHECKING,
    "coordinator/aggregators/": MERGING,
    "coordinator/rounds/closing.py": MERGING,
    "coordinator/rounds/merging.py": MERGING,
    "hierarchy/edge/merge.py": MERGING,
    "coordinator/rounds/evaluation.py": EVALUATING,
    "fleet_sim/world/checkpoint.py": WRITING,
    "coordinator/results/": WRITING,
    "coordinator/compiling/baking.py": WRITING,
    "fleet_sim/run.py:finish": WRITING,
    "fleet_sim/run.py:close": WRITING,
    "fleet_sim/run.py:_course": VIEW,
    "coordinator/console/": VIEW,
}
"""A folder, a file, or a function in a file (`file:function`); the closest of them counts."""
_IMPORTING = "<frozen importlib"
_ROOT = f"{Path(__file__).resolve().parents[2]}/"


class PhaseLookup:
    """Finds the phase of what runs: that of the innermost call whose place is known."""

    def __init__(self) -> None:
        # By names, not by code objects: these hash all that is in them, each time.
        self._known: dict[tuple[str, str], str | None] = {}

    def of(self, frame: FrameType | None) -> str:
        """The phase of a frame and its callers."""
        while frame is not None:
            code = frame.f_code
            place = code.co_filename, code.co_name
            if place not in self._known:
                self._known[place] = phase_at(code.co_filename.removeprefix(_ROOT), code.co_name)
            if phase := self._known[place]:
                return phase
            frame = frame.f_back
        return OTHER


def phase_at(file: str, function: str) -> str | None:
    """The phase of a function, by its file below the packages' folder; None where its callers say it."""
    if file.startswith(_IMPORTING):
        return LOADING
    folders = [f"{parent.as_posix()}/" for parent in Path(file).parents]
    return next((PLACES[place] for place in (f"{file}:{function}", file, *folders) if place in PLACES), None)
