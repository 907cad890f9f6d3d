"""Only devices that offer to store personal models get tasks that require it."""

from __future__ import annotations

from sojourn.parts import NoEstimator, Training
from sojourn.protocol.task import ABILITIES, MODEL_OWN, OF_MODELS, able, asked, leads
from sojourn.protocol.wire import Offer

WORDS = asked("float32", Training(), NoEstimator(), (), "own models")
OTHERS = tuple(word for word in ABILITIES if word != MODEL_OWN)


def test_model_keeping_objective_asks_for_an_extra_ability() -> None:
    assert WORDS - asked("float32", Training(), NoEstimator()) == {MODEL_OWN}


def test_edge_server_without_the_ability_leads_no_such_tour() -> None:
    assert leads(OF_MODELS, WORDS)
    assert not leads([word for word in OF_MODELS if word != MODEL_OWN], WORDS)
    assert not leads((), WORDS)


def test_device_needs_both_objective_and_ability() -> None:
    new = Offer("1", "pi", "onnxruntime", 1, 0, ("sgd", "local-norms"), "", (), ABILITIES)
    assert able(new, "local-norms", WORDS)
    old = Offer("1", "pi", "onnxruntime", 1, 0, ("sgd",), "", (), OTHERS)
    assert not able(old, "local-norms", WORDS)
    assert able(old, "sgd", asked("float32", Training(), NoEstimator()))
