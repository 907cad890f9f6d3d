"""Who keeps models of their own says so: edge servers and agents from before 0.9.0 are asked for none."""

from __future__ import annotations

from sojourn.parts import NoEstimator, Training
from sojourn.protocol.abilities import ABILITIES, MODEL_OWN, OF_MODELS, able, asked, leads
from sojourn.protocol.wire import Offer

WORDS = asked("float32", Training(), NoEstimator(), (), "own models")
BEFORE = tuple(word for word in ABILITIES if word != MODEL_OWN)
"""What 0.8.0 lists, and more."""


def test_an_objective_that_keeps_models_is_a_word_more() -> None:
    assert WORDS - asked("float32", Training(), NoEstimator()) == {MODEL_OWN}


def test_an_edge_server_that_does_not_know_the_objective_leads_no_such_tour() -> None:
    assert leads(OF_MODELS, WORDS)
    assert not leads([word for word in OF_MODELS if word != MODEL_OWN], WORDS)
    assert not leads((), WORDS)


def test_a_device_is_asked_only_where_it_offers_the_objective_and_the_word() -> None:
    new = Offer("0.9.0", "pi", "onnxruntime", 1, 0, ("sgd", "local-norms"), "", (), ABILITIES)
    assert able(new, "local-norms", WORDS)
    old = Offer("0.8.0", "pi", "onnxruntime", 1, 0, ("sgd",), "", (), BEFORE)
    assert not able(old, "local-norms", WORDS)
    assert able(old, "sgd", asked("float32", Training(), NoEstimator()))
