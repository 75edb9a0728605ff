"""No text of a row can start a line of a text log, not even one that SQL by hand wrote."""

import logging
from datetime import timedelta

import pytest

from tests.support.applications import MINUTELY, execute

FORGED = "x\n[2026: ERROR] forged\r\x1b[2J"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def lines(caplog):
    """Return a function that returns the messages that are not one printable line."""
    caplog.set_level(logging.DEBUG, logger="celery_dynbeat")

    def unprintable():
        own = [each for each in caplog.records if each.name.startswith("celery_dynbeat.")]
        assert own
        return [text for text in (each.getMessage() for each in own) if not text.isprintable()]

    return unprintable


@pytest.fixture
def forge(dynbeat):
    """Return a function that writes the forged text to columns."""

    def write(table, *columns):
        values = ", ".join(f"{column} = :it" for column in columns)
        execute(dynbeat, f"UPDATE {table} SET {values}", it=FORGED)

    return write


def test_names_of_a_sent_run(mine, clock, beat, lines, forge):
    mine.create("n", task="t", trigger=MINUTELY)
    forge("dynbeat_schedule", "owner", "name", "task")
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert lines() == []


@pytest.mark.parametrize("column", ["trigger_spec", "trigger_kind", "timezone"])
def test_a_schedule_that_cannot_be_planned(mine, clock, beat, lines, forge, column):
    mine.create("n", task="t", trigger=MINUTELY)
    forge("dynbeat_schedule", column)
    clock.advance(MINUTE)
    beat.run_until_idle()

    assert lines() == []


def test_a_lost_run(dynbeat, mine, clock, beat, lines, forge):
    mine.create("n", task="t", trigger=MINUTELY, pause_after_failures=1)
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.pause("n", reason=FORGED)
    ended = "status = 'running', attempt = 1, overdue_at = NULL, finished_at = NULL"
    execute(dynbeat, f"UPDATE dynbeat_run SET {ended}, started_at = created_at")
    forge("dynbeat_run", "owner", "name", "task", "worker")
    forge("dynbeat_schedule", "owner", "name", "task")
    clock.advance(timedelta(hours=1))
    beat.run_until_idle()

    assert lines() == []
