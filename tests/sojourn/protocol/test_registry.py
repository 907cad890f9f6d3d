"""Every message class declares its properties and is in the registry."""

import importlib
import pkgutil
from collections import Counter
from typing import get_args

import pytest

import sojourn.protocol
from sojourn.protocol.envelope import MESSAGES, PRESENCES
from sojourn.protocol.messages import Presence
from sojourn.protocol.operator_messages import Continue, Export, Inspect, InspectFleet, Jobs, Stop, Submit
from sojourn.protocol.operators import SignedRequest
from sojourn.protocol.registry import ANY_ROLE, OPERATORS, Answer, Message, OperatorRequest
from sojourn.protocol.release_messages import ReadCard, Steer
from sojourn.protocol.topics import ROLES

REQUESTS = [form for form in MESSAGES.values() if issubclass(form, OperatorRequest) and form is not SignedRequest]


def test_registry_has_every_message_class_of_the_protocol() -> None:
    names = [name for _, name, _ in pkgutil.iter_modules(sojourn.protocol.__path__, "sojourn.protocol.")]
    modules = [importlib.import_module(name) for name in names if name != "sojourn.protocol.registry"]
    defined = {
        form
        for module in modules
        for form in vars(module).values()
        if isinstance(form, type) and issubclass(form, Message) and form.__module__ == module.__name__
    }
    assert defined == {*MESSAGES.values(), *PRESENCES.values()}
    assert set(PRESENCES.values()) == set(get_args(Presence))
    assert Counter(form.__struct_config__.tag for form in defined).most_common(1)[0][1] == 1


@pytest.mark.parametrize("form", MESSAGES.values(), ids=MESSAGES)
def test_every_message_class_is_complete(form: type[Message]) -> None:
    assert form.__doc__
    assert form.__struct_config__.tag_field == "kind"
    assert form.__struct_config__.frozen
    assert form.routes
    assert {role for route in form.routes for role in route} <= set(ROLES)


@pytest.mark.parametrize("form", REQUESTS)
def test_every_request_has_roles_an_answer_and_an_owner(form: type[OperatorRequest[Answer]]) -> None:
    assert form.routes == OPERATORS
    assert "owner" in form.roles
    assert tuple(role for role in ANY_ROLE if role in form.roles) == form.roles
    assert form.answer() in MESSAGES.values()
    assert issubclass(form.answer(), Answer)


def test_every_answer_answers_a_request() -> None:
    answers = {form.__name__ for form in MESSAGES.values() if issubclass(form, Answer)}
    assert answers - {form.answer().__name__ for form in REQUESTS} == {"Refused"}


def test_requests_that_any_operator_may_make_are_not_audited() -> None:
    assert {form.__name__ for form in REQUESTS if form.roles == ANY_ROLE} == {
        "Inspect", "InspectFleet", "InspectReleases", "InspectAudit", "ReadJob", "ReadKit", "AwaitChange", "ReadCard",
    }  # fmt: skip
    assert (Inspect("t").audited, Stop("t", "job").audited, Export("t", "job").audited) == (False, True, True)


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Submit("t", 'name = "digits"'), "submit digits"),
        (Submit("t", "name = 3"), "submit ?"),
        (Submit("t", "a = " + "[" * 20_000), "submit ?"),
        (Stop("t", "digits"), "stop digits"),
        (Continue("t", "digits", 5, devices=3), "continue digits 5 devices 3"),
        (Continue("t", "digits"), "continue digits"),
        (Steer("t", "line", "pause"), "steer line pause"),
        (ReadCard("t", "line", 1), "read-card"),
        (Inspect("t"), "inspect"),
        (InspectFleet("t", "devices", "pi-1"), "inspect-fleet"),
    ],
)
def test_audit_log_words_a_request_by_its_kind_and_subject(request_: OperatorRequest[Jobs], what: str) -> None:
    assert request_.what == what
