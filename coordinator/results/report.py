"""What a simulation or a job leaves when it ends: its model, pictures, and one page that shows them."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from coordinator.results.folder import CONFIG, ROUNDS, VISITS
from coordinator.results.plots import accuracy_plot, participation_plot, quality_plot
from coordinator.results.tallies import DEVICES, SITES
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from coordinator.results.folder import ResultFolder, Rows
    from coordinator.state import JobState
    from sojourn.store.blobs import BlobStore

MODEL = "model.onnx"
MOST = 50
"""At most this many sites and devices are on the page; the tables have all."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #e4e7eb}"
    "th{color:#52606d;font-weight:600}img{max-width:100%}pre{background:#f5f7fa;padding:1rem;overflow:auto}"
)


def save_model(state: JobState, blobs: BlobStore, path: Path) -> None:
    """The newest model, as plain ONNX."""
    from coordinator.compiling.baking import bake  # noqa: PLC0415  # onnx takes a while to load

    if state.kit is None:
        return
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    path.write_bytes(bake(kit, vectors.load(blobs, state.vectors["model"], kit.model)))


def draw(
    results: ResultFolder, name: str, devices: Sequence[str], time: str = "simulated ", *, pictures_too: bool = True
) -> None:
    """Pictures and page of one simulation or job, from its tables.

    devices: all that there were, whether they were visited or not. time: what stands before the unit of the clock.
    pictures_too: whether to draw any, which needs matplotlib.
    """
    rows, folder = results.rows(ROUNDS), results.path
    if not rows:
        return
    pictures = _pictures(results, rows, name, devices, time) if pictures_too else {}
    shown = ("round", "accuracy", "loss", "visits", "lost", "bytes", "seconds")
    busiest = sorted(results.rows(DEVICES), key=lambda row: -float(row["seconds"]))
    tables = {
        "Rounds": [{key: row[key] for key in shown} for row in rows],
        "Sites": results.rows(SITES)[:MOST],
        f"Devices, the {MOST} busiest" if len(busiest) > MOST else "Devices, busiest first": busiest[:MOST],
    }
    tables = {heading: table for heading, table in tables.items() if table}
    write_page(folder / "report.html", name, pictures, tables, (folder / CONFIG).read_text(encoding="utf-8"))


def _pictures(results: ResultFolder, rows: Rows, name: str, devices: Sequence[str], time: str) -> dict[str, str]:
    """What is drawn, with a few words each."""
    folder, visits = results.path, results.rows(VISITS)
    pictures = {"accuracy.png": f"Accuracy by round, by {time}time, by bytes"}
    accuracy_plot({name: [rows]}, folder / "accuracy.png", time)
    if quality_plot(rows, folder / "quality.png"):
        pictures["quality.png"] = "How alike the sets were, and how diverse inside"
    if visits:
        participation_plot(visits, devices, folder / "participation.png")
        pictures["participation.png"] = "How often each device was visited"
    return pictures


def write_page(
    path: Path, title: str, pictures: Mapping[str, str], tables: Mapping[str, Rows], settings: str = ""
) -> None:
    """A page that needs nothing but the files beside it."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for file, words in pictures.items():
        parts.append(f"<h2>{html.escape(words)}</h2><img src='{file}' alt='{html.escape(words)}'>")
    for heading, table in tables.items():
        rows = ["".join(f"<th>{html.escape(key)}</th>" for key in table[0])] if table else []
        rows += ["".join(f"<td>{html.escape(_short(value))}</td>" for value in row.values()) for row in table]
        parts.append(f"<h2>{html.escape(heading)}</h2><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")
    if settings:
        parts.append(f"<h2>Settings</h2><pre>{html.escape(settings)}</pre>")
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title><style>{STYLE}</style>"
    path.write_text(f"<!doctype html>{head}{''.join(parts)}", encoding="utf-8")


def _short(value: str) -> str:
    """A number as people read it."""
    try:
        number = float(value)
    except ValueError:
        return value
    return f"{number:.0f}" if number == int(number) else f"{number:.4g}"
