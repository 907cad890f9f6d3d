"""What can be shipped of a job whose devices end with models of their own: those never leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.errors import ModelError
from sojourn.model.norm_layers import norm_spec
from sojourn.parts import Common, LocalNorms

if TYPE_CHECKING:
    from coordinator.strategies import Strategy
    from sojourn.protocol.spec import ModelSpec


def check_outcome(strategy: Strategy, spec: ModelSpec, *, named: bool) -> None:
    """ModelError where the job's one model is no result; `named`: whether a round was asked for by its number.

    FedBN's has the BatchNorm layers of the start, unless there are none. MetaFed's is the one that the last device of
    the ring made: it ships where a round is named.
    """
    objective = strategy.objective
    if isinstance(objective, LocalNorms) and norm_spec(spec).size:
        raise ModelError(
            "the result of this job is a model for each device, whose BatchNorm layers never left it: the shared part "
            "with the layers of the start is none that was ever tested. To ship one model, train it with another "
            "strategy"
        )
    if isinstance(objective, Common) and not named:
        raise ModelError(
            "the result of this job is a model for each device, which never left it. What can be shipped is the one "
            "that the last device of the ring made: name its round (--round)"
        )


def whose_model(strategy: Strategy) -> str:
    """What a card says of the model besides its data, where the job has others too."""
    if isinstance(strategy.objective, Common):
        return "the model of the last device of the ring, not that of any other; "
    if strategy.finisher.outcome == "vote":
        return "the one model that learnt from the vote of the devices' models, not the vote itself; "
    return ""
