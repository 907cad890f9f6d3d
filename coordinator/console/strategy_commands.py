"""The commands of `sojourn strategies`: list them, and show what each requires of devices and their owners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.options import AsJson, print_json
from sojourn.parts import (
    ClassCountEstimator,
    Common,
    Echo,
    Elmy,
    Estimator,
    Generated,
    LocalNorms,
    NoEstimator,
    Outliers,
    OwnObjective,
    Sam,
    Scaffold,
    SizeEstimator,
    TwoStreamPart,
    UpdateEstimator,
)

if TYPE_CHECKING:
    from coordinator.strategies import Named
    from coordinator.strategies.strategy import Strategy


def requirements_of(strategy: Strategy) -> list[str]:
    """Return what devices must report, do and store in addition to training the model that they receive."""
    return [*_estimation(strategy.estimator), *_training(strategy), *_reports(strategy)]


def _estimation(estimator: Estimator) -> Iterator[str]:
    match estimator:
        case NoEstimator():
            return
        case SizeEstimator():
            yield "sample counts: each device reports its number before the first round; this trains nothing"
        case ClassCountEstimator():
            yield "class counts: each device reports its label histogram, if its owner shares it"
        case UpdateEstimator() if estimator.from_visits:
            yield "sample counts: each device reports its number before the first round; this trains nothing"
            yield "updates: the server keeps each device's last one"
        case _:
            yield f"one more visit for each device, of {estimator.epochs} epochs, before it first takes part"
            if estimator.exemplars:
                where = (
                    "sent to devices"
                    if getattr(estimator, "where", "server") == "device"
                    else "kept by the coordinator"
                )
                yield f"exemplars: a few public labelled samples of each class, {where}"


def _training(strategy: Strategy) -> Iterator[str]:  # noqa: C901  # one short case for each objective
    objective = strategy.objective
    match objective:
        case OwnObjective():
            yield f"{objective.part} installed on each device, and its owner's permission to run it"
        case Elmy():
            yield f"memory for {objective.models + 2} models during a visit, and {objective.models} trainings"
        case LocalNorms():
            yield "memory for the model's BatchNorm layers between visits; they never leave the device"
        case Common():
            yield "memory for a personal model between visits, and for two models during a visit"
            yield f"{100 * objective.validation:g} % of the samples held out to choose between models"
        case Echo():
            yield "projections: one more pass over the data, and the inputs of its layers, if its owner shares that"
            yield f"up to {objective.memory:g} MB of memory for them: d x d numbers for a layer of d inputs"
        case Outliers():
            yield "images, and about ten times the work of a plain step: outliers are generated and trained on"
        case Sam():
            yield "two gradients for each step"
        case Scaffold():
            yield "memory for a control variate between visits; one more vector each way"
        case TwoStreamPart():
            yield from _second_stream(objective)
        case _ if objective.keeps:
            yield "memory for one vector of the model's size between visits"
        case _:
            pass


def _second_stream(objective: TwoStreamPart) -> Iterator[str]:
    frozen = len(objective.anchors)
    yield f"{frozen} frozen model{'s' if frozen > 1 else ''} in addition: as many more forward passes per step"
    if objective.keeps:
        yield "memory for one model between visits"
    if objective.receives:
        yield "one more vector down: the round's model"


def _reports(strategy: Strategy) -> Iterator[str]:
    """Yield what devices report; a model that travels alone needs no weight."""
    if isinstance(strategy.objective, LocalNorms | Common) and strategy.objective.test:
        share = 100 * strategy.objective.test
        yield f"own metrics: the quality of the device's personal model on {share:g} % of its samples, held out"
    if isinstance(strategy.objective, Generated):
        yield "class counts: each device reports how many samples of each class it trained on, if its owner shares them"
    by_samples = getattr(strategy.aggregator, "weighting", None) == "samples"
    if by_samples and not strategy.schedule.in_turn:
        yield "sample counts: the number of samples that a model has seen is its weight"


app = typer.Typer(add_completion=False, help="List the strategies that a job can name.")
KINDS = ("estimator", "arranger", "schedule", "objective", "aggregator", "finisher", "training")
"""The tables of a job file that define a strategy, in the order in which they act."""


@app.callback(invoke_without_command=True)
def list_(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the strategies that a job can name."""
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        from coordinator.strategies import STRATEGIES

        print_json([_plain(each) for each in STRATEGIES.values()])
    else:
        from rich.console import Console

        from coordinator.strategies import STRATEGIES
        from sojourn.tables import plain_table

        table = plain_table("strategy", "good for")
        table.columns[0].no_wrap = True
        for each in STRATEGIES.values():
            table.add_row(each.name, each.summary)
        console = Console()
        console.print(table, highlight=False)
        console.print("\nDetails of one: sojourn strategies show NAME", style="dim", highlight=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="STRATEGY", help="The strategy's name.")], as_json: AsJson = False
) -> None:
    """Show what a strategy does, who proposed it, what it requires of devices, and its settings for a job file."""
    from rich.console import Console

    from coordinator.strategies import find

    each, console = find(name, "the command line"), Console()
    if as_json:
        print_json(_plain(each))
        return

    def write(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    write(each.title, "bold")
    for paragraph in f"{each.summary}\n\n{each.paper}\n\n{each.text}".split("\n\n"):
        write("\n" + " ".join(paragraph.split()))
    write("\nRequirements for devices", "bold")
    write("\n".join(f"- {line}" for line in requirements_of(each.strategy)) or "- only training")
    write("\nIts settings in a job file", "bold")
    write("\n" + snippet(each))


def _plain(named: Named) -> dict[str, Any]:
    """Return a strategy as data: its summary, its paper, and its parts with all their settings."""
    import msgspec

    parts = msgspec.to_builtins(named.strategy)
    words = {"strategy": named.name, "title": named.title, "summary": named.summary, "paper": named.paper}
    return {**words, **{kind: parts[kind] for kind in KINDS}}


def snippet(named: Named) -> str:
    """Return the strategy with all its settings as the start of a job file; any line may be changed or removed."""
    import msgspec

    from sojourn.settings import dumps

    parts = msgspec.to_builtins(named.strategy)
    return dumps({"strategy": named.name, **{kind: parts[kind] for kind in KINDS}})
