"""calendars list, upsert and delete; calendars in show, in files of schedules."""

from datetime import date

import pytest

from celery_dynbeat import Cron

NAME = "holidays"
OWNER = ("--owner", "user:42")
DATES = "2026-11-22  # Sunday\n\n# comment\n2026-11-23\n"
USING = Cron("0 12 * * *").excluding(calendar=NAME)


@pytest.fixture
def dates_file(tmp_path):
    path = tmp_path / "dates.txt"
    path.write_text(DATES)
    return str(path)


def test_put_reads_dates_from_a_file(shown, as_json, dynbeat, dates_file):
    [text] = shown("calendars", "upsert", NAME, "--dates-file", dates_file, "--actor", "alice")

    assert text == "calendar 'holidays': version 1, 2 dates"
    info = dynbeat.calendars.get(NAME)
    assert (info.dates, info.updated_by) == (
        {date(2026, 11, 22): "Sunday", date(2026, 11, 23): ""},
        "alice",
    )
    assert as_json("calendars", "list", NAME) == [info.to_dict()]
    lines = shown("calendars", "list", NAME)
    assert lines[:3] == [
        "calendar holidays: version 1, 2 dates",
        "  2026-11-22 Sun Sunday",
        "  2026-11-23 Mon",
    ]
    [row] = shown("calendars", "list")
    assert row.split("\t")[:4] == [NAME, "2 dates", "sat,sun", "1"]


def test_a_wrong_line_and_a_missing_source_are_usage_errors(refused, tmp_path):
    path = tmp_path / "dates.txt"
    path.write_text("2026-11-22\ntomorrow\n")

    status, error = refused("calendars", "upsert", NAME, "--dates-file", str(path))
    assert (status, "line 2 of" in error, "'tomorrow'" in error) == (2, True, True)
    assert refused("calendars", "upsert", NAME)[0] == 2
    path.write_text("")
    status, error = refused("calendars", "upsert", NAME, "--dates-file", str(path))
    assert (status, "allow_empty" in error) == (1, True)


def test_delete_refuses_a_calendar_in_use(shown, refused, dynbeat, mine):
    dynbeat.calendars.upsert(NAME, dates=[date(2026, 11, 22)])
    mine.create("n", task="t", trigger=USING)

    status, error = refused("calendars", "delete", NAME)
    assert (status, "is used by 1 schedules" in error) == (1, True)
    mine.delete("n")
    assert shown("calendars", "delete", NAME) == ["deleted calendar 'holidays'"]
    status, error = refused("calendars", "list", NAME)
    assert (status, "`dynbeat calendars list`" in error) == (1, True)
