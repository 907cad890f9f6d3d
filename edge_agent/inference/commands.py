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
    from sojourn.data.source import read_as

    settings = read_as(file, label=label, header=header, scale=scale, ignore=ignore, time=time, series=series)
    with Model(line, store, fleet=fleet or "sojourn", agent=name) as model:
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
