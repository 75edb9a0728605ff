"""The entries of beat_schedule keep their progress, as beat's own rows or as rows of an owner."""

from datetime import timedelta

import pytest
from celery.beat import PersistentScheduler
from celery.schedules import crontab

from celery_dynbeat import Every
from celery_dynbeat.beat import config_sync
from celery_dynbeat.store.schedules import MANAGED_BY_CONFIG
from tests.support.applications import START
from tests.support.peers import write_store

LAST_RUN = START - timedelta(minutes=3)


@pytest.fixture
def app(dynbeat):
    dynbeat.app.conf.beat_schedule = {
        "poll": {"task": "proj.poll", "schedule": 300, "args": (1,), "options": {"queue": "q"}},
        "daily": {"task": "proj.daily", "schedule": crontab(hour=8, minute=30), "overlap": "skip"},
        "bad": {"task": "proj.bad", "schedule": "every day"},
    }
    return dynbeat.app


@pytest.fixture
def schedule_file(app, tmp_path):
    """Return the file of Celery's own beat, after a run of each entry."""
    path = str(tmp_path / "celerybeat-schedule")
    del app.conf.beat_schedule["bad"]
    # Celery's own beat rejects a policy.
    del app.conf.beat_schedule["daily"]["overlap"]
    scheduler = PersistentScheduler(app, schedule_filename=path, lazy=True)
    scheduler.setup_schedule()
    for entry in scheduler.schedule.values():
        entry.last_run_at, entry.total_run_count = LAST_RUN - timedelta(hours=1), 5
    scheduler.schedule["poll"].last_run_at = LAST_RUN
    scheduler.close()
    return path


def test_the_import_continues_from_the_file_of_the_old_beat(schedule_file, imported, dynbeat):
    shown = imported("beat-schedule", "--schedule-file", schedule_file, "--apply")

    assert {name: each["outcome"] for name, each in shown.items()} == {
        "poll": "create",
        "daily": "create",
        "celery.backend_cleanup": "create",
    }
    poll = dynbeat.schedules.for_owner("").get("poll")
    assert (poll.last_run_at, poll.run_count) == (LAST_RUN, 5)
    assert poll.next_run_at == LAST_RUN + timedelta(minutes=5)
    assert poll.managed_by == MANAGED_BY_CONFIG


def test_a_fire_time_that_passed_since_the_old_beat_is_sent_once(
    schedule_file, imported, beat, sent
):
    imported("beat-schedule", "--schedule-file", schedule_file, "--apply")

    beat.tick()

    assert [message.name for message in sent] == ["daily"]
    assert sent[0].scheduled_for == START - timedelta(minutes=30)


def test_the_sync_of_beat_does_not_change_the_imported_rows(schedule_file, imported, dynbeat):
    imported("beat-schedule", "--schedule-file", schedule_file, "--apply")
    before = list(dynbeat.schedules.list())

    config_sync.sync(dynbeat.context)

    assert list(dynbeat.schedules.list()) == before


def test_rows_that_beat_has_written_get_the_progress(schedule_file, imported, dynbeat):
    config_sync.sync(dynbeat.context)

    shown = imported("beat-schedule", "--schedule-file", schedule_file, "--apply")

    assert shown["poll"]["outcome"] == "advance"
    poll = dynbeat.schedules.for_owner("").get("poll")
    assert poll.next_run_at == LAST_RUN + timedelta(minutes=5)
    assert imported("beat-schedule", "--schedule-file", schedule_file, "--apply") == {}


@pytest.mark.usefixtures("app")
def test_with_an_owner_the_entries_become_its_schedules(imported, dynbeat):
    shown = imported("beat-schedule", "--owner", "team:1", "--apply", status=1)

    assert "text is not a schedule" in shown["bad"]["reason"]
    mine = dynbeat.schedules.for_owner("team:1")
    assert mine.get("poll").given_trigger == Every(300)
    assert mine.get("poll").options == {"queue": "q"}
    assert mine.get("daily").overlap == "skip"
    assert mine.get("daily").managed_by == ""


@pytest.mark.usefixtures("app")
def test_a_file_that_is_none_of_celery_is_refused(command, tmp_path):
    path = tmp_path / "other"
    path.write_text("text")

    result = command("beat-schedule", "--schedule-file", str(path))

    assert result.exit_code == 1
    assert "is not a schedule file of celery beat" in result.stderr


@pytest.mark.usefixtures("app")
def test_entries_in_the_store_of_another_scheduler_stay_entries(sqlite_url, imported, dynbeat):
    row = {
        "name": "poll",
        "task": "proj.poll",
        "interval": {"every": 300, "period": "seconds"},
        "last_run_at": LAST_RUN.isoformat(),
    }
    write_store("django-celery-beat", [row], sqlite_url)

    imported("django-celery-beat", sqlite_url, "--apply", "--owner", "team:1")
    config_sync.sync(dynbeat.context)

    (poll,) = dynbeat.schedules.list(name_prefix="poll")
    assert (poll.owner, poll.managed_by) == ("", MANAGED_BY_CONFIG)
    assert poll.next_run_at == LAST_RUN + timedelta(minutes=5)
