"""JSON logs: every line is one JSON object, whatever its content."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from sojourn import logs
from sojourn.errors import ConfigError
from sojourn.logs import MAX_EXCEPTION, MAX_FIELD, NO_SUBJECT, About, JsonLines
from sojourn.protocol.wire import TourId, VisitId
from sojourn.text import LINE

HOSTILE = 'a\nb\r\x1b[31mred\x07\u2028\u202e"}{\x00\ud800' + "x" * 10_000


def record(text, *values, error=None, about=None) -> logging.LogRecord:
    made = logging.LogRecord("sojourn", logging.WARNING, __file__, 1, text, values, error)
    if about is not None:
        made.about = about
    return made


def line_of(it: logging.LogRecord, role="edge", node="e1") -> dict[str, Any]:
    line = JsonLines(role, node).format(it)
    assert "\n" not in line
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_json_line_has_time_level_node_and_ids() -> None:
    it = record("%s of %d", "two", 3, about=VisitId("job", 3, 7, 2, (1, 4)).about(device="pi-1"))
    it.created = 1_794_927_702.0625
    assert line_of(it) == {
        "time": "2026-11-17T15:01:42.062Z",
        "level": "warning",
        "role": "edge",
        "node": "e1",
        "message": "two of 3",
        "site": "e1",
        "run": "job",
        "round": 3,
        "tour": "job/3/8",
        "visit": "job/3/8/3",
        "attempt": "1.4",
        "device": "pi-1",
    }


def test_tour_and_visit_ids_are_shared_by_all_nodes() -> None:
    tour, visit = TourId("job", 3, 7, 1), VisitId("job", 3, 7, 2, (1, 1))
    assert tour.about().fields == {"run": "job", "round": 3, "tour": "job/3/8"}
    planned = tour.about(hop=2).fields
    assert planned["visit"] == visit.about().fields["visit"] == "job/3/8/3"
    assert About("job").fields == {"run": "job"}
    assert About("job", 0, 0, 0).fields["visit"] == "job/0/1/1"
    assert NO_SUBJECT.fields == {}


def test_hostile_text_becomes_one_bounded_printable_line() -> None:
    found = line_of(record(HOSTILE, about=About(run=HOSTILE, device=HOSTILE)))
    for text, longest in ((found["message"], LINE), (found["run"], MAX_FIELD), (found["device"], MAX_FIELD)):
        assert len(text) <= longest
        assert text.startswith('a b red"}{')
        assert text.isprintable()
    assert list(found) == ["time", "level", "role", "node", "message", "site", "run", "device"]


def test_message_with_mismatched_arguments_is_still_logged() -> None:
    assert line_of(record("%d of %s", "two"))["message"] == "%d of %s ('two',)"


def test_exception_is_a_field() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        found = line_of(record("broken", error=sys.exc_info()))
    assert found["message"] == "broken"
    assert found["exception"].startswith("Traceback")
    assert "ValueError: a" in found["exception"]
    assert len(found["exception"]) <= MAX_EXCEPTION
    assert "\x1b" not in found["exception"]


@pytest.mark.parametrize(("given", "environment", "chosen"), [
    (None, None, "plain"), (None, "json", "json"), ("plain", "json", "plain"), ("json", None, "json"),
])  # fmt: skip
def test_option_overrides_the_environment(monkeypatch, given, environment, chosen) -> None:
    if environment:
        monkeypatch.setenv(logs.VARIABLE, environment)
    else:
        monkeypatch.delenv(logs.VARIABLE, raising=False)
    assert logs.chosen_format(given) == chosen


def test_unknown_log_format_is_rejected_by_name(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="--log-format: 'xml' is not a log format: use plain or json"):
        logs.chosen_format("xml")
    monkeypatch.setenv(logs.VARIABLE, "xml")
    with pytest.raises(ConfigError, match=f"{logs.VARIABLE}: 'xml'"):
        logs.chosen_format(None)


PROCESS = """
import logging, sys, threading, warnings
from sojourn import logs
from sojourn.errors import ConfigError
from sojourn.protocol.wire import VisitId
logs.set_up(log_format=sys.argv[1], role="agent")
logs.set_up(log_format=sys.argv[1], role="agent", node="pi-1", verbose="verbose" in sys.argv)
log = logging.getLogger("edge_agent")
log.log(logs.STEP, "a step", extra=logs.subject(VisitId("job", 3, 7, 2, (1, 1)).about()))
log.info("logged")
log.debug("for finding faults")
warnings.warn("odd")
logs.report_error(ConfigError("wrong\\nand more"))
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("uncaught")
"""


def logged_in(*words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROCESS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_all_output_of_a_process_is_json() -> None:
    lines = [json.loads(line) for line in logged_in("json")]
    assert {(line["role"], line["node"], line["device"]) for line in lines} == {("agent", "pi-1", "pi-1")}
    assert [(line["level"], line["message"]) for line in lines if line["level"] != "critical"][:2] == [
        ("info", "a step"), ("info", "logged"),
    ]  # fmt: skip
    assert [line["message"] for line in lines if line["level"] == "error"] == ["wrong and more"]
    assert any("UserWarning: odd" in line["message"] for line in lines)
    thread, end = [line["exception"] for line in lines if line["level"] == "critical"]
    assert "ZeroDivisionError" in thread
    assert "RuntimeError: uncaught" in end


def test_plain_log_omits_steps_unless_verbose() -> None:
    lines = logged_in("plain")
    assert lines[0][9:] == "info logged"
    assert "error: wrong" in lines
    lines = logged_in("plain", "verbose")
    assert [line[9:] for line in lines[:3]] == ["step job/3/8/3: a step", "info logged", "debug for finding faults"]
