"""The switch from a real old beat to a real new one sends each fire time exactly once, and back.

The order is that of docs/how-to/switch-from-django-celery-beat.md: hold, import, stop the old beat,
import again, release; on the way back hold, import --back, stop the new beat, start the old one. A
worker of the new installation logs each message of both beats.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.event_log import BARE_VARIABLE
from tests.support.peers import write_store
from tests.support.sites import site
from tests.support.waiting import wait_until

TICK, MINUTE = timedelta(seconds=2), timedelta(minutes=1)
#: Seconds of a minute in which the old beat is stopped, so that a fire time passes before the
#: release.
STOPPED_IN = range(44, 56)
LAST_SECOND = 45


@dataclass(frozen=True)
class OldScheduler:
    """A scheduler with the rows of its store: an interval, and a crontab of each minute."""

    package: str
    scheduler: str
    rows: Callable[[], Sequence[Mapping[str, Any]]]
    environment: Callable[[str], Mapping[str, str]] = lambda _url: {}


def marked(name):
    return {"headers": {"probe": name}}


def django_rows():
    every_minute = dict.fromkeys(
        ("minute", "hour", "day_of_month", "month_of_year", "day_of_week"), "*"
    )
    common = {"task": "probe.record"}
    return [
        {"name": "tick", "interval": {"every": 2, "period": "seconds"}, **common}
        | {"headers": '{"probe": "tick"}'},
        {"name": "minutely", "crontab": every_minute | {"timezone": "UTC"}, **common}
        | {"headers": '{"probe": "minutely"}'},
    ]


def sqlalchemy_rows():
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    common = {"task": "probe.record"}
    return [
        {"name": "tick", "interval": {"every": 2, "period": "seconds"}, **common}
        | {"headers": '{"probe": "tick"}'},
        {"name": "minutely", "crontab": dict.fromkeys(names, "*"), **common}
        | {"headers": '{"probe": "minutely"}'},
    ]


def redbeat_rows():
    common = {"task": "probe.record"}
    return [
        {"name": "tick", "schedule": ["interval", {"run_every": 2}], **common}
        | {"options": marked("tick")},
        {"name": "minutely", "schedule": ["crontab", {}], **common}
        | {"options": marked("minutely")},
    ]


def django_environment(url):
    settings = "tests.support.peers.django_settings"
    return {"DJANGO_SETTINGS_MODULE": settings, "DATABASE_URL": url}


SCHEDULERS = {
    "django-celery-beat": OldScheduler(
        "django-celery-beat",
        "django_celery_beat.schedulers:DatabaseScheduler",
        django_rows,
        django_environment,
    ),
    "redbeat": OldScheduler("redbeat", "redbeat.RedBeatScheduler", redbeat_rows),
    "sqlalchemy-celery-beat": OldScheduler(
        "sqlalchemy-celery-beat",
        "sqlalchemy_celery_beat.schedulers:DatabaseScheduler",
        sqlalchemy_rows,
    ),
}


@pytest.fixture(params=SCHEDULERS)
def old(request):
    return SCHEDULERS[request.param]


@pytest.fixture
def store_url(old, postgresql_url, redis_url):
    return redis_url if old.package == "redbeat" else postgresql_url


@pytest.fixture
def made(site_folder, postgresql_url, redis_url):
    with site(
        site_folder,
        database_url=postgresql_url,
        broker_url=redis_url,
        redbeat_redis_url=redis_url,
        beat_dburi=postgresql_url,
        # Each fire time between the stop and the release is sent, not only the newest.
        dynbeat_catch_up="all",
    ) as made:
        yield made


def import_all(made, old, url, *options):
    process = made.run("dynbeat", "import", old.package, url, "--apply", *options)
    assert process.wait(within=60) == 0, process.text


def starts(made, name):
    """Return the starts of the schedule: those that the old beat sent, and those of the new."""
    of_name = [each for each in made.event_log.starts() if each["headers"].get("probe") == name]
    sent_by_new = ["dynbeat_run_id" in each["headers"] for each in of_name]
    old = [each for each, is_new in zip(of_name, sent_by_new, strict=True) if not is_new]
    new = [each for each, is_new in zip(of_name, sent_by_new, strict=True) if is_new]
    return old, new


def steps(first, last, step):
    instant = first
    while instant <= last:
        yield instant
        instant += step


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_fire_time_is_sent_once(made, old, store_url):
    # So that the store is written within one minute.
    wait_until(lambda: datetime.now(UTC).second < LAST_SECOND, within=30)
    written_at = datetime.now(UTC)
    write_store(old.package, old.rows(), store_url)
    environment = {**old.environment(store_url), BARE_VARIABLE: "1"}
    old_beat = made.beat(scheduler=old.scheduler, **environment)
    made.worker()
    wait_until(lambda: len(starts(made, "tick")[0]) >= 3, within=60, message=old_beat.text)
    schedules, mine = made.dynbeat.schedules, made.dynbeat.schedules.for_owner("")

    schedules.hold(reason="switch")
    import_all(made, old, store_url)
    new_beat = made.beat().wait_for_log("beat started")
    wait_until(lambda: datetime.now(UTC).second in STOPPED_IN, within=61)
    minute = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    assert old_beat.terminate() == 0
    import_all(made, old, store_url)
    carried = {name: mine.get(name) for name in ("tick", "minutely")}
    wait_until(lambda: datetime.now(UTC) > minute + TICK, within=61)
    schedules.release()
    wait_until(lambda: len(starts(made, "tick")[1]) >= 12, within=60, message=new_beat.text)
    wait_until(lambda: starts(made, "minutely")[1], within=30, message=new_beat.text)
    schedules.hold(reason="end")
    new_beat.terminate()
    wait_until(lambda: not mine.runs(status=("pending", "sent", "running")), within=30)

    for name, step in (("tick", TICK), ("minutely", MINUTE)):
        by_old, by_new = starts(made, name)
        runs = mine.runs(name, limit=1_000, status="succeeded")
        # Nothing of the old beat is lost or counted twice.
        assert len(by_old) == carried[name].run_count
        # Each run of the new beat was started once.
        assert Counter(each["run_id"] for each in by_new) == Counter(run.id for run in runs)
        assert not mine.runs(name, status="skipped")
        # The first fire time follows the last run of the old beat, without a gap.
        fire_times = sorted(run.fire_at for run in runs)
        last_old = carried[name].last_run_at
        first = last_old + step if name == "tick" else next_minute(last_old or written_at)
        assert fire_times == list(steps(first, fire_times[-1], step))
    # The minute that passed between the stop and the release.
    assert minute in {run.fire_at for run in mine.runs("minutely")}


def rows_that_run_once(now):
    """Return rows that run here once, and that the old beat must not run within an hour."""
    clocked_at, last = (now + 5 * TICK).isoformat(), (now - 90 * MINUTE).isoformat()
    rows = [
        {"name": "clocked", "clocked": {"clocked_time": clocked_at}, "one_off": True},
        {"name": "counted", "interval": {"every": 3, "period": "seconds"}, "one_off": True},
        {"name": "hourly", "interval": {"every": 1, "period": "hours"}, "last_run_at": last},
    ]
    return [row | {"headers": f'{{"probe": "{row["name"]}"}}'} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("old", ["django-celery-beat"], indirect=True)
def test_the_way_back_sends_nothing_twice_and_loses_nothing(made, old, store_url):
    # So that the rows run before the second in which the new beat is stopped.
    wait_until(lambda: datetime.now(UTC).second < LAST_SECOND - 20, within=41)
    once = rows_that_run_once(datetime.now(UTC))
    names = [each["name"] for each in once]
    write_store(
        old.package, [*old.rows(), *({"task": "probe.record"} | row for row in once)], store_url
    )
    schedules, mine = made.dynbeat.schedules, made.dynbeat.schedules.for_owner("")
    made.worker()
    import_all(made, old, store_url)
    new_beat = made.beat()
    wait_until(lambda: all(starts(made, name)[1] for name in ("tick", *names)), within=90)
    wait_until(lambda: datetime.now(UTC).second in STOPPED_IN, within=61)

    schedules.hold(reason="switch back")
    wait_until(lambda: not mine.runs(status=("pending", "sent", "running")), within=30)
    import_all(made, old, store_url, "--back")
    assert new_beat.terminate() == 0
    minute = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    # A fire time passes between the two beats.
    wait_until(lambda: datetime.now(UTC) > minute + TICK, within=61)
    environment = {**old.environment(store_url), BARE_VARIABLE: "1"}
    old_beat = made.beat(scheduler=old.scheduler, **environment)
    wait_until(lambda: len(starts(made, "tick")[0]) >= 6, within=60, message=old_beat.text)
    assert old_beat.terminate() == 0

    for name in names:
        by_old, by_new = starts(made, name)
        assert (name, len(by_old), len(by_new)) == (name, 0, 1)
    # The minute that passed, once.
    assert len(starts(made, "minutely")[0]) == 1
    instants = [each["at"] for each in starts(made, "tick")[0]]
    assert min(b - a for a, b in pairwise(instants)) > TICK.total_seconds() / 2


def next_minute(instant):
    return instant.replace(second=0, microsecond=0) + MINUTE
