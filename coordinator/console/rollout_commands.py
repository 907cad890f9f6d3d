"""`sojourn release rollout | status | pause | resume | rollback`: a release goes to the fleet, and back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.console.as_json import AsJson, print_json
from coordinator.console.asking import asking
from sojourn.errors import ConfigError, JobError

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from sojourn.protocol.release import LineView, RolloutStatus

Line = Annotated[str, typer.Argument(metavar="LINE", help="The model line.")]
KEY = Path("/etc/sojourn/fleet/release.key")
LOOK = 0.5
"""Seconds between two looks at a rollout that is watched."""
ENDED: tuple[RolloutStatus, ...] = ("done", "rolled-back", "halted", "paused")


@asking
def rollout(
    operator: Any,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The release: `sojourn release create` makes it.")],
    stages: Annotated[str, typer.Option(help="The share of the fleet that each stage reaches.")] = "5%,25%,100%",
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="The fleet's private release key.", envvar="SOJOURN_RELEASE_KEY")
    ] = KEY,
    soak: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long a stage must be well.")] = 10.0,
    patience: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for devices.")] = 600.0,
    max_failures: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="Of a stage's devices.")] = 0.0,
    max_latency: Annotated[float, typer.Option(metavar="TIMES", min=0, help="As long as before may it take.")] = 2.0,
    max_accuracy_drop: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="0.02: two points.")] = 0.02,
    max_worse: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Of a main figure that is no accuracy: 10% or 0.1.", show_default="10%"),
    ] = None,
    max_drift: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="Of the predicted classes.")] = 0.3,
    max_errors: Annotated[int, typer.Option(min=0, help="That programs report, on one device.")] = 0,
    quorum: Annotated[
        int | None,
        typer.Option(
            metavar="DEVICES", min=1, max=1000, help="How many must complain before all turn back.", show_default="2"
        ),
    ] = None,
    after: Annotated[
        int, typer.Option(metavar="SERIAL", min=0, help="Devices know orders up to this one: after a restored backup.")
    ] = 0,
    halt: Annotated[bool, typer.Option("--halt", help="Stop when a stage is ill, instead of rolling back.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
) -> None:
    """Bring a release to the fleet in stages. It comes back by itself when a stage is ill."""
    import msgspec

    from coordinator.releases.file import read_release
    from coordinator.releases.orders import orders_for, shares_of, worse_of
    from sojourn.protocol.release import HealthRules
    from sojourn.protocol.signing import Signer

    shares = shares_of(stages)
    release = read_release(file)
    if max_worse is not None and release.card.learns.kind == "classification":
        raise ConfigError("--max-worse is for tasks without an accuracy: of a classification say --max-accuracy-drop")
    signer = Signer.load(key)
    rules = HealthRules(
        failures=max_failures,
        latency=max_latency,
        accuracy=max_accuracy_drop,
        drift=max_drift,
        errors=max_errors,
        soak=soak,
        patience=patience,
        quorum=quorum or msgspec.UNSET,
        worse=msgspec.UNSET if max_worse is None else worse_of(max_worse),
    )
    line = release.card.line
    known = next(iter(operator.releases(line)), None)
    forward, back = orders_for(release, known, operator.fleet, signer, after=after)
    view = operator.rollout(forward, back, release, shares, rules, undo=not halt)
    undone = f"{line} {view.before}" if view.before else "nothing: this line is new"
    typer.echo(f"{line} {view.version}: {len(shares)} stages begin; a rollback leads to {undone}")
    if watch:
        _watch(operator, line)
    else:
        typer.echo(f"to see it: {operator.command(f'release status {line}')}")


@asking
def status(
    operator: Any,
    line: Annotated[str | None, typer.Argument(metavar="LINE", help="One model line, with its devices.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch a line until its rollout ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the fleet's model lines, or one with its devices."""
    from rich.console import Console

    from coordinator.console.rollout_tables import device_table, line_table, plan_lines, summary

    console = Console()
    if as_json:
        if watch:
            raise ConfigError("give --watch or --json, not both")
        print_json(operator.releases() if line is None else _line(operator, line))
        return
    if line is None:
        views = operator.releases()
        console.print(line_table(views) if views else "no release was rolled out yet")
        return
    if watch:
        _watch(operator, line)
        return
    view = _line(operator, line)
    console.print(summary(view), markup=False, highlight=False)
    console.print(device_table(view))
    for text in plan_lines(view):
        console.print(text, style="dim", markup=False, highlight=False)


@asking
def pause(operator: Any, line: Line) -> None:
    """Begin no further stage, and tell no further device, until `resume`."""
    _steer(operator, line, "pause")


@asking
def resume(operator: Any, line: Line) -> None:
    """Go on with a paused rollout."""
    _steer(operator, line, "resume")


@asking
def rollback(
    operator: Any, line: Line, watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False
) -> None:
    """Undo a rollout, also one that is done: every device returns to the release before it."""
    _steer(operator, line, "rollback")
    if watch:
        _watch(operator, line, undone=True)


def _steer(operator: Operator, line: str, action: Literal["pause", "resume", "rollback"]) -> None:
    from coordinator.console.rollout_tables import summary

    typer.echo(summary(operator.steer(line, action)))


def _line(operator: Operator, line: str) -> LineView:
    views = operator.releases(line)
    if not views:
        known = ", ".join(view.line for view in operator.releases()) or "none"
        raise ConfigError(f"there is no model line {line!r}; the lines are: {known}")
    return views[0]


def _watch(operator: Operator, line: str, *, undone: bool = False) -> None:
    """Show a rollout until it ends; an undone or halted one ends the command with an error, unless that is the wish."""
    from rich.console import Console, Group
    from rich.live import Live

    from coordinator.console.rollout_tables import device_table, summary

    console = Console()
    view = _line(operator, line)
    try:
        with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
            while view.status not in ENDED:
                live.update(Group(summary(view), device_table(view)), refresh=True)
                time.sleep(LOOK)
                view = _line(operator, line)
            live.update("", refresh=True)
    except KeyboardInterrupt:
        typer.echo(f"The rollout goes on. To see it again: {operator.command(f'release status {line}')}")
        raise typer.Exit(0) from None
    console.print(device_table(view))
    console.print(summary(view), markup=False, highlight=False)
    if view.status in ("rolled-back", "halted") and not undone:
        raise JobError(f"{line} {view.version} was not taken over by the fleet: {view.detail}")
