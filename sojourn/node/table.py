"""A state machine as a table: for each state, the events that may happen in it and the state that follows.

A machine steps through its table at every change, so the table is what the code does and not a picture of it. An event
that a state does not know is our own mistake: what a peer may send at any time has a row in every state, if only one
that leads back to where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from sojourn.errors import Fault, UnexpectedEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "any state"
"""How a drawing calls the state that one is in, whichever it is."""


@dataclass(frozen=True, eq=False)
class Table:
    """The `rows` of a state machine, {(state, event): next state}, where it starts and in which states it ends.

    From an end no row leads to another state; it may have rows for events that change nothing any more, and for those
    by which somebody has what was over `reopen`.
    """

    name: str
    rows: Mapping[tuple[str, str], str]
    start: str = field(kw_only=True)
    ends: frozenset[str] = field(default=frozenset(), kw_only=True)
    reopen: frozenset[str] = field(default=frozenset(), kw_only=True)

    def __post_init__(self) -> None:
        leaving = {state for (state, _), following in self.rows.items() if following != state}
        going_on = {state for (state, event), to in self.rows.items() if to != state and event not in self.reopen}
        self._refuse(self.ends & going_on, "ends, and yet a row leads out of")
        self._refuse(self.ends - set(self.states), "has no row that leads to")
        self._refuse(set(self.states) - self._reachable(), "cannot reach")
        self._refuse(set(self.states) - leaving - self.ends, "has no way out of")

    @cached_property
    def states(self) -> tuple[str, ...]:
        """Every state, in the order in which the rows name them, the start first."""
        named = [state for (state, _), following in self.rows.items() for state in (state, following)]
        return tuple(dict.fromkeys([self.start, *named]))

    @cached_property
    def events(self) -> tuple[str, ...]:
        """Every event, in the order in which the rows name them."""
        return tuple(dict.fromkeys(event for _, event in self.rows))

    def knows(self, state: str, event: str) -> bool:
        """Whether the event may happen in this state."""
        return (state, event) in self.rows

    def step(self, state: str, event: str) -> str:
        """The state that follows; an event that the state does not know is an error."""
        try:
            return self.rows[state, event]
        except KeyError:
            known = ", ".join(event for at, event in self.rows if at == state) or "nothing"
            raise UnexpectedEvent(f"{self.name}: {event!s} while {state!s}, which knows {known}") from None

    def markdown(self) -> str:
        """The rows as a Markdown table, for people."""
        lines = ["| state | event | next state |", "|---|---|---|"]
        lines += [f"| {state!s} | {event!s} | {following!s} |" for (state, event), following in self.rows.items()]
        return "\n".join(lines) + "\n"

    def mermaid(self) -> str:
        """The rows as a Mermaid state diagram: one arrow between two states, with all events that go along it.

        Rows that lead back to the same state are left out, and an event that leads from wherever one is to the same
        state is drawn once, from "any state": both hide the way.
        """
        everywhere = self._everywhere()
        arrows: dict[tuple[str, str], list[str]] = {}
        for (state, event), following in self.rows.items():
            if following != state:
                arrows.setdefault((ANY if event in everywhere else state, following), []).append(event)
        lines = ["stateDiagram-v2"]
        named = [*self.states, *([ANY] if everywhere else ())]
        lines += [f'    state "{state!s}" as {_id(state)}' for state in named if _id(state) != state]
        lines.append(f"    [*] --> {_id(self.start)}")
        lines += [f"    {_id(a)} --> {_id(b)}: {', '.join(dict.fromkeys(to))}" for (a, b), to in arrows.items()]
        lines += [f"    {_id(state)} --> [*]" for state in self.states if state in self.ends]
        return "\n".join(lines) + "\n"

    def _everywhere(self) -> set[str]:
        """The events that lead from every state, but the start and the ends, to one and the same."""
        between = set(self.states) - self.ends - {self.start}
        found = set()
        for event in self.events if len(between) > 2 else ():
            targets = {state: to for (state, known), to in self.rows.items() if known == event and to != state}
            if between <= set(targets) and len(set(targets.values())) == 1:
                found.add(event)
        return found

    def _reachable(self) -> set[str]:
        reached = {self.start}
        while further := {to for (state, _), to in self.rows.items() if state in reached} - reached:
            reached |= further
        return reached

    def _refuse(self, states: set[str] | frozenset[str], what: str) -> None:
        if states:
            raise Fault(f"the table {self.name} {what} {', '.join(sorted(states))}")


def _id(state: str) -> str:
    """A state's name as Mermaid takes it for an identifier."""
    return "".join(letter if letter.isalnum() else "_" for letter in state)
