"""Periodic tasks that django-celery-beat itself stored become schedules with the same meaning."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text

from celery_dynbeat import Cron, Every
from celery_dynbeat.importing.table_rows import DJANGO_CELERY_BEAT
from celery_dynbeat.importing.tables import TableSource
from celery_dynbeat.importing.writing import Importer
from tests.support.applications import START, application
from tests.support.peers import write_store

SOURCE = "django-celery-beat"
HOUR = timedelta(hours=1)
LAST_RUN = START - timedelta(minutes=3, seconds=20)


def task(name, **fields):
    raw = {"date_changed": START.isoformat(), **fields.pop("raw", {})}
    return {"name": name, "task": f"proj.{name}", "raw": raw, **fields}


def crontab(*fields, timezone="UTC"):
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return dict(zip(names, fields, strict=True)) | {"timezone": timezone}


def ran(at=LAST_RUN, count=3):
    return {"last_run_at": at.isoformat(), "total_run_count": count}


MINUTES_5 = {"every": 5, "period": "minutes"}


@pytest.fixture
def store(database_url):
    """Return a function that writes rows into a store in the database of the test."""

    def write(*rows):
        write_store(SOURCE, rows, database_url)
        return database_url

    return write


@pytest.fixture
def after_import(store, imported, dynbeat):
    """Return a function that writes a row, imports it and returns the new schedule."""

    def run(row):
        imported(SOURCE, store(row), "--apply")
        return dynbeat.schedules.for_owner("").get(row["name"])

    return run


def test_a_dry_run_shows_each_schedule_and_writes_nothing(store, imported, dynbeat):
    url = store(task("a", interval=MINUTES_5), task("b", crontab=crontab("0", "9", *"***")))

    shown = imported(SOURCE, url)

    assert [each["outcome"] for each in shown.values()] == ["create", "create"]
    assert shown["a"]["before"] == "every 5 minutes"
    assert shown["b"]["before"] == "crontab 0 9 * * * UTC"
    assert shown["b"]["after"] == "At 09:00 every day, UTC"
    assert not list(dynbeat.schedules.list())


@pytest.mark.quick
def test_a_second_import_changes_nothing(store, imported, dynbeat):
    url = store(
        task("a", interval=MINUTES_5, **ran()),
        task("b", crontab=crontab("0", "9", "1", "*", "1", timezone="Europe/Berlin")),
        task("c", clocked={"clocked_time": (START + HOUR).isoformat()}, one_off=True),
        task("d", interval=MINUTES_5, enabled=False),
        task("e", interval=MINUTES_5, start_time=(START + HOUR).isoformat()),
        task("f", interval=MINUTES_5, expires=(START + HOUR).isoformat(), description="ü"),
        task("g", crontab=crontab("0", *"****"), expire_seconds=30, queue="q", headers='{"a": 1}'),
    )
    assert {each["outcome"] for each in imported(SOURCE, url, "--apply").values()} == {"create"}
    before = list(dynbeat.schedules.list())

    assert imported(SOURCE, url, "--apply") == {}
    assert list(dynbeat.schedules.list()) == before
    assert len(before) == 7


def test_an_interval_continues_from_its_last_run(after_import):
    made = after_import(task("a", interval=MINUTES_5, **ran()))

    assert made.given_trigger == Every(300)
    assert made.next_run_at == LAST_RUN + timedelta(minutes=5)
    assert (made.last_run_at, made.run_count) == (LAST_RUN, 3)
    assert made.tags == ["import:django-celery-beat"]


def test_a_crontab_requires_both_day_fields(after_import):
    made = after_import(task("a", crontab=crontab("0", "0", "13", "*", "5")))

    assert made.trigger == Cron("0 0 13 * 5", timezone="UTC", day_or=False)
    # The next Friday the 13th.
    assert made.next_run_at == datetime(2027, 8, 13, tzinfo=UTC)


def test_a_crontab_whose_fire_time_passed_since_the_last_run_is_due(after_import, beat, sent):
    last = START - timedelta(hours=2)
    after_import(task("a", crontab=crontab("30", "8", "*", "*", "*"), **ran(last)))

    beat.tick()

    assert [message.fire_at for message in sent] == [START - timedelta(minutes=30)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            task("a", interval=MINUTES_5, one_off=True, total_run_count=1),
            "a one-off that has run",
        ),
        (
            task("a", interval=MINUTES_5, expires=(START - HOUR).isoformat()),
            "expired at 2026-11-21 08:00:00+00:00",
        ),
        (
            task(
                "a",
                clocked={"clocked_time": (START - HOUR).isoformat()},
                one_off=True,
                enabled=False,
            ),
            "disabled, and its time has passed",
        ),
    ],
    ids=["one-off", "expired", "clocked"],
)
def test_a_task_that_would_not_run_again_is_skipped(store, imported, dynbeat, row, reason):
    (result,) = imported(SOURCE, store(row), "--apply").values()

    assert (result["outcome"], result["reason"]) == ("skip", reason)
    assert not list(dynbeat.schedules.list())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (task("a", interval=MINUTES_5, raw={"args": "[1"}), "args is not JSON"),
        (task("a", interval=MINUTES_5, raw={"kwargs": "[1]"}), "kwargs"),
        (task("a", interval=MINUTES_5, headers='{"task": "other"}'), "headers"),
        (task("a", interval=MINUTES_5, raw={"priority": 256}), "priority"),
        (task("a", interval={"every": 0, "period": "days"}), "interval 0 days"),
        (task("a", crontab=crontab("61", *"****")), "crontab '61 * * * *'"),
        (task("a", crontab=crontab("0", "0", "30", "2", "*")), "crontab '0 0 30 2 *'"),
        (task("a", interval=MINUTES_5, raw={"interval": None}), "it has no schedule"),
    ],
    ids=["args", "kwargs", "headers", "priority", "interval", "crontab", "date", "none"],
)
def test_a_task_that_cannot_be_expressed_is_refused_with_the_reason(
    store, imported, dynbeat, row, reason
):
    url = store(row, task("valid", interval=MINUTES_5))

    shown = imported(SOURCE, url, "--apply", status=1)

    assert shown["a"]["outcome"] == "refuse"
    assert reason in shown["a"]["reason"]
    assert [each.name for each in dynbeat.schedules.list()] == ["valid"]


def test_options_and_arguments_are_kept(after_import):
    made = after_import(
        task(
            "a",
            interval=MINUTES_5,
            args='[1, "x"]',
            kwargs='{"when": {"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}}',
            queue="mail",
            exchange="topic",
            routing_key="mail.digest",
            priority=4,
            headers='{"tenant": "t1", "periodic_task_name": "a"}',
            expire_seconds=90,
            description="sends mail",
        )
    )

    assert made.args == [1, "x"]
    # kombu's JSON: the worker reads a datetime.
    assert made.kwargs["when"]["__type__"] == "datetime"
    assert made.options == {
        "queue": "mail",
        "exchange": "topic",
        "routing_key": "mail.digest",
        "priority": 4,
        "headers": {"tenant": "t1"},
    }
    assert made.expires_after == timedelta(seconds=90)
    assert made.description == "sends mail"


def test_a_disabled_task_is_paused_and_resumes_with_the_source(store, imported, dynbeat):
    mine = dynbeat.schedules.for_owner("")
    imported(SOURCE, store(task("a", interval=MINUTES_5, enabled=False)), "--apply")
    paused = mine.get("a")
    assert (paused.enabled, paused.paused_reason) == (False, "disabled in django-celery-beat")

    url = store(task("a", interval=MINUTES_5, enabled=True))
    assert imported(SOURCE, url, "--apply")["a"]["reason"] == "changes enabled"

    assert mine.get("a").enabled


def test_a_run_of_the_old_beat_since_the_first_import_is_not_sent_again(
    store, imported, dynbeat, clock, beat, sent
):
    row = task("a", interval=MINUTES_5, **ran(START - timedelta(minutes=5)))
    imported(SOURCE, store(row), "--apply")
    clock.advance(timedelta(seconds=2))
    later = task("a", interval=MINUTES_5, **ran(START + timedelta(seconds=1), count=4))

    assert imported(SOURCE, store(later), "--apply")["a"]["outcome"] == "advance"
    beat.tick()

    assert sent == []
    made = dynbeat.schedules.for_owner("").get("a")
    assert made.next_run_at == START + timedelta(minutes=5, seconds=1)
    assert made.run_count == 4


def test_a_run_of_the_new_beat_is_not_sent_again_after_another_import(
    store, imported, clock, beat, sent
):
    url = store(task("a", interval=MINUTES_5, **ran(START - timedelta(minutes=5))))
    imported(SOURCE, url, "--apply")
    beat.tick()
    clock.advance(timedelta(seconds=2))

    assert imported(SOURCE, url, "--apply") == {}
    beat.tick()

    assert len(sent) == 1


def test_a_one_off_that_the_old_beat_ran_since_is_paused(store, imported, beat, sent):
    clocked = {"clocked_time": (START - HOUR).isoformat()}
    imported(SOURCE, store(task("a", clocked=clocked, one_off=True)), "--apply")

    url = store(task("a", clocked=clocked, one_off=True, **ran(START, count=1)))
    assert imported(SOURCE, url, "--apply")["a"]["outcome"] == "pause"
    beat.tick()

    assert sent == []


def test_an_edit_of_the_definition_is_replaced_and_shown_and_policies_stay(
    store, imported, dynbeat
):
    url = store(task("a", interval=MINUTES_5, args="[1]"))
    imported(SOURCE, url, "--apply")
    lists = dynbeat.schedules.for_owner("")
    lists.update("a", trigger="PT1H", args=[2], overlap="skip")

    dry = imported(SOURCE, url)
    assert dry["a"]["reason"] == "changes args, trigger_spec"
    assert lists.get("a").args == [2]

    assert imported(SOURCE, url, "--apply") == dry
    made = lists.get("a")
    assert (made.given_trigger, made.args, made.overlap) == (Every(300), [1], "skip")


def test_a_schedule_of_the_same_name_is_not_replaced(store, imported, dynbeat):
    before = dynbeat.schedules.for_owner("").create("a", task="mine", trigger=Every(60))

    shown = imported(SOURCE, store(task("a", interval=MINUTES_5)), "--apply", status=1)

    assert "did not create" in shown["a"]["reason"]
    assert dynbeat.schedules.for_owner("").get("a") == before


def owner_of(row):
    return f"user:{row['name'].partition(':')[2]}" if ":" in row["name"] else None


def test_the_owner_comes_from_a_function(store, imported, dynbeat):
    url = store(task("digest:42", interval=MINUTES_5), task("a", interval=MINUTES_5))

    imported(SOURCE, url, "--apply", "--owner-from", f"{__name__}:owner_of")

    assert {(each.owner, each.name) for each in dynbeat.schedules.list()} == {
        ("user:42", "digest:42"),
        ("", "a"),
    }


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry-run", "apply"])
def test_the_schedules_of_earlier_batches_count_against_a_quota(store, sqlite_url, dry_run):
    url = store(*(task(name, interval=MINUTES_5) for name in "abc"))
    with application(sqlite_url, owner_limits={"*": {"max_schedules": 2}}) as made:
        made.context.prepare()
        source = TableSource(url, DJANGO_CELERY_BEAT, context=made.context)
        importer = Importer(made.context, SOURCE, lambda _found: "team:1", dry_run=dry_run)
        (page,) = source.pages()

        batches = [importer.write([found]) for found in page]

    assert [str(each.outcome) for (each,) in batches] == ["create", "create", "refuse"]


def test_schedules_that_the_source_no_longer_has_are_named(store, command, imported, sqlite_url):
    url = store(task("a", interval=MINUTES_5), task("b", interval=MINUTES_5))
    imported(SOURCE, url, "--apply")
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM django_celery_beat_periodictask WHERE name = 'a'"))
    engine.dispose()

    result = command(SOURCE, url, "--apply")

    assert "no longer in the source: a (1); they still run" in result.stderr


def test_an_interval_without_a_run_counts_from_its_last_change(after_import):
    changed = {"date_changed": (START - timedelta(minutes=2)).isoformat()}

    made = after_import(task("a", interval=MINUTES_5, raw=changed))

    assert made.next_run_at == START + timedelta(minutes=3)


def test_a_clocked_task_that_no_beat_has_sent_yet_is_due(after_import, beat, sent):
    at = START - timedelta(hours=5)
    after_import(task("a", clocked={"clocked_time": at.isoformat()}, one_off=True))

    beat.tick()

    assert [message.fire_at for message in sent] == [at]
