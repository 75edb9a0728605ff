"""Entries that celery-redbeat itself stored become schedules with the same meaning."""

import json
from datetime import timedelta

import pytest
from redis import Redis

from celery_dynbeat import Cron, Every, RRule
from celery_dynbeat.importing.redbeat import RedBeatSource
from tests.support.applications import START, application
from tests.support.peers import write_store
from tests.support.servers import RedisServer, ReplicaServer, SentinelServer
from tests.support.servers.sentinel import MASTER_NAME

SOURCE = "redbeat"
LAST_RUN = START - timedelta(minutes=3, seconds=20)
MINUTES_5 = ["interval", {"run_every": 300}]


def entry(name, schedule=MINUTES_5, *, last=LAST_RUN, **fields):
    last_run = {"last_run_at": last.isoformat(), "total_run_count": 3}
    return {"name": name, "task": f"proj.{name}", "schedule": schedule, **last_run, **fields}


@pytest.fixture
def store(redis_url):
    def write(*rows, timezone="UTC"):
        write_store(SOURCE, rows, redis_url, timezone)
        return redis_url

    return write


@pytest.fixture
def after_import(store, imported, dynbeat):
    def run(row):
        imported(SOURCE, store(row), "--apply")
        return dynbeat.schedules.for_owner("").get(row["name"])

    return run


def test_an_interval_continues_from_its_last_run(after_import):
    made = after_import(entry("a"))

    assert made.given_trigger == Every(300)
    assert made.next_run_at == LAST_RUN + timedelta(minutes=5)
    assert (made.last_run_at, made.run_count) == (LAST_RUN, 3)


def test_a_crontab_is_in_the_zone_of_the_application(store, sqlite_url, clock):
    fields = {"minute": 30, "hour": "9", "day_of_month": "13", "day_of_week": "fri"}
    url = store(entry("a", ["crontab", fields]), timezone="Asia/Seoul")
    with application(sqlite_url, clock=clock) as made:
        made.app.conf.timezone = "Asia/Seoul"
        (page,) = RedBeatSource(url, context=made.context).pages()

    assert page[0].converted.trigger == Cron("30 9 13 * 5", timezone="Asia/Seoul", day_or=False)


def test_a_rule_keeps_its_start_its_count_and_its_parts(after_import):
    rule = {
        "freq": "MONTHLY",
        "dtstart": "2026-10-01T09:30:00+00:00",
        "interval": 2,
        "count": 7,
        "wkst": 6,
        "byweekday": [0, 2],
        "bysetpos": -1,
        "byhour": [9, 17],
        "byminute": 15,
        "bysecond": 0,
    }

    made = after_import(entry("a", ["rrule", rule]))

    assert made.trigger == RRule(
        "DTSTART:20261001T093000Z\n"
        "RRULE:FREQ=MONTHLY;INTERVAL=2;COUNT=7;WKST=SU;BYDAY=MO,WE;BYSETPOS=-1;BYHOUR=9,17;"
        "BYMINUTE=15;BYSECOND=0"
    )


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (["interval", {"run_every": 300, "relative": True}], "relative"),
        (["rrule", {"freq": "YEARLY", "byeaster": 0, "dtstart": "2026-10-01T09:30"}], "Easter"),
        (["rrule", {"freq": "DAILY", "dtstart": "2026-10-01T09:30:00+05:30"}], "330 minutes"),
        (["rrule", {"freq": "DAILY", "dtstart": "2026-10-01T09:30", "count": 5000}], "COUNT"),
    ],
    ids=["relative", "easter", "offset", "count"],
)
def test_a_schedule_that_cannot_be_expressed_is_refused_with_the_reason(
    store, imported, dynbeat, schedule, reason
):
    url = store(entry("a", schedule), entry("valid"))

    shown = imported(SOURCE, url, "--apply", status=1)

    assert reason in shown["a"]["reason"]
    assert [each.name for each in dynbeat.schedules.list()] == ["valid"]


def test_options_and_arguments_are_kept(after_import):
    options = {"queue": "mail", "priority": 3, "expires": 90, "headers": {"tenant": "t1"}}

    made = after_import(entry("a", args=[1], kwargs={"b": {"c": 2}}, options=options))

    assert (made.args, made.kwargs) == ([1], {"b": {"c": 2}})
    assert made.options == {"queue": "mail", "priority": 3, "headers": {"tenant": "t1"}}
    assert made.expires_after == timedelta(seconds=90)


def test_a_disabled_entry_is_paused(after_import):
    made = after_import(entry("a", enabled=False))

    assert (made.enabled, made.paused_reason) == (False, "disabled in redbeat")


@pytest.mark.quick
def test_a_second_import_changes_nothing_but_what_the_old_beat_did_since(store, imported, dynbeat):
    url = store(entry("a"), entry("b", enabled=False))
    imported(SOURCE, url, "--apply")
    assert imported(SOURCE, url, "--apply") == {}

    store(entry("a", last=START))

    assert imported(SOURCE, url, "--apply")["a"]["outcome"] == "advance"
    made = dynbeat.schedules.for_owner("").get("a")
    assert made.next_run_at == START + timedelta(minutes=5)


def test_more_entries_than_a_page_are_each_imported_once(redis_url, store, imported, dynbeat):
    store(entry("a"))
    client = Redis.from_url(redis_url)
    definition, meta = client.hmget("redbeat:a", "definition", "meta")
    with client.pipeline() as pipe:
        for number in range(1200):
            renamed = {**json.loads(definition), "name": f"n{number}"}
            pipe.hset(
                f"redbeat:n{number}", mapping={"definition": json.dumps(renamed), "meta": meta}
            )
            pipe.zadd("redbeat::schedule", {f"redbeat:n{number}": number})
        # Beat removes such a member.
        pipe.zadd("redbeat::schedule", {"redbeat:gone": 1})
        pipe.execute()
    client.close()

    assert len(imported(SOURCE, redis_url, "--apply")) == 1201
    assert dynbeat.schedules.count().count == 1201


def test_the_master_of_a_sentinel_is_read(own_server, imported, dynbeat):
    master = own_server(RedisServer)
    own_server(type("Replica", (ReplicaServer,), {"master_port": master.port}))
    sentinel = own_server(type("Sentinel", (SentinelServer,), {"master_port": master.port}))
    write_store(SOURCE, [entry("a")], master.url, "UTC")
    address = ("127.0.0.1", sentinel.port)
    dynbeat.app.conf.redbeat_redis_url = "redis-sentinel://127.0.0.1/0"
    dynbeat.app.conf.redbeat_redis_options = {
        "sentinels": [address],
        "service_name": MASTER_NAME,
    }

    assert imported(SOURCE, "--apply")["a"]["outcome"] == "create"
    assert imported(SOURCE, "--apply") == {}


def test_a_refused_connection_does_not_show_the_password(command):
    result = command(SOURCE, "redis://:s3cret@127.0.0.1:1/0")

    assert result.exit_code == 1
    assert "s3cret" not in result.output
