"""A state machine as a table: for each state, its possible events and the next state.

A machine steps through its table at every change, so the table is executed, not just documentation. An event that a
state does not know is a bug: what a peer may send at any time has a row in every state, if only one that leads back to
the same state.

Each machine has two enumerations, its states and its events. A type checker finds an event of another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Generic, TypeVar

from sojourn.errors import Fault, UnexpectedEvent

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)
ANY = "any state"
"""The name of any state in a diagram."""


@dataclass(frozen=True, eq=False)
class Table(Generic[State, Event]):
    """The `rows` of a state machine, {(state, event): next state}, its start state and its end states.

    No row leads out of an end state, except for events in `reopen`; an end state may have rows for ignored events.
    """

    name: str
    rows: Mapping[tuple[State, Event], State]
    start: State = field(kw_only=True)
    ends: frozenset[State] = field(default=frozenset(), kw_only=True)
    reopen: frozenset[Event] = field(default=frozenset(), kw_only=True)

    def __post_init__(self) -> None:
        leaving = {state for (state, _), following in self.rows.items() if following != state}
        left = {state for (state, event), to in self.rows.items() if to != state and event not in self.reopen}
        self._refuse(self.ends & left, "has rows that lead out of the end states")
        self._refuse(self.ends - set(self.states), "has no row that leads to")
        self._refuse(set(self.states) - self._reachable(), "cannot reach")
        self._refuse(set(self.states) - leaving - self.ends, "has no row that leads out of")

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Every state, in the order in which the rows name them, the start first."""
        named = [state for (state, _), following in self.rows.items() for state in (state, following)]
        return tuple(dict.fromkeys([self.start, *named]))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Every event, in the order in which the rows name them."""
        return tuple(dict.fromkeys(event for _, event in self.rows))

    def knows(self, state: State, event: Event) -> bool:
        """Return whether the event may happen in this state."""
        return (state, event) in self.rows

    def step(self, state: State, event: Event) -> State:
        """Return the next state; raise UnexpectedEvent for an event that the state does not know."""
        try:
            return self.rows[state, event]
        except KeyError:
            known = ", ".join(event for at, event in self.rows if at == state) or "nothing"
            raise UnexpectedEvent(f"{self.name}: {event} in state {state}, which allows {known}") from None

    def markdown(self) -> str:
        """Return the rows as a Markdown table."""
        lines = ["| state | event | next state |", "|---|---|---|"]
        lines += [f"| {state} | {event} | {following} |" for (state, event), following in self.rows.items()]
        return "\n".join(lines) + "\n"

    def mermaid(self) -> str:
        """Return the rows as a Mermaid state diagram: one arrow between two states, labelled with all its events.

        Rows that lead back to the same state are left out, and an event that leads from all states to the same state is
        drawn once, from "any state": both would clutter the diagram.
        """
        everywhere = self._everywhere()
        arrows: dict[tuple[str, State], list[Event]] = {}
        for (state, event), following in self.rows.items():
            if following != state:
                arrows.setdefault((ANY if event in everywhere else state, following), []).append(event)
        lines = ["stateDiagram-v2"]
        named = [*self.states, *([ANY] if everywhere else ())]
        lines += [f'    state "{state}" as {_id(state)}' for state in named if _id(state) != state]
        lines.append(f"    [*] --> {_id(self.start)}")
        lines += [f"    {_id(a)} --> {_id(b)}: {', '.join(dict.fromkeys(to))}" for (a, b), to in arrows.items()]
        lines += [f"    {_id(state)} --> [*]" for state in self.states if state in self.ends]
        return "\n".join(lines) + "\n"

    def _everywhere(self) -> set[Event]:
        """Return the events that lead from every state, except the start and the ends, to the same state."""
        between = set(self.states) - self.ends - {self.start}
        found = set()
        for event in self.events if len(between) > 2 else ():
            targets = {state: to for (state, known), to in self.rows.items() if known == event and to != state}
            if between <= set(targets) and len(set(targets.values())) == 1:
                found.add(event)
        return found

    def _reachable(self) -> set[State]:
        reached = {self.start}
        while further := {to for (state, _), to in self.rows.items() if state in reached} - reached:
            reached |= further
        return reached

    def _refuse(self, states: AbstractSet[State], what: str) -> None:
        if states:
            raise Fault(f"the table {self.name} {what} {', '.join(sorted(states))}")


def _id(state: str) -> str:
    """Return a state's name as a Mermaid identifier."""
    return "".join(letter if letter.isalnum() else "_" for letter in state)
