"""Lines about failures: whole reasons, each once, and every omission is counted."""

from __future__ import annotations

from coordinator.rounds.round_messages import MAX_LINES_SIZE, Failure, grouped, names, within_room


def test_each_reason_has_one_line_with_all_names() -> None:
    long = "declined, data: " + "y" * 1900 + " do this"
    found = grouped([Failure("b", long), Failure("c", "lost"), Failure("a", long), Failure("c", "lost")])
    assert found == [f"2 devices (a, b): {long}", "c: lost (2 times)"]
    assert grouped([Failure("site s2", "silent"), Failure("site s1", "silent")]) == [
        "2 sites (site s1, site s2): silent"
    ]


def test_names_that_do_not_fit_are_counted() -> None:
    many = [f"device-{number:03}" for number in range(400)]
    (line,) = grouped(Failure(name, "hot") for name in many)
    assert line.startswith("400 devices (device-000, device-001, ")
    assert line.endswith(" more): hot")
    assert names(["a", "b"], room=3) == "a and 1 more"
    assert names([]) == ""


def test_lines_that_do_not_fit_are_counted_and_not_truncated() -> None:
    lines = [f"{number}: {'€' * 500}" for number in range(20)]
    shown = within_room([*lines, *lines], "job")
    assert shown[:-1] == tuple(lines[: len(shown) - 1])
    assert shown[-1] == f"and {20 - len(shown) + 1} more like these: sojourn job visits job"
    assert sum(len(line.encode()) for line in shown[:-1]) <= MAX_LINES_SIZE
    alone = ("z" * 2 * MAX_LINES_SIZE,)
    assert within_room(alone, "job") == alone
    assert within_room([], "job") == ()
