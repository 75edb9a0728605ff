"""Fixtures for pytest, which finds this module by itself (entry point ``pytest11``).

``dynbeat_clock``, ``dynbeat_beat``, and two that a project overrides in its conftest.py:
``dynbeat_instance`` and ``dynbeat_database``.
"""

# pytest imports this module in every project: the fixtures import what they use.
# ruff: noqa: PLC0415

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from celery_dynbeat.client import Dynbeat
    from celery_dynbeat.testing import FrozenClock, ManualBeat, RecordingPublisher

#: A Monday.
START = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.fixture
def dynbeat_clock() -> "FrozenClock":
    """Return a clock that stands at Monday 2026-01-05 09:00 UTC until the test moves it."""
    from celery_dynbeat.testing import FrozenClock

    return FrozenClock(START)


@pytest.fixture
def dynbeat_instance() -> "Dynbeat":
    """Return the application's Dynbeat. A project that has one overrides this fixture."""
    raise pytest.UsageError(
        "dynbeat_beat does not know your Dynbeat: define in conftest.py a fixture"
        " `dynbeat_instance` that returns it, for example `from proj import dynbeat; return"
        " dynbeat`",
    )


@pytest.fixture
def dynbeat_database(tmp_path: Path) -> "str | Engine":
    """Return the URL of a new SQLite file. A project may return another URL, or an engine."""
    return f"sqlite:///{tmp_path / 'dynbeat-test.sqlite3'}"


@pytest.fixture
def dynbeat_beat(
    dynbeat_instance: "Dynbeat",
    dynbeat_clock: "FrozenClock",
    dynbeat_database: "str | Engine",
) -> "Iterator[ManualBeat[RecordingPublisher]]":
    """Yield a beat run by hand that also runs the tasks.

    Until the end of the test, ``dynbeat_instance`` uses ``dynbeat_clock`` and ``dynbeat_database``,
    whose tables are created where they are missing, and are empty at the start of the test.
    """
    from celery_dynbeat.testing import ManualBeat
    from celery_dynbeat.testing.overriding import delete_rows, override

    with override(dynbeat_instance, database=dynbeat_database, clock=dynbeat_clock):
        # First: it refuses a database that is not the test's own.
        beat = ManualBeat(dynbeat_instance, run_tasks=True)
        delete_rows(dynbeat_instance)
        yield beat
