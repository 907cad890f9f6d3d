"""`sojourn agent`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from edge_agent.inference.commands import predict
from edge_agent.joining.commands import join
from edge_agent.owner.commands import mandates
from edge_agent.setup.commands import init, preflight
from sojourn import options
from sojourn.settings import broker_flags, data_flags

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
def run(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    data: options.Data = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    target: options.Target = None,
    ignore: options.Ignore = None,
    time: options.Time = None,
    series: options.Series = None,
    store: options.Store = None,
    threads: Annotated[int | None, typer.Option(help="Threads to train with.", show_default="one per core")] = None,
    edge: Annotated[list[str] | None, typer.Option(help="Listen only to this edge server; may be repeated.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE.MODULE:CLASS", help="Allow this installed objective; may be repeated."),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="Let operators know this: range, classes, class-counts, projections."),
    ] = None,
    release_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Serve the releases of those who have its private half.")
    ] = None,
    mandate_keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Do only what one of these operators signed.")
    ] = None,
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Take visits from the edge servers of a fleet until told to stop."""
    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "data": data_flags(data, label, header, scale, target, ignore, time, series),
        "store": store,
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
    # This process becomes the agent: typer and rich leave the memory with the old program.
    lean = [sys.executable, "-P", "-m", "edge_agent.run", msgspec.json.encode(flags).decode()]
    sys.stdout.flush()
    os.execv(sys.executable, lean if file is None else [*lean, file])  # noqa: S606  # no shell is wanted


@app.command()
def profile(
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Write the profile here.")] = None,
    name: Annotated[str, typer.Option(help="The profile's name: a-z, 0-9 and '-'.")] = "custom",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="one per core")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train; longer shows what heat does.")] = 10.0,
    broker: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Measure the latency to this broker.")
    ] = None,
) -> None:
    """Measure how fast this machine trains, for the simulation: the profile is a TOML file."""
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
        f"{device.flops / 1e9:.2f} GFLOP/s in training, {device.step_seconds * 1e3:.2f} ms more for each step, "
        f"{device.visit_seconds:.2f} s to start a worker, {device.memory / 1e9:.1f} GB of memory",
        err=True,
    )
    delay = "" if latency is None else f"latency {latency * 1e3:.2f} ms; "
    typer.echo(f"{delay}bandwidth is not measured: [link] holds an assumption to correct", err=True)
    if hot := profiling.heat():
        typer.echo(f"heat: {hot}", err=True)
    if output is None:
        typer.echo(profiling.text_of(made), nl=False)
    else:
        profiling.write(profiling.text_of(made), output)
        typer.echo(f"written to {output}", err=True)
