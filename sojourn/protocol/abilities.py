"""What a task asks of a device besides its objective, in the words of an offer.

A device is asked only for what its offer lists. An agent that was made before there was a list knows all that there was
then, which is what stands here; a new encoding, optimiser or estimator is a word more, and goes only to those who list
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from sojourn.parts import Encoding, Estimator, Objective
from sojourn.protocol.task import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.parts import Outcome, Training
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Offer

_OF_MODEL = "model "
"""How the words begin that a kit asks for."""
_OPTIMISERS = ("sgd", "adam")
_EARLY = (
    *(f"encoding {word}" for word in get_args(Encoding)),
    *(f"optimiser {word}" for word in _OPTIMISERS),
    *(f"estimator {form.__struct_config__.tag}" for form in get_args(Estimator)),
)
FIRST = frozenset(_EARLY)
"""What an agent can do whose offer has no list."""
MODEL_STATE = "model state"
"""Train models that have state, such as BatchNorm's running statistics (`sojourn.protocol.spec.ModelSpec.state`)."""
MODEL_FROZEN = "model frozen"
"""Put the weights that are not trained into a kit's graphs, where they stand in it once (`sojourn.model.frozen`)."""
MODEL_TRUNK = "model trunk"
"""Train behind a part of the model that is a graph of its own (`sojourn.protocol.spec.Trunk`)."""
MODEL_OWN = "model own"
"""Keep a model, or a part of one, on the device: the objectives of FedBN and of MetaFed."""
MODEL_TWO_STREAM = "model two-stream"
"""Train with a graph that looks at frozen models too (`sojourn.protocol.spec.TwoStreamGraph`)."""
MANDATE = "mandate"
"""Does only what an operator has signed (`sojourn.protocol.mandate`). Only devices say so whose owners have operators'
keys: they are asked for nothing without a mandate. All others do not look at one."""
MODEL_TASKS = {kind: f"model task {kind}" for kind in get_args(Kind)}
"""Learn something else than one class of several by cross-entropy (`sojourn.protocol.task`), by kind."""
_LATER = ("echo", "outliers", "generated", "logit-adjustment")
OBJECTIVES = {name: f"model objective {name}" for name in _LATER}
"""Objectives that came later: devices list them by name, and an edge server must know them too, to lead their tours."""
OF_MODELS = (
    MODEL_STATE,
    MODEL_FROZEN,
    MODEL_TRUNK,
    *MODEL_TASKS.values(),
    MODEL_OWN,
    MODEL_TWO_STREAM,
    *OBJECTIVES.values(),
)
"""What a kit or an objective may ask for: of a device, and of the edge server that leads its model there."""
ABILITIES = (*_EARLY, *OF_MODELS)
"""All that the agent here can do."""


def asked(
    encoding: Encoding,
    training: Training,
    estimator: Estimator,
    of_model: Iterable[str] = (),
    outcome: Outcome = "one model",
) -> frozenset[str]:
    """The words for what a job's tasks ask of a device, with those that its model and its outcome ask for."""
    return frozenset(
        {
            *of_model,
            *((MODEL_OWN,) if outcome == "own models" else ()),
            f"encoding {encoding}",
            f"optimiser {training.optimiser}",
            f"estimator {estimator.__struct_config__.tag}",
        }
    )


def asked_for(objective: Objective) -> tuple[str, ...]:
    """What an objective asks for besides its name in an offer: that those who pass its tours on know it."""
    word = OBJECTIVES.get(str(objective.__struct_config__.tag))
    return (word,) if word else ()


def asked_by(kit: Kit) -> tuple[str, ...]:
    """What a kit asks for."""
    words = {
        MODEL_STATE: kit.model.state > 0,
        MODEL_FROZEN: bool(kit.frozen),
        MODEL_TRUNK: bool(kit.trunk),
        MODEL_TWO_STREAM: bool(kit.two_stream),
    }
    task = (MODEL_TASKS[kit.task.kind],) if kit.task else ()
    return (*(word for word, needed in words.items() if needed), *task)


def leads(site: Iterable[str], words: Iterable[str]) -> bool:
    """Whether an edge server with these abilities can lead models for which these words are asked."""
    return set(site).issuperset(word for word in words if word.startswith(_OF_MODEL))


def able(offer: Offer | None, objective: str, words: Iterable[str]) -> bool:
    """Whether a device offers an objective and all of these; one that offers nothing is asked for nothing.

    One that does only what was signed is asked where a mandate is among the words; others are asked in any case.
    """
    if offer is None or objective not in offer.objectives:
        return False
    known = FIRST if offer.abilities is msgspec.UNSET else frozenset(offer.abilities)
    signed = MANDATE in (words := frozenset(words))
    return known.issuperset(words - {MANDATE} if signed else words) and (signed or MANDATE not in known)
