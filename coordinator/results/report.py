"""What a simulation or a job leaves when it ends: its model, pictures, and one page that says what came out."""

from __future__ import annotations

import html
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from coordinator.jobs.model import exported_model
from coordinator.results.answers_table import ANSWERS_TABLE
from coordinator.results.folder import CONFIG, LOG, ROUNDS, VISITS
from coordinator.results.measures import MEANING, MEASURES
from coordinator.results.plots import (
    ACCURACY,
    ANSWERS,
    PARTICIPATION,
    QUALITY,
    WIDTHS,
    answers_plot,
    course_plot,
    participation_plot,
    quality_plot,
)
from coordinator.results.style import STYLE
from coordinator.results.tallies import DEVICES, SITES, flagged, losses, names
from coordinator.results.task_figures import PLAIN, belonging, figure_in, figure_shown
from coordinator.results.what_was_run import capital, what_was_run
from sojourn.figures import clock_of
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.figure_names import DIRECTIONS, MAIN, OWN, OWN_DEVICES, called, finisher_names, own_names
from sojourn.protocol.spec import Kit
from sojourn.settings import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from coordinator.results.folder import ResultFolder, Rows
    from coordinator.results.tallies import Loss
    from coordinator.state import JobState
    from sojourn.store.blobs import BlobStore

MODEL, REPORT = "model.onnx", "report.html"
MOST = 50
"""At most this many sites and devices are on the page; the tables have all."""


def _megabytes(text: str) -> str:
    return f"{float(text) / 1e6:,.2f}"


def _figure(name: str, text: str) -> str:
    return figure_shown(name, float(text or "nan"))


def _time(text: str) -> str:
    return clock_of(float(text))


def _measure(text: str) -> str:
    return f"{float(text):.3f}" if text and isfinite(float(text)) else "-"


_OWN = dict.fromkeys(name for kind in MAIN for name in (*own_names(kind), *finisher_names(kind)))
READABLE: dict[str, tuple[str, Callable[[str], str]]] = {
    **{name: (called(name), partial(_figure, name)) for name in (*DIRECTIONS, *_OWN)},
    "bytes": ("MB", _megabytes),
    "down": ("MB down", _megabytes),
    "up": ("MB up", _megabytes),
    "seconds": ("time", _time),
    "clock": ("fleet's clock", _time),
    **{name: (heading, _measure) for name, heading in MEASURES.items()},
}
"""Columns of the tables as people read them: another heading, and another form of the number."""


def save_model(state: JobState, blobs: BlobStore, path: Path) -> None:
    """The newest model, as plain ONNX."""
    if state.kit is None:
        return
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    path.write_bytes(exported_model(kit, vectors.load(blobs, state.vectors["model"], kit.model)))


def draw(results: ResultFolder, name: str, devices: Sequence[str], *, pictures_too: bool = True) -> None:
    """Pictures and page of one simulation or job, from its tables.

    devices: all that there were, whether they were visited or not. pictures_too: whether to draw any, which needs
    matplotlib.
    """
    rows, folder = results.rows(ROUNDS), results.path
    if not rows:
        return
    figures = results.task.measured(rows) or list(PLAIN)
    shown = ("round", *figures, "tours", "visits", "lost", "bytes", "seconds", "clock", *_measured(rows))
    busiest = sorted(results.rows(DEVICES), key=lambda row: -float(row["seconds"]))
    heading = f"Devices, the {MOST} busiest of {len(busiest):,}" if len(busiest) > MOST else "Devices, busiest first"
    tables = {
        "Rounds": [{key: row.get(key, "") for key in shown} for row in rows],
        "Sites": results.rows(SITES)[:MOST],
        heading: busiest[:MOST],
    }
    parts = [
        summary_html(results),
        *(_pictures(results, rows, name, devices) if pictures_too else ()),
        *(section(title, html_table(readable(table))) for title, table in tables.items() if table),
        *_whose(figures, results.task.shared),
        section("Files", links(_files(folder, results.task.shared))),
        section("Settings", f"<pre>{html.escape((folder / CONFIG).read_text(encoding='utf-8'))}</pre>"),
    ]
    write_page(folder / REPORT, name, parts)


def _whose(figures: Sequence[str], shared: str) -> list[str]:
    """Which model each figure belongs to, where they are of several."""
    told = belonging(figures)
    if not told:
        return []
    others = ", ".join(called(name) for name in figures if name in DIRECTIONS)
    lines = {others: f"the job's one model, on the job's test set: {shared or 'all devices made it'}", **told}
    items = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines.items() if name)
    return [section("Which model a figure belongs to", f"<dl>{''.join(items)}</dl>")]


def _pictures(results: ResultFolder, rows: Rows, name: str, devices: Sequence[str]) -> list[str]:
    """Draw what there is to be seen, and show it."""
    folder, visits, main = results.path, results.rows(VISITS), results.task.main
    course_plot({name: [rows]}, folder / f"{main}.png", main)
    parts = [picture(f"{main}.png", f"{capital(called(main))} by round, by the fleet's clock, by bytes")]
    if (folder / ANSWERS_TABLE).exists() and (words := answers_plot(results.rows(ANSWERS_TABLE), folder / ANSWERS)):
        parts.append(picture(ANSWERS, words))
    if quality_plot(rows, folder / QUALITY):
        parts += [picture(QUALITY, "How well the devices were arranged"), meanings(rows)]
    if visits:
        participation_plot(visits, devices, folder / PARTICIPATION)
        parts.append(picture(PARTICIPATION, "How often each device was visited"))
    return parts


# --- the summary


def summary_html(results: ResultFolder) -> str:
    """What was run, what came out, and what was lost and why: the beginning of the page, which a notebook shows too."""
    rows, visits = results.rows(ROUNDS), results.rows(VISITS)
    config = parse((results.path / CONFIG).read_text(encoding="utf-8"), CONFIG)
    task = results.task
    best = task.best(rows)
    done, lost = (sum(int(row[key]) for row in rows) for key in ("visits", "lost"))
    tiles = {
        **_own_tile(rows, OWN + task.main),
        f"{called(task.main)} at the end": task.text(rows[-1]),
        f"at best, in round {best['round']}": task.text(best),
        "rounds": rows[-1]["round"],
        "on the fleet's clock": clock_of(float(rows[-1]["clock"])),
        "over MQTT": f"{sum(float(row['bytes']) for row in rows) / 1e6:,.1f} MB",
        "visits of rounds lost": f"{lost:,} of {done + lost:,}",
    }
    if found := flagged(visits):
        tiles["visits that the gate would have refused"] = f"{sum(it.visits for it in found):,} of {len(visits):,}"
    drawn = "".join(f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in tiles.items())
    failed = f"<p class='bad'>{html.escape(results.failure)}</p>" if results.failure else ""
    lead = f"<p class='lead'>{html.escape(what_was_run(config))}</p>{failed}"
    return f"{lead}<div class='tiles'>{drawn}</div>{_losses(visits, lost)}"


def _own_tile(rows: Rows, name: str) -> dict[str, str]:
    """How good the devices' own models are at the end, where there are some."""
    if not isfinite(mean := figure_in(rows[-1], name)):
        return {}
    return {
        f"{called(name)} at the end, mean of {figure_in(rows[-1], OWN_DEVICES):.0f} devices": figure_shown(name, mean)
    }


def _losses(visits: Rows, lost: int) -> str:
    """Why visits were lost, of rounds and of estimates, and what the gate would have refused: a line for each reason.

    lost: as many as the rounds count.
    """
    found, flags = losses(visits), flagged(visits)
    shown = section("What was lost in rounds and estimates, and why", _loss_table(found)) if found else ""
    if not found and lost:
        shown = f"<p>The rounds lost {lost:,} visits, whose reasons {VISITS} does not have.</p>"
    elif not found and visits:
        shown = "<p>No visit was lost.</p>"
    return shown + (section("What the gate would have refused, and why", _loss_table(flags)) if flags else "")


def _loss_table(found: Sequence[Loss]) -> str:
    rows = [
        {"reason": loss.why, "visits": f"{loss.visits:,}", "devices": names(list(loss.devices))}
        for loss in found[:MOST]
    ]
    return html_table(rows)


def meanings(rows: Rows) -> str:
    """What the measures that these rounds have say, in a line each."""
    told = (f"<dt>{MEASURES[name]}</dt><dd>{html.escape(MEANING[name])}</dd>" for name in _measured(rows))
    return f"<dl>{''.join(told)}</dl>"


def _measured(rows: Rows) -> list[str]:
    """The measures of which at least one round has a number."""
    return [name for name in MEASURES if any(row[name] and isfinite(float(row[name])) for row in rows)]


def _files(folder: Path, shared: str) -> dict[str, str]:
    told = {
        MODEL: f"the job's one model, as plain ONNX: {shared}" if shared else "the model, as plain ONNX",
        ROUNDS: "every round",
        VISITS: "every visit, with why it was lost",
        SITES: "every site",
        DEVICES: "every device",
        ANSWERS_TABLE: "what the model answers for test samples",
        LOG: "what the roles warned of",
        CONFIG: "all settings, to run it again",
        "versions.toml": "what it was run with",
    }
    return {name: words for name, words in told.items() if (folder / name).exists()}


# --- pieces of a page


def picture(file: str, words: str) -> str:
    """A picture below its heading."""
    width = 100 * WIDTHS.get(file, WIDTHS[ACCURACY]) / WIDTHS[ACCURACY]
    return section(words, f"<img src='{file}' alt='{html.escape(words)}' style='width:{width:.0f}%'>")


def section(heading: str, content: str) -> str:
    """A heading, and what stands below it."""
    return f"<section><h2>{html.escape(heading)}</h2>{content}</section>"


def links(files: Mapping[str, str]) -> str:
    """Files beside the page, with a word on each."""
    lines = (
        f"<li><a href='{html.escape(file)}'>{html.escape(file)}</a> {html.escape(words)}</li>"
        for file, words in files.items()
    )
    return f"<ul>{''.join(lines)}</ul>"


def readable(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows of a CSV file with percent, MB and times as people read them."""
    found = []
    for row in rows:
        known = {key: READABLE.get(key, (key, _short)) for key in row}
        found.append({known[key][0]: known[key][1](text) for key, text in row.items()})
    return found


def html_table(rows: Rows, marks: Mapping[str, str] | None = None) -> str:
    """A table; cells whose text is in `marks` lead to the page that it names."""
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(key)}</th>" for key in rows[0])
    lines = ["".join(f"<td>{_cell(value, marks or {})}</td>" for value in row.values()) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class='table'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: str, marks: Mapping[str, str]) -> str:
    text = html.escape(value)
    return f"<a href='{html.escape(marks[value])}'>{text}</a>" if value in marks else text


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """A page that needs nothing but the files beside it."""
    told = html.escape(title)
    view = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    head = f"<meta charset='utf-8'>{view}<title>{told}</title><style>{STYLE}</style>"
    page = f"<!doctype html><html lang='en'><head>{head}</head><body><h1>{told}</h1>{''.join(parts)}</body></html>"
    path.write_text(page, encoding="utf-8")


def _short(value: str) -> str:
    """A number as people read it."""
    try:
        found = float(value)
    except ValueError:
        return value
    return f"{found:,.0f}" if isfinite(found) and found == int(found) else f"{found:.4g}"
