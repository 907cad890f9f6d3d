"""Lines about what went wrong: whole reasons, each once, and nobody left out without a word."""

from __future__ import annotations

from coordinator.rounds.failure_lines import ROOM, Mishap, grouped, names, within_room


def test_one_line_for_each_reason_with_everybody_by_name() -> None:
    long = "declined, data: " + "y" * 1900 + " do this"
    found = grouped([Mishap("b", long), Mishap("c", "lost"), Mishap("a", long), Mishap("c", "lost")])
    assert found == [f"2 devices (a, b): {long}", "c: lost (2 times)"]
    assert grouped([Mishap("site s2", "silent"), Mishap("site s1", "silent")]) == ["2 sites (site s1, site s2): silent"]


def test_names_that_do_not_fit_are_counted() -> None:
    many = [f"device-{number:03}" for number in range(400)]
    (line,) = grouped(Mishap(name, "hot") for name in many)
    assert line.startswith("400 devices (device-000, device-001, ")
    assert line.endswith(" more): hot")
    assert names(["a", "b"], room=3) == "a and 1 more"
    assert names([]) == ""


def test_lines_that_do_not_fit_are_counted_and_none_is_cut() -> None:
    lines = [f"{number}: {'€' * 500}" for number in range(20)]
    shown = within_room([*lines, *lines], "job")
    assert shown[:-1] == tuple(lines[: len(shown) - 1])
    assert shown[-1] == f"and {20 - len(shown) + 1} more of the kind: sojourn job visits job"
    assert sum(len(line.encode()) for line in shown[:-1]) <= ROOM
    alone = ("z" * 2 * ROOM,)
    assert within_room(alone, "job") == alone
    assert within_room([], "job") == ()
