"""`sojourn agent predict`: what the release that is served here says of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from sojourn import options

_AT_ONCE = 64


def predict(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The model line.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="An image, or an NPZ, NPY, CSV or text file.")],
    store: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The agent's store.", show_default="the one that serves LINE")
    ] = None,
    fleet: options.Fleet = None,
    name: Annotated[str | None, typer.Option(help="The agent's name, where several serve the line here.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes or tokens to tell of each row.")] = 3,
    settings_file: Annotated[
        str | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            help="The agent's settings: files are read as its [data] says. Other options override it.",
            show_default="agent.toml here or in /etc/sojourn, if its agent serves LINE",
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
    """Predict with the release of a model line that this device serves: what it says of every row, by its task."""
    import msgspec

    from edge_agent.inference.inputs import read_inputs
    from edge_agent.inference.model import Model
    from edge_agent.inference.plain_answers import line_of
    from edge_agent.releases.places import agent_of, read_agent, store_of
    from sojourn.data.source import read_as
    from sojourn.settings import store_folder

    own = read_agent(settings_file) if settings_file else None
    if own and not (store or fleet or name):
        store = str(store_folder(own.store, own.fleet, own.name))
    place = store_of(line, store, fleet or "sojourn", name)
    if own is None and (found_settings := agent_of(place)):
        settings_file, own = str(found_settings[0]), found_settings[1]
    options_given = {"label": label, "header": header, "scale": scale, "ignore": ignore, "time": time, "series": series}
    usual = msgspec.structs.asdict(own.data) if own else {}
    usual |= {key: value for key, value in options_given.items() if value is not None}
    settings = read_as(file, **{key: usual[key] for key in usual if key not in ("path", "format", "x", "y")})
    if own:
        typer.echo(f"files are read as [data] in {settings_file} says", err=True)
    with Model(line, place) as model:
        (rows, _), version, kind = read_inputs(settings, model.card), model.version, model.card.learns.kind
        found = []
        for start in range(0, len(rows), _AT_ONCE):
            version, answers, _ = model.answers_of_version(rows[start : start + _AT_ONCE], top)
            found += answers
    plain = kind == "classification"
    if as_json:
        told = {"rows": [row["top"] for row in found]} if plain else {"task": kind, "rows": found}
        typer.echo(msgspec.json.encode({"line": line, "version": version, **told}))
        return
    typer.echo(f"{line} version {version}", err=True)
    width = max((len(each["class"]) for row in found for each in row["top"]), default=0) if plain else 0
    for number, row in enumerate(found):
        typer.echo(f"{number:>6}  {line_of(row, width)}")
