"""Whether a finisher fits the other parts of a strategy, and the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.parts import NoFinisher, Slots, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.jobs.settings import JobSettings
    from coordinator.strategies import Strategy


def _parts(strategy: Strategy) -> Iterator[str]:
    """A finisher sees the models of one round, each by itself."""
    finisher, objective, schedule = strategy.finisher, strategy.objective, strategy.schedule
    name = name_of(finisher)
    if objective.finisher_half and objective.finisher_half != name:
        yield (
            f"what devices make with the objective {name_of(objective)} is for the finisher {objective.finisher_half}, "
            f'and the finisher is {name}: set finisher.name = "{objective.finisher_half}", or objective.name = "sgd"'
        )
    if isinstance(finisher, NoFinisher):
        return
    if finisher.device_half and finisher.device_half != name_of(objective):
        yield (
            f"the finisher {name} works on what the objective {finisher.device_half} makes, and the objective is "
            f'{name_of(objective)}: set objective.name = "{finisher.device_half}", or finisher.name = "none"'
        )
    if schedule.in_turn or schedule.at_edge or isinstance(schedule, Slots):
        yield (
            f"the finisher {name} works on all models of a round, and the schedule {name_of(schedule)} brings one "
            f'home, or keeps them apart for several rounds: set schedule.name = "one-shot" or "every-round"'
        )
    if finisher.outcome == "vote" and schedule.fixed_rounds != 1:
        yield (
            f"the finisher {name} ends with models that vote, which no second round can start from: set "
            f'schedule.name = "one-shot"'
        )
    if finisher.alone and not strategy.arranger.alone:
        yield (
            f"the finisher {name} works on the models of single devices, and the arranger "
            f'{name_of(strategy.arranger)} makes tours of several: set arranger.name = "single"'
        )


def objections_of_job(strategy: Strategy, job: JobSettings) -> Iterator[str]:
    """What of a job does not fit its finisher."""
    if strategy.finisher.classes and job.task.kind != "classification":
        yield (
            f"the finisher {name_of(strategy.finisher)} is for one class of several, and this job's task is "
            f'{job.task.kind}: choose another strategy, or finisher.name = "none"'
        )


CHECKS = (_parts,)
