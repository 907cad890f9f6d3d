"""The files that a simulation or a job writes when it ends: model, predictions, plots, and a page of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np

from coordinator.job_state import JobState
from coordinator.jobs.model import exported_model
from coordinator.results.folder import CONFIG, LOG, ROUNDS, VISITS, ResultFolder, Rows
from coordinator.results.job_metrics import MEANING, MEASURES, PLAIN, belonging, metric_in, metric_shown
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
from coordinator.results.run_description import capital, what_was_run
from coordinator.results.visit_totals import DEVICES, SITES, Loss, flagged, losses, names
from sojourn.markup import Markup, joined, page, tag
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.metric_names import DIRECTIONS, MAIN, OWN, OWN_DEVICES, called, finisher_names, own_names
from sojourn.protocol.spec import Kit
from sojourn.settings import parse
from sojourn.store.blobs import BlobStore
from sojourn.text import clock_of

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --quiet: #52606d; --line: #d9dee4; --paper: #fff; --box: #f4f6f8;
  --link: #1d4ed8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --quiet: #a5b1bd; --line: #3e4c59; --paper: #16191d;
  --box: #22272e; --link: #8ab4ff; } }
@media print { :root { color-scheme: light; --ink: #000; --quiet: #444; --line: #bbb; --paper: #fff; --box: #fff;
  --link: #000; } section { break-inside: avoid-page; } thead { display: table-header-group; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; } a { color: var(--link); }
.bad { color: #c0182f; font-weight: 600; }
.lead { color: var(--quiet); margin-top: 0; max-width: 50rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { flex: 1 1 8rem; background: var(--box); border: 1px solid var(--line); border-radius: .5rem;
  padding: .7rem .9rem; color: var(--quiet); font-size: .85rem; }
.tiles b { display: block; font-size: 1.3rem; color: var(--ink); white-space: nowrap; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:first-child, th:first-child { text-align: left; padding-left: 0; white-space: normal; }
th { color: var(--quiet); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
img { max-width: 100%; background: #fff; border-radius: .4rem; }
pre { background: var(--box); padding: 1rem; overflow: auto; white-space: pre-wrap; }
@media print { .table { overflow: visible; } .table td, .table th { padding: .1rem .35rem; font-size: 11px; } }
"""


ANSWERS_TABLE = "answers.csv"
MAX_ROWS = 1000
"""The maximum number of samples in the table, evenly spaced over the test set."""
KINDS = ("regression", "forecast", "reconstruction")


def save_answers(state: JobState, blobs: BlobStore, results: ResultFolder) -> None:
    """Write the table of predictions, if the task predicts values and there is a test set."""
    if state.kit is None or state.test is None or state.settings.task.kind not in KINDS:
        return
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    test, graphs = unpack_blob(blobs.read(state.test.digest), Exemplars), Graphs(kit)
    vector = vectors.load(blobs, state.vectors["model"], kit.model)
    x, y = test.packed()
    at = np.unique(np.linspace(0, len(y) - 1, min(MAX_ROWS, len(y))).astype(np.int64))
    rows = graphs.features(test.unpacked(x[at]))
    if kit.learns.kind == "reconstruction":
        faulty = test.faulty_mask()
        marks = np.zeros(len(at), np.int64) if faulty is None else faulty[at].astype(np.int64)
        scores = graphs.losses(vector, rows, y[at])
        results.table(ANSWERS_TABLE, ("score", "faulty"), zip(scores.tolist(), marks.tolist(), strict=True))
        return
    outputs = graphs.outputs(vector, rows).astype(np.float64)
    true = np.asarray(test.expected()[at], np.float64).reshape(outputs.shape)
    names = kit.learns.names or tuple(f"value {number + 1}" for number in range(outputs.shape[-1]))
    table = _compared(outputs.reshape(-1, len(names)), true.reshape(-1, len(names)), names)
    results.table(ANSWERS_TABLE, ("quantity", "true", "predicted"), table)


def _compared(outputs: np.ndarray, true: np.ndarray, names: tuple[str, ...]) -> Iterator[tuple[str, float, float]]:
    for at, name in enumerate(names):
        pairs = zip(true[:, at], outputs[:, at], strict=True)
        yield from ((name, float(value), float(predicted)) for value, predicted in pairs)


MODEL, REPORT = "model.onnx", "report.html"
MAX_ROWS_ON_PAGE = 50
"""The maximum number of sites and devices on the page; the tables contain all."""


def _megabytes(text: str) -> str:
    return f"{float(text) / 1e6:,.2f}"


def _metric(name: str, text: str) -> str:
    return metric_shown(name, float(text or "nan"))


def _time(text: str) -> str:
    return clock_of(float(text))


def _measure(text: str) -> str:
    return f"{float(text):.3f}" if text and isfinite(float(text)) else "-"


_FURTHER = dict.fromkeys(name for kind in MAIN for name in (*own_names(kind), *finisher_names(kind)))
READABLE: dict[str, tuple[str, Callable[[str], str]]] = {
    **{name: (called(name), partial(_metric, name)) for name in (*DIRECTIONS, *_FURTHER)},
    "bytes": ("MB", _megabytes),
    "down": ("MB down", _megabytes),
    "up": ("MB up", _megabytes),
    "seconds": ("time", _time),
    "clock": ("fleet's clock", _time),
    **{name: (heading, _measure) for name, heading in MEASURES.items()},
}
"""The headings and number formats of table columns on pages."""


def save_model(state: JobState, blobs: BlobStore, path: Path) -> None:
    """Write the newest model as plain ONNX."""
    if state.kit is None:
        return
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    path.write_bytes(exported_model(kit, vectors.load(blobs, state.vectors["model"], kit.model)))


def draw(results: ResultFolder, name: str, devices: Sequence[str], *, pictures_too: bool = True) -> None:
    """Write the pictures and the page of a simulation or a job from its tables.

    devices: all devices, with or without visits. pictures_too: whether to draw pictures, which needs matplotlib.
    """
    rows, folder = results.rows(ROUNDS), results.path
    if not rows:
        return
    metrics = results.task.measured(rows) or list(PLAIN)
    shown = ("round", *metrics, "tours", "visits", "lost", "bytes", "seconds", "clock", *_measured(rows))
    busiest = sorted(results.rows(DEVICES), key=lambda row: -float(row["seconds"]))
    heading = "Devices, busiest first"
    if len(busiest) > MAX_ROWS_ON_PAGE:
        heading = f"Devices, the {MAX_ROWS_ON_PAGE} busiest of {len(busiest):,}"
    tables = {
        "Rounds": [{key: row.get(key, "") for key in shown} for row in rows],
        "Sites": results.rows(SITES)[:MAX_ROWS_ON_PAGE],
        heading: busiest[:MAX_ROWS_ON_PAGE],
    }
    parts = [
        summary_html(results),
        *(_pictures(results, rows, name, devices) if pictures_too else ()),
        *(section(title, html_table(readable(table))) for title, table in tables.items() if table),
        *_metric_owners(metrics, results.task.shared),
        section("Files", links(_files(folder, results.task.shared))),
        section("Settings", tag("pre", (folder / CONFIG).read_text(encoding="utf-8"))),
    ]
    write_page(folder / REPORT, name, parts)


def _metric_owners(metrics: Sequence[str], shared: str) -> list[Markup]:
    """Explain which model each metric belongs to, if there are several."""
    owners = belonging(metrics)
    if not owners:
        return []
    others = ", ".join(called(name) for name in metrics if name in DIRECTIONS)
    lines = {others: f"the job's one model, on the job's test set: {shared or 'trained by all devices'}", **owners}
    known = _explained((name, text) for name, text in lines.items() if name)
    return [section("Which model a metric belongs to", known)]


def _pictures(results: ResultFolder, rows: Rows, name: str, devices: Sequence[str]) -> list[Markup]:
    """Draw the available pictures and return their HTML."""
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


def summary_html(results: ResultFolder) -> Markup:
    """Return the beginning of the page, which a notebook also shows: settings, results, and lost visits."""
    rows, visits = results.rows(ROUNDS), results.rows(VISITS)
    config = parse((results.path / CONFIG).read_text(encoding="utf-8"), CONFIG)
    task = results.task
    best = task.best(rows)
    done, lost = (sum(int(row[key]) for row in rows) for key in ("visits", "lost"))
    tiles = {
        **_device_models_tile(rows, OWN + task.main),
        f"{called(task.main)} at the end": task.text(rows[-1]),
        f"at best, in round {best['round']}": task.text(best),
        "rounds": rows[-1]["round"],
        "on the fleet's clock": clock_of(float(rows[-1]["clock"])),
        "over MQTT": f"{sum(float(row['bytes']) for row in rows) / 1e6:,.1f} MB",
        "visits lost in rounds": f"{lost:,} of {done + lost:,}",
    }
    if found := flagged(visits):
        tiles["visits that the gate would have refused"] = f"{sum(it.visits for it in found):,} of {len(visits):,}"
    lead = tag("p", what_was_run(config), class_="lead")
    failed = tag("p", results.failure, class_="bad") if results.failure else ""
    drawn = tag("div", *(tag("div", tag("b", value), name) for name, value in tiles.items()), class_="tiles")
    return joined([lead, failed, drawn, _losses(visits, lost)])


def _device_models_tile(rows: Rows, name: str) -> dict[str, str]:
    """Return the metric of the devices' own models at the end, if there are any."""
    if not isfinite(mean := metric_in(rows[-1], name)):
        return {}
    return {
        f"{called(name)} at the end, mean of {metric_in(rows[-1], OWN_DEVICES):.0f} devices": metric_shown(name, mean)
    }


def _losses(visits: Rows, lost: int) -> Markup:
    """List why visits of rounds and estimations were lost, and what the gate would have refused, one line per reason.

    lost: the number of lost visits in the tables of rounds.
    """
    found, flags = losses(visits), flagged(visits)
    shown = []
    if found:
        shown.append(section("Visits lost in rounds and estimations, and why", _loss_table(found)))
    elif lost:
        shown.append(tag("p", f"The rounds lost {lost:,} visits; {VISITS} does not contain the reasons."))
    elif visits:
        shown.append(tag("p", "No visit was lost."))
    if flags:
        shown.append(section("What the gate would have refused, and why", _loss_table(flags)))
    return joined(shown)


def _loss_table(found: Sequence[Loss]) -> Markup:
    rows = [
        {"reason": loss.description, "visits": f"{loss.visits:,}", "devices": names(list(loss.devices))}
        for loss in found[:MAX_ROWS_ON_PAGE]
    ]
    return html_table(rows)


def meanings(rows: Rows) -> Markup:
    """Return one line about each measure that these rounds have."""
    return _explained((MEASURES[name], MEANING[name]) for name in _measured(rows))


def _explained(words: Iterable[tuple[str, str]]) -> Markup:
    return tag("dl", *(part for name, text in words for part in (tag("dt", name), tag("dd", text))))


def _measured(rows: Rows) -> list[str]:
    """Return the measures that at least one round has."""
    return [name for name in MEASURES if any(row[name] and isfinite(float(row[name])) for row in rows)]


def _files(folder: Path, shared: str) -> dict[str, str]:
    descriptions = {
        MODEL: f"the job's one model, as plain ONNX: {shared}" if shared else "the model, as plain ONNX",
        ROUNDS: "every round",
        VISITS: "every visit, with the reason if it was lost",
        SITES: "every site",
        DEVICES: "every device",
        ANSWERS_TABLE: "predictions for test samples",
        LOG: "warnings of the roles",
        CONFIG: "all settings, to run it again",
        "versions.toml": "the versions of the software",
    }
    return {name: words for name, words in descriptions.items() if (folder / name).exists()}


# --- pieces of a page


def picture(file: str, words: str) -> Markup:
    """Return a picture with its heading."""
    width = 100 * WIDTHS.get(file, WIDTHS[ACCURACY]) / WIDTHS[ACCURACY]
    return section(words, tag("img", src=file, alt=words, style=f"width:{width:.0f}%"))


def section(heading: str, *content: str) -> Markup:
    """Return a heading and its content."""
    return tag("section", tag("h2", heading), *content)


def links(files: Mapping[str, str]) -> Markup:
    """Return links to files next to the page, with a description of each."""
    return tag("ul", *(tag("li", tag("a", file, href=file), f" {words}") for file, words in files.items()))


def readable(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Format the rows of a CSV file with percent, MB and times."""
    found = []
    for row in rows:
        known = {key: READABLE.get(key, (key, _short)) for key in row}
        found.append({known[key][0]: known[key][1](text) for key, text in row.items()})
    return found


def html_table(rows: Rows, marks: Mapping[str, str] | None = None) -> Markup:
    """Return a table; cells whose text is in `marks` are links."""
    if not rows:
        return tag("p", "none")
    head = tag("tr", *(tag("th", key) for key in rows[0]))
    lines = [tag("tr", *(tag("td", _cell(value, marks or {})) for value in row.values())) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="table")


def _cell(value: str, marks: Mapping[str, str]) -> str:
    return tag("a", value, href=marks[value]) if value in marks else value


def write_page(path: Path, title: str, parts: Sequence[Markup]) -> None:
    """Write a page that needs only the files next to it."""
    path.write_text(page(title, STYLE, tag("h1", title), *parts), encoding="utf-8")


def _short(value: str) -> str:
    """Format a number."""
    try:
        found = float(value)
    except ValueError:
        return value
    return f"{found:,.0f}" if isfinite(found) and found == int(found) else f"{found:.4g}"
