"""A state machine as a table."""

from enum import StrEnum

import pytest

from sojourn.errors import Fault, UnexpectedEvent
from sojourn.node.table import Table

ROWS = {
    ("closed", "push"): "open",
    ("open", "push"): "open",
    ("open", "pull"): "closed",
    ("open", "burn"): "burnt-down",
    ("closed", "burn"): "burnt-down",
    ("burnt-down", "push"): "burnt-down",
}
DOOR = Table("door", ROWS, start="closed", ends=frozenset({"burnt-down"}))


def test_a_step_gives_the_state_that_follows():
    assert DOOR.step("closed", "push") == "open"
    assert DOOR.step("open", "push") == "open"


def test_an_event_that_a_state_does_not_know_is_an_error_that_names_all_of_it():
    with pytest.raises(UnexpectedEvent) as raised:
        DOOR.step("closed", "pull")
    assert str(raised.value) == "door: pull while closed, which knows push, burn"
    assert isinstance(raised.value, Fault)
    assert not DOOR.knows("closed", "pull")
    assert DOOR.knows("open", "pull")


def test_states_and_events_come_in_the_order_of_the_rows():
    assert DOOR.states == ("closed", "open", "burnt-down")
    assert DOOR.events == ("push", "pull", "burn")


@pytest.mark.parametrize(
    ("rows", "ends", "what"),
    [
        ({("a", "go"): "b", ("c", "go"): "b"}, {"b"}, "cannot reach c"),
        ({("a", "go"): "b", ("b", "go"): "a"}, {"b"}, "a row leads out of b"),
        ({("a", "go"): "b", ("b", "go"): "a"}, {"c"}, "no row that leads to c"),
        ({("a", "go"): "b", ("b", "go"): "b"}, set(), "no way out of b"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(rows, ends, what):
    with pytest.raises(Fault, match=what):
        Table("lift", rows, start="a", ends=frozenset(ends))


def test_states_may_be_enumerations():
    class Light(StrEnum):
        RED = "red"
        GREEN = "green"

    table = Table("light", {(Light.RED, "turn"): Light.GREEN, (Light.GREEN, "turn"): Light.RED}, start=Light.RED)
    assert table.step("red", "turn") is Light.GREEN
    assert "| red | turn | green |" in table.markdown()
    with pytest.raises(UnexpectedEvent, match="light: fall while green, which knows turn"):
        table.step(Light.GREEN, "fall")


def test_a_table_is_drawn_for_people():
    assert DOOR.markdown().splitlines()[:3] == [
        "| state | event | next state |",
        "|---|---|---|",
        "| closed | push | open |",
    ]
    assert DOOR.mermaid() == (
        "stateDiagram-v2\n"
        '    state "burnt-down" as burnt_down\n'
        "    [*] --> closed\n"
        "    closed --> open: push\n"
        "    open --> closed: pull\n"
        "    open --> burnt_down: burn\n"
        "    closed --> burnt_down: burn\n"
        "    burnt_down --> [*]\n"
    )


def test_what_leads_out_of_every_state_is_drawn_once():
    steps = {("a", "on"): "b", ("b", "on"): "c", ("c", "on"): "d", ("d", "on"): "e"}
    lamp = Table("lamp", steps | {(state, "cut"): "e" for state in "abcd"}, start="a", ends=frozenset({"e"}))
    assert lamp.mermaid().count("cut") == 1
    assert "any_state --> e: cut" in lamp.mermaid()
