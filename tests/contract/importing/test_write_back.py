"""``dynbeat import django-celery-beat --back`` writes the progress that was made here."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text

from tests.support.applications import START
from tests.support.peers import write_store

SOURCE = "django-celery-beat"
MINUTE = timedelta(minutes=1)
MINUTES_5 = {"every": 5, "period": "minutes"}
EVERY_MINUTE = dict.fromkeys(
    ("minute", "hour", "day_of_month", "month_of_year", "day_of_week"), "*"
) | {"timezone": "UTC"}
#: When each schedule of the store last ran before the switch.
LAST_RUN = START - 3 * MINUTE


def task(name, **fields):
    raw = {"date_changed": LAST_RUN.isoformat(), **fields.pop("raw", {})}
    return {"name": name, "task": f"proj.{name}", "raw": raw, **fields}


def ran(count=3):
    return {"last_run_at": LAST_RUN.isoformat(), "total_run_count": count}


@pytest.fixture
def stored(database_url):
    """Return a function that executes SQL in the store, and returns the rows by name."""
    engine = create_engine(database_url)

    def execute(statement="", *, scalar=False, **values):
        with engine.begin() as connection:
            if scalar:
                return connection.scalar(text(statement))
            if statement:
                connection.execute(text(statement), values)
            names = "name, enabled, last_run_at, total_run_count"
            rows = connection.execute(text(f"SELECT {names} FROM django_celery_beat_periodictask"))
            return {name: (on, at(last), count) for name, on, last, count in rows}

    yield execute
    engine.dispose()


@pytest.fixture
def switched(database_url, imported, dynbeat):
    """Return a function that imports rows, and returns the calls for the imported schedules."""

    def switch(*rows):
        write_store(SOURCE, rows, database_url)
        imported(SOURCE, database_url, "--apply")
        return dynbeat.schedules.for_owner("")

    return switch


@pytest.fixture
def back(database_url, imported, dynbeat):
    """Return a function that holds everything and writes back; it returns results by name."""

    def run(*options):
        dynbeat.schedules.hold(reason="switch back")
        results = imported(SOURCE, database_url, "--back", *options)
        return {name: (each["outcome"], each["reason"]) for name, each in results.items()}

    return run


def at(stored):
    """Return the instant that SQLite has stored as text."""
    return stored and datetime.fromisoformat(stored).replace(tzinfo=UTC)


def test_the_old_beat_counts_from_the_last_fire_time_here(
    switched, back, stored, beat, clock, sent
):
    switched(
        task("ran", interval=MINUTES_5, **ran()),
        task("minutely", crontab=EVERY_MINUTE, **ran()),
        task("one-off", clocked={"clocked_time": (START + MINUTE).isoformat()}, one_off=True),
        task("not-yet", interval={"every": 2, "period": "days"}, **ran()),
    )
    before = stored()
    clock.advance(2 * MINUTE)
    beat.tick()
    assert {each.name for each in sent} == {"ran", "minutely", "one-off"}

    assert back() == {
        "ran": ("advance", ""),
        "minutely": ("advance", ""),
        "one-off": ("pause", "finished here"),
    }
    assert stored() == before
    back("--apply")

    assert stored() == {
        "ran": (1, LAST_RUN + 5 * MINUTE, 4),
        "minutely": (1, START + 2 * MINUTE, 4),
        # As django-celery-beat leaves a one-off that has run.
        "one-off": (0, None, 0),
        "not-yet": before["not-yet"],
    }
    # The models of django-celery-beat notify a running beat in the same way.
    marker = "SELECT last_update FROM django_celery_beat_periodictasks WHERE ident = 1"
    assert at(stored(marker, scalar=True)) == clock.now()
    assert back("--apply") == {}


def test_a_schedule_that_never_ran_is_counted_from_its_last_minute_here(switched, back, stored):
    switched(task("minutely", crontab=EVERY_MINUTE))

    assert back("--apply") == {"minutely": ("advance", "")}
    # Without a last run, an old beat counts from its own start, and loses the minutes before.
    assert stored()["minutely"] == (1, LAST_RUN, 0)
    assert back("--apply") == {}


def test_what_was_stopped_here_is_disabled_and_what_was_resumed_is_enabled(switched, back, stored):
    names = ("paused", "deleted", "both")
    mine = switched(
        *(task(name, interval=MINUTES_5, **ran()) for name in names),
        task("resumed", interval=MINUTES_5, enabled=False),
        task(
            "resumed-one-off",
            clocked={"clocked_time": (START + MINUTE).isoformat()},
            one_off=True,
            enabled=False,
        ),
    )
    mine.pause("paused", reason="incident")
    mine.delete("deleted")
    mine.resume("resumed")
    mine.resume("resumed-one-off")
    stored("UPDATE django_celery_beat_periodictask SET enabled = 0 WHERE name = 'both'")
    mine.pause("both")

    assert back("--apply") == {
        "paused": ("pause", "paused here: incident"),
        "deleted": ("pause", "deleted here"),
        "resumed": ("update", ""),
        "resumed-one-off": ("update", ""),
    }
    assert {name: row[:2] for name, row in stored().items()} == {
        "paused": (0, None),
        "deleted": (0, None),
        "resumed": (1, START),
        "resumed-one-off": (1, None),
        "both": (0, LAST_RUN),
    }


def test_rows_that_changed_in_the_old_store_are_reported_and_left(
    switched, back, stored, beat, clock
):
    switched(task("a", interval=MINUTES_5, **ran()), task("b", interval=MINUTES_5, **ran()))
    clock.advance(3 * MINUTE)
    beat.tick()
    ran_there = START + 3 * MINUTE
    update = "UPDATE django_celery_beat_periodictask SET"
    stored(f"{update} last_run_at = :at WHERE name = 'a'", at=f"{ran_there:%Y-%m-%d %H:%M:%S}")
    stored(f"{update} args = '[1]' WHERE name = 'b'")

    assert back("--apply") == {
        "a": ("skip", f"django-celery-beat has run it at {ran_there}, after its last run here"),
        "b": ("advance", "differs in args: not written"),
    }
    assert stored()["a"] == (1, ran_there, 3)


def test_nothing_is_disabled_after_the_last_step_of_the_way_back(switched, back, stored):
    mine = switched(*(task(name, interval=MINUTES_5, **ran()) for name in "ab"))
    before = stored()
    for name in "ab":
        mine.delete(name)

    reason = "all schedules with the tag import:django-celery-beat are deleted here"
    assert back("--apply") == {"a": ("skip", reason), "b": ("skip", reason)}
    assert stored() == before


def test_it_is_refused_while_beat_can_send(switched, command, dynbeat, stored, database_url):
    mine = switched(task("a", interval=MINUTES_5, **ran()))
    before = stored()
    mine.pause("a")

    refused = command(SOURCE, database_url, "--back", "--apply")
    assert (refused.exit_code, stored()) == (1, before)
    assert "`dynbeat hold --all-owners" in refused.stderr

    mine.run_now("a")
    dynbeat.schedules.hold(reason="switch back")
    refused = command(SOURCE, database_url, "--back", "--apply")
    assert (refused.exit_code, stored()) == (1, before)
    assert "1 runs are recorded and not sent" in refused.stderr

    assert command(SOURCE, database_url, "--back", "--apply", "--without-hold").exit_code == 0
    assert stored()["a"][0] == 0
