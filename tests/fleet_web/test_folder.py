"""Result folders: of a simulation, of a run that still grows, and hostile ones."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.results.folder import CONFIG, ROUNDS, VISITS
from fleet_web.sources import folder_tables
from fleet_web.sources.folder_source import FolderSource, open_all
from fleet_web.sources.folder_tables import TableTail
from fleet_web.story.job_story import VisitBook
from sojourn.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "round,accuracy,loss,tours,visits,lost,bytes,seconds,clock,vts,intra_cs,inter_cs,balance,covered,cpd\n"
VISIT_HEAD = "clock,site,tour,device,hop,status,reason,samples,norm,loss,seconds,down,up\n"


def made(folder: Path, rounds: str = "", visits: str | None = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text('name = "job"\nrounds = 3\nstrategy = "chain"\n')
    (folder / ROUNDS).write_text(HEAD + rounds)
    if visits is not None:
        (folder / VISITS).write_text(VISIT_HEAD + visits)
    return folder


def open_results(folder: Path) -> FolderSource:
    (found,) = open_all([folder])
    return found


def read(source: FolderSource) -> tuple[Any, ...]:
    async def ask() -> tuple[Any, ...]:
        view = (await source.jobs())[0]
        visits = await source.visits(job=view.job, last=1000)
        return view, await source.job(view.job), visits, await source.devices()

    return asyncio.run(ask())


def round_row(number: int, tours: int = 1) -> str:
    return f"{number},0.5,1.0,{tours},2,0,1000,1.0,{number}.0,,,,,,\n"


def visit_row(round_: int, tour: int, hop: int, device: str, status: str = "done", reason: str = "") -> str:
    return f"{round_}.0,site,job/{round_}/{tour},{device},{hop},{status},{reason},5,0.1,0.2,0.5,1,1\n"


def test_failed_simulation_is_shown_with_its_reason(tmp_path):
    folder = made(tmp_path / "out", round_row(1))
    (folder / "model.onnx").touch()
    source = open_results(folder)
    assert read(source)[0].status == "done"
    (folder / "failed.txt").write_text("job job failed after 1 of 3 rounds: no device could train\n")
    (view, *_) = read(source)
    assert (view.status, view.detail) == ("failed", "job job failed after 1 of 3 rounds: no device could train")


def test_simulation_folder_gives_the_same_views_as_a_coordinator(run_folders):
    view, progress, visits, devices = read(open_results(run_folders["visit"]))
    assert (view.status, view.round, view.rounds, view.strategy) == ("done", 3, 3, "visit")
    assert [it.round for it in progress.history] == [1, 2, 3]
    assert all(0 < it.accuracy < 1 for it in progress.history)
    assert len(devices) == 10
    book = VisitBook(visits)
    for it in progress.history:
        travel = book.travel(it.round)
        assert len(travel.tours) == it.tours
        done = sum(hop.state == "done" for tour in travel.tours for hop in tour.hops)
        estimates = sum(each.status != "done" for each in visits if each.round == it.round and each.phase == "estimate")
        assert (done, sum(tour.lost for tour in travel.tours) + estimates) == (it.visits, it.lost)
    assert {it.phase for it in visits if it.round == 1} == {"estimate", "train"}


def test_appended_rows_are_read_and_partial_rows_wait(tmp_path):
    folder = made(tmp_path / "run", round_row(1), visit_row(1, 0, 0, "a"))
    tail = TableTail(folder / VISITS)
    assert len(tail.news()[0]) == 1
    with (folder / VISITS).open("a") as file:
        file.write(visit_row(1, 0, 1, "b") + '2.0,site,job/1/0,c,2,lost,"two\n')
    assert [row["device"] for row in tail.news()[0]] == ["b"]
    with (folder / VISITS).open("a") as file:
        file.write('lines",5,0.1,0.2,0.5,1,1\n')
    assert [row["reason"] for row in tail.news()[0]] == ["two\nlines"]
    (folder / VISITS).write_text(VISIT_HEAD + visit_row(1, 0, 0, "z"))
    rows, replaced = tail.news()
    assert ([row["device"] for row in rows], replaced) == (["z"], True)


def test_only_the_newest_part_of_a_long_table_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_tables, "MAX_FILE_BYTES", 300)
    folder = made(tmp_path / "run", round_row(1), "".join(visit_row(1, 0, hop, f"d{hop}") for hop in range(100)))
    source = open_results(folder)
    _, _, visits, _ = read(source)
    assert 0 < len(visits) < 10
    assert visits[0].device == "d99"
    assert any("not shown" in gap for gap in source.gaps())


def test_folder_without_visits_opens_with_a_notice(tmp_path):
    source = open_results(made(tmp_path / "run", round_row(1), None))
    view, progress, visits, _ = read(source)
    assert (view.round, len(progress.history), len(visits)) == (1, 1, 0)
    assert any(VISITS in gap for gap in source.gaps())


def test_hostile_rows_are_cut_cleaned_or_skipped(tmp_path):
    name = "\u202e<script>alert(1)</script>\x1b[31m" + "x" * 500
    rounds = round_row(1) + "2,1e999,nan,x,2,0,1000,1.0,2.0,,,,,,\n" + "3,0.5,1.0,1,2,0,1e400,1.0,3.0,,,,,,\n"
    folder = made(tmp_path / "run", rounds, visit_row(1, 0, 0, name) + visit_row(1, 0, 0, "a", "eaten") + "1,2\n")
    source = open_results(folder)
    _, progress, visits, _ = read(source)
    assert len(progress.history) == 1
    assert len(visits) == 1
    assert len(visits[0].device) <= 63
    assert visits[0].device.isprintable()
    assert any("invalid rows" in gap for gap in source.gaps())


def test_interrupted_run_suggests_resume(tmp_path):
    import os

    folder = made(tmp_path / "run", round_row(1))
    assert read(open_results(folder))[0].status == "running"
    os.utime(folder / ROUNDS, (1e9, 1e9))
    view = read(open_results(folder))[0]
    assert view.status == "stopped"
    assert "--resume" in view.detail


def test_folder_without_results_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        open_results(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"config.toml and rounds.csv are missing"):
        open_all([tmp_path])
    folder = made(tmp_path / "run")
    (folder / CONFIG).write_text("name = ")
    with pytest.raises(ConfigError):
        open_results(folder)


def test_parent_folder_opens_all_runs_under_unique_names(tmp_path, run_folders):
    shutil.copytree(run_folders["visit"], tmp_path / "visit")
    found = open_all([run_folders["visit"].parent, tmp_path / "visit"])
    assert [it.name for it in found] == ["fedavg", "visit", "visit-2"]


def test_unknown_job_or_device_is_named_in_the_error(tmp_path):
    source = open_results(made(tmp_path / "run", round_row(1)))
    with pytest.raises(UserError, match="contains the job 'job'"):
        asyncio.run(source.job("other"))
    with pytest.raises(UserError, match="no device"):
        asyncio.run(source.device("other"))


def test_job_with_a_named_model_shows_the_name(tmp_path) -> None:
    folder = made(tmp_path / "job", round_row(1))
    (folder / CONFIG).write_text('name = "job"\nmodel = "net:Net"\n')
    view, *_ = read(open_results(folder))
    assert view.model == "net:Net"
