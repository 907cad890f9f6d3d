"""Buttons for operator actions on jobs and rollouts: each asks for confirmation and shows the result."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol

from nicegui import ui

from fleet_web.elements import Words, number_field
from sojourn.errors import SojournError
from sojourn.text import clean, clean_lines

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


log = logging.getLogger(__name__)


class ActButton:
    """A button that acts only after the user confirms."""

    def __init__(
        self, label: str, question: str, act: Callable[[], Awaitable[str]], outcome: Words, *, danger: bool = False
    ) -> None:
        """`act` returns the message to show in `outcome`; if it raises an error, `outcome` shows the error."""
        self._label, self._question, self._act, self._outcome = label, clean(question, 500), act, outcome
        self._danger = danger
        button = Words("button", f"{label} …", type="button").classes("button")
        button.on("click", self._ask)
        if danger:
            button.classes("danger")

    def _ask(self) -> None:
        """Ask for confirmation in a new dialog, so that no state of an earlier one remains."""
        with ui.dialog().props(f'aria-label="{self._label}"') as dialog, ui.element("div").classes("sheet"):
            Words("h2", self._label)
            Words("p", self._question)
            with ui.element("div").classes("controls"):
                yes = Words("button", f"Yes, {self._label.lower()}", type="button").classes("button")
                no = Words("button", "No", type="button", autofocus=True).classes("button")
        if self._danger:
            yes.classes("danger")

        async def confirmed() -> None:
            dialog.close()
            await self._do()

        yes.on("click", confirmed)
        no.on("click", dialog.close)
        dialog.on("hide", dialog.delete)
        dialog.open()

    async def _do(self) -> None:
        request = ui.context.client.request
        who = request.scope.get("sojourn-user") or "a user on this machine"
        log.info("%s: %s", who, self._question)
        self._outcome.text = f"{self._label} …"
        try:
            self._outcome.text = await self._act()
        except SojournError as error:
            self._outcome.text = f"Refused: {clean_lines(str(error), 2000)}"


_STEER: dict[Literal["pause", "resume", "rollback"], str] = {
    "pause": "No further devices receive the release until the rollout is resumed.",
    "resume": "The rollout continues with the current stage.",
    "rollback": "Every device returns to its previous release.",
}


class Acting(Protocol):
    """Runs actions over the operator's connection."""

    def act(self, what: Callable[[Operator], object]) -> Awaitable[None]:
        """Run the action; raise `JobError` if it is refused."""


def job_actions(source: Acting, job: str) -> None:
    """Add the buttons that stop, extend or remove a job."""
    rounds: list[int] = []

    async def stop() -> str:
        await source.act(lambda operator: operator.stop(job))
        return f"Stopped {job}."

    async def continue_job() -> str:
        if not rounds:
            return "Enter the total number of rounds first."
        wanted = rounds[-1]
        await source.act(lambda operator: operator.continue_job(job, wanted))
        return f"{job} now has {wanted} rounds in total."

    async def remove() -> str:
        await source.act(lambda operator: operator.remove(job))
        return f"Removed {job} and its models."

    with _section():
        outcome = Words("p", "", role="status")
        with ui.element("div").classes("controls"):
            ActButton("Stop", f"Stop the job {job}? Its trained models are kept.", stop, outcome, danger=True)
            number_field("Total rounds", rounds.append)
            ActButton("Continue", f"Extend the job {job} to this total number of rounds?", continue_job, outcome)
            ActButton("Remove", f"Remove the job {job} and all its models?", remove, outcome, danger=True)


def line_actions(source: Acting, line: str) -> None:
    """Add the buttons that pause, resume or undo the rollout of a model line."""
    with _section():
        outcome = Words("p", "", role="status")
        with ui.element("div").classes("controls"):
            for action, means in _STEER.items():
                ActButton(
                    action.capitalize(),
                    f"{action.capitalize()} the rollout of {line}? {means}",
                    _steer(source, line, action),
                    outcome,
                    danger=action == "rollback",
                )


def _steer(source: Acting, line: str, action: Literal["pause", "resume", "rollback"]) -> Callable[[], Awaitable[str]]:
    async def steer() -> str:
        await source.act(lambda operator: operator.steer(line, action))
        return f"{line}: {action} accepted."

    return steer


def _section() -> ui.element:
    section = ui.element("section").props('aria-label="Actions"')
    with section:
        Words("h2", "Actions")
    return section
