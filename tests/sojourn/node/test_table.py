"""A state machine as a table."""

from enum import StrEnum
from itertools import pairwise

import pytest

from sojourn.errors import Fault, UnexpectedEvent
from sojourn.node.table import Table


class Door(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    BURNT_DOWN = "burnt-down"


class Act(StrEnum):
    PUSH = "push"
    PULL = "pull"
    BURN = "burn"


DOOR = Table(
    "door",
    {
        (Door.CLOSED, Act.PUSH): Door.OPEN,
        (Door.OPEN, Act.PUSH): Door.OPEN,
        (Door.OPEN, Act.PULL): Door.CLOSED,
        (Door.OPEN, Act.BURN): Door.BURNT_DOWN,
        (Door.CLOSED, Act.BURN): Door.BURNT_DOWN,
        (Door.BURNT_DOWN, Act.PUSH): Door.BURNT_DOWN,
    },
    start=Door.CLOSED,
    ends=frozenset({Door.BURNT_DOWN}),
)


class Floor(StrEnum):
    A = "a"
    B = "b"
    C = "c"
    D = "d"
    E = "e"


class Move(StrEnum):
    GO = "go"
    FALL = "fall"


def test_step_returns_the_next_state():
    assert DOOR.step(Door.CLOSED, Act.PUSH) is Door.OPEN
    assert DOOR.step(Door.OPEN, Act.PUSH) is Door.OPEN


def test_unexpected_event_error_names_state_and_known_events():
    with pytest.raises(UnexpectedEvent) as raised:
        DOOR.step(Door.CLOSED, Act.PULL)
    assert str(raised.value) == "door: pull in state closed, which allows push, burn"
    assert isinstance(raised.value, Fault)
    assert not DOOR.knows(Door.CLOSED, Act.PULL)
    assert DOOR.knows(Door.OPEN, Act.PULL)


def test_event_of_another_machine_is_a_type_error():
    with pytest.raises(UnexpectedEvent):  # mypy reports it too: without an error here it would report the comment
        DOOR.step(Door.CLOSED, Move.GO)  # type: ignore[arg-type]


def test_states_and_events_keep_row_order():
    assert DOOR.states == (Door.CLOSED, Door.OPEN, Door.BURNT_DOWN)
    assert DOOR.events == (Act.PUSH, Act.PULL, Act.BURN)


@pytest.mark.parametrize(
    ("rows", "ends", "what"),
    [
        ({"a": "b", "c": "b"}, "b", "cannot reach c"),
        ({"a": "b", "b": "a"}, "b", "has rows that lead out of the end states b"),
        ({"a": "b", "b": "a"}, "c", "no row that leads to c"),
        ({"a": "b", "b": "b"}, "", "no row that leads out of b"),
    ],
)
def test_inconsistent_tables_are_rejected(rows, ends, what):
    moves = {(Floor(floor), Move.GO): Floor(following) for floor, following in rows.items()}
    with pytest.raises(Fault, match=what):
        Table("lift", moves, start=Floor.A, ends=frozenset(Floor(floor) for floor in ends))


def test_table_is_drawn_as_markdown_and_mermaid():
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


def test_transition_from_every_state_is_drawn_once():
    steps = {(Floor(here), Move.GO): Floor(there) for here, there in pairwise("abcde")}
    falls = {(Floor(here), Move.FALL): Floor.E for here in "abcd"}
    lift = Table("lift", steps | falls, start=Floor.A, ends=frozenset({Floor.E}))
    assert lift.mermaid().count("fall") == 1
    assert "any_state --> e: fall" in lift.mermaid()
