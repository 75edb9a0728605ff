"""Fixtures for pytest, which loads this module by its entry point ``pytest11``.

Tests use ``dynbeat_clock`` and ``dynbeat_beat``. A project overrides ``dynbeat_instance`` and
``dynbeat_database`` in its conftest.py.
"""

# pytest imports this module in each project, so the fixtures import what they need.
# ruff: noqa: PLC0415

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from celery_dynbeat.api import Dynbeat
    from celery_dynbeat.testing import FrozenClock, ManualBeat

#: A Monday.
START = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.fixture
def dynbeat_clock() -> "FrozenClock":
    """Return a clock that shows Monday 2026-01-05 09:00 UTC until the test moves it."""
    from celery_dynbeat.testing import FrozenClock

    return FrozenClock(START)


@pytest.fixture
def dynbeat_instance() -> "Dynbeat":
    """Return the application's Dynbeat. Override this fixture to use ``dynbeat_beat``."""
    raise pytest.UsageError(
        "dynbeat_beat needs your Dynbeat: define a fixture `dynbeat_instance` in conftest.py that"
        " returns it, for example `from proj import dynbeat; return dynbeat`",
    )


@pytest.fixture
def dynbeat_database(tmp_path: Path) -> "str | Engine":
    """Return the URL of a new SQLite file. An override may return another URL or an engine."""
    return f"sqlite:///{tmp_path / 'dynbeat-test.sqlite3'}"


@pytest.fixture
def dynbeat_beat(
    dynbeat_instance: "Dynbeat",
    dynbeat_clock: "FrozenClock",
    dynbeat_database: "str | Engine",
) -> "Iterator[ManualBeat]":
    """Yield a ManualBeat that also executes the tasks.

    Until the end of the test, ``dynbeat_instance`` uses ``dynbeat_clock`` and ``dynbeat_database``.
    Missing tables are created, and all tables are empty at the start of the test.
    """
    from celery_dynbeat.testing import ManualBeat, delete_rows, override

    with override(dynbeat_instance, database=dynbeat_database, clock=dynbeat_clock):
        # Before the rows are deleted: ManualBeat rejects a database that is not a test database.
        beat = ManualBeat(dynbeat_instance, run_tasks=True)
        delete_rows(dynbeat_instance)
        yield beat
