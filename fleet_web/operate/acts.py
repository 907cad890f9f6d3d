"""The acts on jobs and rollouts, as the commands of a terminal do them: with the operator's own name, key and role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from nicegui import ui

from fleet_web.controls import number_field
from fleet_web.operate.act_button import ActButton
from fleet_web.words import Words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from coordinator.console.operator import Operator

_STEER: dict[Literal["pause", "resume", "rollback"], str] = {
    "pause": "No further device is given the release until the rollout is resumed.",
    "resume": "The rollout goes on with the stage that is under way.",
    "rollback": "Every device returns to what it served before.",
}


class Acting(Protocol):
    """Whoever does something with the operator's connection."""

    def act(self, what: Callable[[Operator], object]) -> Awaitable[None]:
        """Have it done; a refusal is a `JobError`."""


def job_acts(source: Acting, job: str) -> None:
    """Stop, continue or remove a job."""
    rounds: list[int] = []

    async def stop() -> str:
        await source.act(lambda operator: operator.stop(job))
        return f"{job} is stopped."

    async def go_on() -> str:
        if not rounds:
            return "Say first how many rounds it shall have in all."
        wanted = rounds[-1]
        await source.act(lambda operator: operator.go_on(job, wanted))
        return f"{job} has {wanted} rounds in all now."

    async def remove() -> str:
        await source.act(lambda operator: operator.remove(job))
        return f"{job} is forgotten, with its models."

    with _section():
        outcome = Words("p", "", role="status")
        with ui.element("div").classes("controls"):
            ActButton("Stop", f"Stop the job {job}? What was learnt so far is kept.", stop, outcome, danger=True)
            number_field("Rounds in all", rounds.append)
            ActButton("Continue", f"Let the job {job} have that many rounds in all?", go_on, outcome)
            ActButton("Remove", f"Forget the job {job}, with all its models?", remove, outcome, danger=True)


def line_acts(source: Acting, line: str) -> None:
    """Pause, resume or undo the rollout of a line."""
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
        return f"{line}: {action} was taken."

    return steer


def _section() -> ui.element:
    section = ui.element("section").props('aria-label="Acts"').classes("acts")
    with section:
        Words("h2", "Acts")
    return section
