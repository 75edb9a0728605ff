"""A table fits the terminal: optional columns go first, then each row becomes a block."""

import io
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from rich.cells import cell_len

from celery_dynbeat.cli.base import tables
from celery_dynbeat.cli.base.cells import Column, time_column

SEOUL = ZoneInfo("Asia/Seoul")
AT = datetime(2026, 11, 22, 9, tzinfo=UTC)


@dataclass
class Row:
    name: str
    at: datetime = AT
    note: str | None = None


COLUMNS = (Column("name"), time_column("at"), Column("note", width=10, optional=True))


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return a function that prints a table at a width, and returns its lines."""

    def show(rows, *, width, columns=COLUMNS, zone=SEOUL):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.show(columns, rows, zone=zone, no_color=True)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return show


def test_a_wide_table_has_all_columns_and_the_times_in_utc(printed):
    lines = printed([Row("a", note="x")], width=80)
    assert lines[-2:] == [
        "name  Asia/Seoul           at                   note",
        "a     2026-11-22 18:00:00  2026-11-22 09:00:00  x",
    ]


def test_a_very_narrow_terminal_shows_blocks_without_empty_values(printed):
    assert printed([Row("a"), Row("b")], width=20, zone=ZoneInfo("UTC")) == [
        "name     a",
        "at, UTC  2026-11-22",
        "         09:00:00",
        "",
        "name     b",
        "at, UTC  2026-11-22",
        "         09:00:00",
    ]


@pytest.mark.parametrize("width", [25, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(printed, width):
    rows = [Row("한" * 40, note="y" * 30), Row("[bold]b[/bold] :smile:", note="\x1b[31m")]
    lines = printed(rows, width=width)
    assert all(cell_len(line) <= width for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_terminal_that_encodes_ascii_only_shows_escapes(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)

    tables.show(COLUMNS, [Row("na\xefve 한")], zone=SEOUL, no_color=True)
    tables.show_record([("name", "na\xefve")], no_color=True)

    stdout.flush()
    shown = stdout.buffer.getvalue()
    assert b"na\\xefve \\ud55c" in shown
    assert b"name  na\\xefve" in shown
