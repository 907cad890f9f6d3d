"""The commands of `sojourn agent`: run, join, predict, mandates and profile; init and preflight are in `setup`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edge_agent.setup.commands import init, preflight, takes_agent_flags
from sojourn import options
from sojourn.settings import broker_flags

if TYPE_CHECKING:
    from edge_agent.mandate_view import MandateLine


DATA = "/var/lib/sojourn-agent/data.npz"


def join(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="The token that `sojourn fleet invite` printed; - reads it from standard input."
        ),
    ],
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The settings file to write.")] = Path(
        "agent.toml"
    ),
    name: Annotated[
        str | None,
        typer.Option(help="The device's name, if the token does not set it.", show_default="the host's name"),
    ] = None,
    data: options.Data = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    store: options.Store = None,
    identity: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder for the device's keys.", show_default="identity, next to FILE"),
    ] = None,
    new_keys: Annotated[
        bool, typer.Option("--new-keys", help="Replace existing keys: the fleet then sees a new device.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing settings file.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="HOURS", min=0, help="Hours to wait until an operator accepts the device.")
    ] = 24.0,
) -> None:
    """Create this device's keys, request to join a fleet, and write the settings for `sojourn agent run`."""
    from edge_agent import joining as join_fleet
    from edge_agent.setup.agent_file import own_name
    from sojourn.errors import ConfigError
    from sojourn.joining.identity import NodeIdentity
    from sojourn.joining.messages import read_token

    known = read_token(sys.stdin.readline() if token == "-" else token)  # noqa: S105  # a dash is not a secret
    if file.exists() and not force:  # checked before the request, which would be useless
        raise ConfigError(f"{file} exists already: name another --file, or give --force to replace it")
    keys = NodeIdentity((identity or file.absolute().parent / "identity").absolute())
    if new_keys:
        join_fleet.start_over(keys)
    if keys.has_joined:
        raise ConfigError(
            f"{keys.folder} already contains the keys of {keys.joined().name}: on a copied card use --new-keys, which "
            "makes this a separate device"
        )
    welcome, joined = join_fleet.join(
        known, keys, name or own_name(), lambda text: typer.echo(text, err=True), wait * 3600
    )
    path = data or welcome.data or DATA
    table = {"path": str(Path(path).expanduser().absolute()), "label": label, "header": header, "scale": scale}
    given = {key: value for key, value in table.items() if value is not None}
    join_fleet.write_settings(file, keys, welcome, given, store)
    keys.remember(joined)
    keys.settle()
    typer.echo(f"joined {welcome.fleet} as {welcome.name}; training data: {given['path']}")
    typer.echo(f"written: {file}\nnext: sojourn agent run {file}")


_BATCH_ROWS = 64


def predict(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The model line.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="An image, or an NPZ, NPY, CSV or text file.")],
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="The folder of the agent's store.", show_default="the one that serves LINE"
        ),
    ] = None,
    fleet: options.Fleet = None,
    name: Annotated[
        str | None, typer.Option(help="The agent's name, if several agents on this machine serve the line.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes or tokens to print for each row.")] = 3,
    settings_file: Annotated[
        str | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            help="The agent's settings file. Its [data] table sets how files are read; other options override it.",
            show_default="agent.toml in this folder or in /etc/sojourn, if its agent serves LINE",
        ),
    ] = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    ignore: options.Ignore = None,
    time: options.Time = None,
    series: options.Series = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print a prediction for every row, made with the release of a model line that this device serves."""
    from edge_agent.inference.inputs_and_outputs import line_of, read_inputs
    from edge_agent.inference.model import Model
    from edge_agent.releases.served import agent_of, read_agent, store_of
    from sojourn.data.source import read_as
    from sojourn.settings import store_folder

    agent = read_agent(settings_file) if settings_file else None
    if agent and not (store or fleet or name):
        store = str(store_folder(agent.store, agent.fleet, agent.name))
    place = store_of(line, store, fleet or "sojourn", name)
    if agent is None and (found_settings := agent_of(place)):
        settings_file, agent = str(found_settings[0]), found_settings[1]
    options_given = {"label": label, "header": header, "scale": scale, "ignore": ignore, "time": time, "series": series}
    usual = msgspec.structs.asdict(agent.data) if agent else {}
    usual |= {key: value for key, value in options_given.items() if value is not None}
    settings = read_as(file, **{key: usual[key] for key in usual if key not in ("path", "format", "x", "y")})
    if agent:
        typer.echo(f"files are read with the settings of [data] in {settings_file}", err=True)
    with Model(line, place) as model:
        (rows, _), version, kind = read_inputs(settings, model.card), model.version, model.card.learns.kind
        found = []
        for start in range(0, len(rows), _BATCH_ROWS):
            version, answers, _ = model.answers_of_version(rows[start : start + _BATCH_ROWS], top)
            found += answers
    plain = kind == "classification"
    if as_json:
        content = {"rows": [row["top"] for row in found]} if plain else {"task": kind, "rows": found}
        typer.echo(msgspec.json.encode({"line": line, "version": version, **content}))
        return
    typer.echo(f"{line} version {version}", err=True)
    width = max((len(each["class"]) for row in found for each in row["top"]), default=0) if plain else 0
    for number, row in enumerate(found):
        typer.echo(f"{number:>6}  {line_of(row, width)}")


def mandates(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    store: options.Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    reset_clock: Annotated[
        bool,
        typer.Option(
            "--reset-clock", help="Accept the current time after a wrong clock was corrected. Stop the agent first."
        ),
    ] = False,
) -> None:
    """Print the mandates on this device: which operator signed which training, until when, and which have ended."""
    from edge_agent.mandate_view import correct_clock, describe_place, place_of, read_mandates

    place = place_of(file, {"name": name, "fleet": fleet, "store": store})
    if reset_clock:
        typer.echo(correct_clock(place.folder), err=True)
    found = read_mandates(place)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    typer.echo(describe_place(place))
    for line in found:
        _print(line)
    if not found:
        typer.echo("no mandates yet")


def _print(line: MandateLine) -> None:
    from sojourn.text import clean

    rows = {
        "what": "\n".join(line.tasks),
        "model": f"{line.model}, kit {line.kit[:12]}; classes: {line.classes}" if line.kit else "",
        "leaves": line.leaves,
        "where": ", ".join(line.sites) or "all sites of the fleet" if line.kit else "",
        "for": line.purpose,
        "by": f"{line.by} ({line.operator})" if line.operator and line.operator != line.by else line.by,
        "until": line.until,
        "given": f"{line.given} results of at most {line.visits}, in {line.rounds} rounds" if line.kit else "",
    }
    typer.echo(f"\n{clean(line.job)}: {clean(line.state)} (mandate {line.serial})")
    for key, value in rows.items():
        for number, each in enumerate(value.splitlines()):
            typer.echo(f"  {key if number == 0 else '':<8}{clean(each)}")


app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run the agent of a device.")
app.command()(init)
app.command()(join)
app.command()(preflight)
app.command()(predict)
app.command()(mandates)


@app.callback()
def agent() -> None:
    """Run the agent of a device."""


@app.command()
@takes_agent_flags
def run(
    flags: dict[str, Any],
    file: options.File = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of training threads.", show_default="one per core")
    ] = None,
    edge: Annotated[
        list[str] | None, typer.Option(help="Accept visits only from this edge server; repeatable.")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE.MODULE:CLASS", help="Allow this installed objective; repeatable."),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT", help="Share this with operators: range, classes, class-counts, projections; repeatable."
        ),
    ] = None,
    release_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Public key; releases signed with its private key are served.")
    ] = None,
    mandate_keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Public keys of operators; only jobs that one of them signed are trained."),
    ] = None,
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Run the agent: train visits for the edge servers of a fleet until the process is stopped."""
    flags |= {
        "threads": threads,
        "edges": edge or None,
        "objectives": objective or None,
        "shares": share or None,
        "release": {"key_file": release_key},
        "mandate": {"keys_file": mandate_keys},
        "metrics_port": metrics_port,
        "log_format": log_format,
        "verbose": verbose,
    }
    # This process is replaced by the agent, so that typer and rich do not stay in memory.
    lean = [sys.executable, "-P", "-m", "edge_agent.run", msgspec.json.encode(flags).decode()]
    sys.stdout.flush()
    os.execv(sys.executable, lean if file is None else [*lean, file])  # noqa: S606  # no shell is needed


@app.command()
def profile(
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to write the profile to.", show_default="standard output")
    ] = None,
    name: Annotated[str, typer.Option(help="The profile's name: a-z, 0-9 and '-'.")] = "custom",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of training threads.", show_default="one per core")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds to train; a longer run shows the effect of heat.")
    ] = 10.0,
    broker: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Measure the latency to this broker.")
    ] = None,
) -> None:
    """Measure how fast this machine trains, and write the result as a profile for the simulation (TOML)."""
    from edge_agent.setup import profiling
    from sojourn.model.workload import speed
    from sojourn.protocol.topics import check_name

    check_name(name, "--name")
    if output is not None:
        profiling.check_folder(output)
    address = broker_flags(broker) if broker else {}
    cores = threads or os.cpu_count() or 1
    typer.echo(f"{profiling.machine()}: training for {seconds:g} s on {cores} threads ...", err=True)
    start = profiling.worker_start()
    latency = profiling.latency_to(address["host"], address.get("port", 1883)) if broker else None
    made = profiling.profile_of(name, speed(seconds, cores), cores, start, latency)
    device = made.device
    typer.echo(
        f"{device.flops / 1e9:.2f} GFLOP/s in training, {device.step_seconds * 1e3:.2f} ms overhead per step, "
        f"{device.visit_seconds:.2f} s to start a worker, {device.memory / 1e9:.1f} GB of memory",
        err=True,
    )
    delay = "" if latency is None else f"latency {latency * 1e3:.2f} ms; "
    typer.echo(f"{delay}bandwidth is not measured: [link] contains an assumption, please correct it", err=True)
    if hot := profiling.heat():
        typer.echo(f"heat: {hot}", err=True)
    if output is None:
        typer.echo(profiling.text_of(made), nl=False)
    else:
        profiling.write(profiling.text_of(made), output)
        typer.echo(f"written to {output}", err=True)
