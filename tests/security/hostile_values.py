"""Hostile values for each argument that an application may pass on from a user."""

import base64
import json
from datetime import UTC, date, datetime, timedelta, timezone

from celery_dynbeat import AnyOf, Cron, Every, Once, RRule, Solar, Trigger
from celery_dynbeat.api.audit import acting
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.triggers import Excluding, OnBusinessDay
from tests.support.applications import MINUTELY, START


class Hostile:
    """Its repr and its str raise an error with a very long message."""

    def __repr__(self):
        raise RuntimeError("x" * 1_000_000)

    __str__ = __repr__


class HostileList(list):
    def __iter__(self):
        raise RuntimeError


class HostileDict(dict):
    def __iter__(self):
        raise RuntimeError

    keys = items = values = __iter__


def nested(levels, innermost=1):
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def doubled(levels):
    """Return a small structure with 2**levels parts when expanded (a billion laughs attack)."""
    value = ["lol"]
    for _ in range(levels):
        value = [value, value]
    return value


def cursor(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode()


LONG, WIDE = "x" * 10_000_000, "\U0001f600" * 3_000_000
DEEP, DOUBLED, MANY = nested(100_000), doubled(25), list(range(1_000_000))
HUGE, NAN, INFINITE = 10**5_000, float("nan"), float("inf")
HUGES = [10**4_000] * 60_000
CIRCULAR: list[object] = []
CIRCULAR.append(CIRCULAR)
ANY = [LONG, WIDE, DEEP, DOUBLED, CIRCULAR, HUGE, NAN, b"bytes", Hostile(), HostileList([1])]
DURATIONS = [*ANY, -1, -1e-9, INFINITE, -INFINITE, True, timedelta.max, timedelta.min]

FIELDS = {
    "args": [LONG, DEEP, [DEEP], DOUBLED, MANY, CIRCULAR, [HUGE], HUGES, [NAN], [INFINITE],
             [WIDE], ["\ud800"], [b"b"], [Hostile()], HostileList([1]), [HostileDict(a=1)], {}],
    "kwargs": [[], LONG, {1: 1}, {"a": {1: 1, "1": 2}}, {"a": {(1,): 1}}, {"\ud800": 1},
               {LONG: 1}, {"a": DEEP}, {"a": DOUBLED}, {"a": {Hostile(): 1}}, HostileDict(a=1),
               {"a": HostileDict(a=1)}, {"a": {1, 2}}],
    "options": [LONG, {LONG: 1}, {"queue": LONG}, {"queue": "a\n"}, {"queue": ["a"]}, DEEP,
                {"headers": {LONG: 1}}, {"headers": DEEP}, {"headers": {"n": 2**63}},
                {"headers": {"task": "os.system"}}, {"headers": {"dynbeat_run_id": "x"}},
                {"task_id": "x"}, {"eta": "x"}, {"link": []}, {"serializer": LONG},
                {"priority": HUGE}, {"countdown": NAN}, HostileDict(a=1)],
    "queue": [LONG, "", "a\x00", "\ud800", DEEP, HUGE, Hostile()],
    "priority": [HUGE, -1, NAN, True, "1", Hostile()],
    "description": [*ANY, "\x00", "\ud800", 5],
    "tags": [LONG, [LONG], [DEEP], MANY, [""], ["a\x00"], ["\ud800"], [5], HostileList(["a"])],
    "task": [*ANY, "", " t", "t\n", "\x1b[0m"],
    "trigger": [*ANY, None, "* * * *", {"kind": DEEP}, "P" + "1" * 5_000, "\x00", "\ud800"],
    "start_at": [*ANY, "2026-01-01", START.replace(tzinfo=None), datetime.min.replace(tzinfo=UTC),
                 datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-23)))],
    "end_at": [*ANY, datetime.max.replace(tzinfo=UTC)],
    "max_runs": [*ANY, 0, -1, True, 2**31],
    "catch_up_window": [*DURATIONS, 0, 0.5, timedelta(0)],
    "expires_after": [*DURATIONS, 0, timedelta(0)],
    "max_run_time": [*DURATIONS, 0, timedelta(0)],
    "window": DURATIONS,
    "catch_up": [*ANY, "", "LATEST"],
    "overlap": [*ANY, "", "allow "],
    "on_lost": [*ANY, "", "Record"],
    "pause_after_failures": [*ANY, -1, 2**31, True],
    "retry": [*ANY, LONG, 5, [1], {}, {"max_retries": HUGE}, {"max_retries": Hostile()}, {LONG: 1},
              {1: 1}, {"max_retries": 1, "backoff": HUGE}, {"max_retries": 1, "backoff": NAN},
              {"max_retries": 1, "factor": HUGE}, {"max_retries": 1, "factor": Hostile()},
              HostileDict(max_retries=1)],
    "alerts": [*ANY, LONG, 5, [1], {"late_after": HUGE}, {"late_after": NAN}, {LONG: 1}, {1: 1},
               {"to": LONG}, {"to": "\ud800"}, {"to": "a\x00"}, {"after_failures": HUGE},
               {"lost": Hostile()}, {"late_after": Hostile()}, HostileDict(late_after=1),
               {"frequent_above": HUGE, "frequent_within": 1}, {"frequent_above": Hostile()}],
    "ping_url": [*ANY, "", LONG, "\x00", "\ud800", "https://hc-ping.com", "https://[", 5],
    "enabled": [*ANY, 1, None, "false"],
    LONG: [1],
    "owner": ["user:2"],
}  # fmt: skip

CURSORS = [
    *ANY, LONG, cursor(["name", "a", "\x00"]), cursor(["name", "\ud800", "b"]),
    cursor(["name", 1, 2]),
    cursor(["name", "a"]), cursor(["fire_time", "a", "b"]),
    cursor(["fire_time", START.isoformat(), "b"]),
    cursor(["fire_time", "2026-11-22T08:00:00", new_run_id(START)]), cursor(b"[" * 5_000),
    cursor(b"[" * 500_000),
    cursor(["name", "a" * 10_000, "b"]),
    cursor(["\ud800", "b"]), cursor(["a", "\x00"]), cursor([1, 2]), cursor(["a"]), cursor("ab\x00"),
    cursor({"a": 1, "b": 2}), cursor(b"[" + b"1" * 5_000 + b",2]"), cursor(b"\xff"), "\ud800", "=",
]  # fmt: skip


def acting_pause(mine, **given):
    with acting(**{"actor": "", **given}):
        mine.pause("n")


#: Calls for the schedule "n" of an owner, each with a list of arguments to replace.
CALLS = {
    "get": (lambda mine, value: mine.get(value), [*ANY, "", "n\n", "n\x00", "\ud800", None]),
    "create": (lambda mine, value: mine.create(value, task="t", trigger=MINUTELY), [*ANY, ""]),
    "upsert": (lambda mine, value: mine.upsert(value, task="t", trigger=MINUTELY), [*ANY, ""]),
    "reason": (lambda mine, value: mine.pause("n", reason=value), [*ANY, "\x00", "\ud800"]),
    "actor of a call": (
        lambda mine, value: mine.bound(actor=value).pause("n"),
        [*ANY, "\x00", "\ud800"],
    ),
    "of owner": (lambda mine, value: mine.runs(owner=value), [*ANY, "", "user:7", "\x00"]),
    "holds after": (lambda mine, value: mine.holds(after=value), CURSORS),
    "alerts after": (lambda mine, value: mine.alerts(after=value), CURSORS),
    "changes until": (lambda mine, value: mine.changes(until=value), [*ANY, START.isoformat()]),
    "session": (lambda mine, value: mine.bound(session=value).get("n"), [*ANY, False, 0, ""]),
    "version": (lambda mine, value: mine.pause("n", expected_version=value), [*ANY, -1, True, "1"]),
    "delete": (lambda mine, value: mine.delete("n", expected_version=value), [*ANY, 2**31]),
    "after": (lambda mine, value: mine.list(after=value), CURSORS),
    "limit": (lambda mine, value: mine.list(limit=value), [*ANY, 0, -1, True, 10**9]),
    "state": (lambda mine, value: mine.list(state=value), [*ANY, "", {}, "ACTIVE"]),
    "counted": (lambda mine, value: mine.count(state=value), [*ANY, ""]),
    "order": (lambda mine, value: mine.list(order=value), [*ANY, "", {}, "id"]),
    "prefix": (lambda mine, value: mine.list(name_prefix=value), [*ANY, LONG, "\x00", "\ud800"]),
    "enabled": (lambda mine, value: mine.list(enabled=value), [*ANY, 1, "true"]),
    "with task": (lambda mine, value: mine.list(task=value), [*ANY, "\x00"]),
    "tag": (lambda mine, value: mine.list(tag=value), [*ANY, "\x00"]),
    "runs of": (lambda mine, value: mine.runs(value), [*ANY, "\x00", "n "]),
    "runs after": (lambda mine, value: mine.runs(after=value), CURSORS),
    "run id": (lambda mine, value: mine.get_run(value), [*ANY, "", "0" * 35, "{" + "0" * 32]),
    "until": (lambda mine, value: mine.runs(until=value), [*ANY, START.replace(tzinfo=None)]),
    "runs with task": (lambda mine, value: mine.runs(task=value), [*ANY, "\x00"]),
    "statuses": (lambda mine, value: mine.runs(status=[value]), [*ANY, "", {}, "SENT"]),
    "status": (lambda mine, value: mine.runs("n", status=value), [*ANY, "", {}, "SENT"]),
    "origin": (lambda mine, value: mine.runs("n", origin=value), [*ANY, "", {}]),
    "since": (lambda mine, value: mine.runs("n", since=value), [*ANY, START.replace(tzinfo=None)]),
    "run count": (lambda mine, value: mine.runs("n", limit=value), [*ANY, 0, 10**9]),
    "count": (lambda mine, value: mine.upcoming("n", count=value), [*ANY, 0, 10**9]),
    "skip": (lambda mine, value: mine.skip("n", value), [*ANY, START.replace(tzinfo=None)]),
    "unskip": (lambda mine, value: mine.unskip("n", value), [*ANY, START]),
    "skip reason": (lambda mine, value: mine.skip("n", START, reason=value), [*ANY, "\x00"]),
    "with_skipped": (lambda mine, value: mine.upcoming("n", with_skipped=value), [*ANY, 1, None]),
    "backfill since": (lambda mine, value: mine.backfill("n", since=value, until=START), ANY),
    "backfill until": (lambda mine, value: mine.backfill("n", since=START, until=value), ANY),
    "backfill pace": (
        lambda mine, value: mine.backfill("n", since=START, until=START, per_minute=value),
        [*ANY, 0, 10**9],
    ),
    "changes of": (lambda mine, value: mine.changes(value), [*ANY, "\x00", "\ud800", "n "]),
    "changes after": (
        lambda mine, value: mine.changes(after=value),
        [
            *CURSORS,
            cursor(["newest_change", "9999-12-31T23:59:59-12:00", 1]),
            cursor(["newest_change", START.isoformat(), 2**63]),
            cursor(["newest_change", START.isoformat(), -1]),
            cursor(["newest_change", None, 1]),
        ],
    ),
    "changes by": (lambda mine, value: mine.changes(actor=value), [*ANY, "\x00", "\ud800"]),
    "action": (lambda mine, value: mine.changes(action=value), [*ANY, "", {}, "PAUSE"]),
    "changes since": (lambda mine, value: mine.changes(since=value), [*ANY, "2026-01-01"]),
    "change count": (lambda mine, value: mine.changes(limit=value), [*ANY, 0, 10**9]),
    "actor": (lambda mine, value: acting_pause(mine, actor=value), [*ANY, "\x00", "\ud800"]),
    "acting reason": (
        lambda mine, value: acting_pause(mine, reason=value),
        [*ANY, "\x00", "\ud800", None],
    ),
    "preview": (lambda mine, value: mine.preview(value), [*ANY, None, "", "* * * *"]),
    "preview of": (lambda mine, value: mine.preview(MINUTELY, value), [*ANY, "", "n\n"]),
    "preview count": (lambda mine, value: mine.preview(MINUTELY, "n", value), [*ANY, 0, 10**9]),
    "preview window": (lambda mine, value: mine.preview(MINUTELY, "n", window=value), DURATIONS),
    "preview start": (
        lambda mine, value: mine.preview(MINUTELY, "n", start_at=value),
        FIELDS["start_at"],
    ),
    "preview runs": (
        lambda mine, value: mine.preview(MINUTELY, "n", max_runs=value),
        FIELDS["max_runs"],
    ),
    "preview catch_up": (
        lambda mine, value: mine.preview(MINUTELY, "n", catch_up=value),
        FIELDS["catch_up"],
    ),
    "preview overlap": (
        lambda mine, value: mine.preview(MINUTELY, "n", overlap=value),
        FIELDS["overlap"],
    ),
    "owner zone": (
        lambda mine, value: mine.set_timezone(value),
        [*ANY, "", "../../etc/passwd", "UTC\x00", "\ud800", "Europe"],
    ),
    "quiet window": (
        lambda mine, value: mine.set_quiet_hours([value]),
        [*ANY, "", "22:00", "22:00-07:00\x00", "\ud800 22:00-07:00", "mon-\ud800 1:00-2:00"],
    ),
    "quiet windows": (lambda mine, value: mine.set_quiet_hours(value), [*ANY, "22:00-07:00", []]),
    "hold reason": (lambda mine, value: mine.hold(reason=value), [*ANY, "\x00", "\ud800"]),
    "hold until": (
        lambda mine, value: mine.hold(reason="", until=value),
        [
            *ANY,
            START.replace(tzinfo=None),
            START - timedelta(days=1),
            datetime.max.replace(tzinfo=UTC),
        ],
    ),
    "rerun": (lambda mine, value: mine.rerun(value), [*ANY, "", "0" * 35, new_run_id(START)]),
    "rerun since": (
        lambda mine, value: mine.rerun_many(since=value),
        [*ANY, START.replace(tzinfo=None), START + timedelta(days=1), None],
    ),
    "rerun until": (
        lambda mine, value: mine.rerun_many(since=START, until=value),
        [*ANY, START - timedelta(days=1)],
    ),
    "rerun ended": (lambda mine, value: mine.rerun_many(since=START, ended_before=value), ANY),
    "rerun status": (
        lambda mine, value: mine.rerun_many(since=START, status=value),
        [*ANY, "", "sent", "skipped", ()],
    ),
    "rerun of": (
        lambda mine, value: mine.rerun_many(since=START, name=value),
        [*ANY, "\x00", "other"],
    ),
    "rerun pace": (
        lambda mine, value: mine.rerun_many(since=START, per_minute=value),
        [*ANY, 0, 10**9],
    ),
    "batch": (lambda mine, value: mine.get_batch(value), [*ANY, "", "0" * 35, new_run_id(START)]),
    "runs of batch": (lambda mine, value: mine.runs(batch_id=value), [*ANY, "", "0" * 35]),
    "cancelled status": (
        lambda mine, value: mine.cancel_runs(status=value),
        [*ANY, "odd", "succeeded", ("sent", "skipped"), ()],
    ),
    "cancelled": (lambda mine, value: mine.cancel_runs(limit=value), [*ANY, 0, 100_001, True]),
    "pause until": (
        lambda mine, value: mine.pause("n", until=value),
        [*ANY, START, START.replace(tzinfo=None), timedelta(0), timedelta.max, True],
    ),
    "cancelled batch": (lambda mine, value: mine.cancel_runs(batch_id=value), [*ANY, "", "0" * 35]),
}

EXCLUDED = [date(2026, 1, 1) + timedelta(days=number) for number in range(100_000)]
#: Constructors of triggers.
TRIGGERS = {
    "text": (Trigger.from_text, [*ANY, "", "P" * 4_000, "FREQ=" * 4_000, "R" + "1" * 4_000 + "/",
             "2026-" + "1" * 300, "=,;" * 4_000, None]),
    "json": (Trigger.from_json, [*ANY, {"kind": DEEP}, {"kind": MANY}, {"kind": Hostile()},
             {LONG: 1}, {Hostile(): 1}, {"kind": "cron", "spec": LONG},
             {"kind": "any_of", "spec": "[" * 7_000}, {"kind": "any_of", "spec": DEEP},
             {"kind": "cron", "spec": "* * * * *", "timezone": WIDE}]),
    "cron": (Cron, [*ANY, "* * * * *\x00", "* " * 100_000, "*/" + "9" * 5_000 + " * * * *"]),
    "zone": (lambda zone: Cron("* * * * *", timezone=zone),
             [*ANY, "../../etc/passwd", "/etc/passwd", "/usr/share/zoneinfo/UTC", "Europe",
              "Europe/../UTC", "UTC\x00", "UTC\n", "\ud800", "posixrules", ".", "", "C:\\zone"]),
    "every": (Every, [*ANY, 0, -1, INFINITE, timedelta.max, "PT1M"]),
    "once": (Once, [*ANY, START.replace(tzinfo=None), "soon"]),
    "once after": (Once.after, [*ANY, INFINITE, -1, timedelta.max, timedelta.min]),
    "rrule": (RRule, [*ANY, "RRULE:FREQ=SECONDLY;" + "BYSECOND=1;" * 10_000, "DTSTART:\x00"]),
    "solar": (lambda event: Solar(event, latitude=1, longitude=2), [*ANY, "noon\x00"]),
    "latitude": (lambda value: Solar("sunset", latitude=value, longitude=2), [*ANY, 91, INFINITE]),
    "any of": (lambda value: AnyOf(value, value), ANY),
    "many": (lambda count: AnyOf(*[Every(number + 1) for number in range(count)]), [2_000]),
    "excluding": (lambda value: Excluding(MINUTELY, value), ANY),
    "dates": (lambda count: Excluding(MINUTELY, *EXCLUDED[:count]), [367, 20_000]),
    "calendars": (lambda value: Excluding(MINUTELY, calendars=[value]), ANY),
    "business days": (lambda value: OnBusinessDay(value, "next", calendar="a"), ANY),
    "direction": (lambda value: OnBusinessDay(Cron("0 9 * * *"), value, calendar="a"), ANY),
    "calendar": (lambda value: OnBusinessDay(Cron("0 9 * * *"), "next", calendar=value), ANY),
}  # fmt: skip


def counted(number: int) -> RRule:
    """Return four rules with COUNT=1000 from 1905: each search counts all occurrences."""
    rules = "\n".join(
        f"RRULE:FREQ=DAILY;COUNT=1000;BYMONTHDAY={1 + (number + n) % 28};BYHOUR={number % 24}"
        for n in range(4)
    )
    return RRule(
        f"DTSTART:1905{1 + number % 12:02}0{1 + number % 9}T{number % 24:02}0000Z\n{rules}"
    )


SECONDLY = Cron("* * * * * *")
SELDOM = (Cron("0 0 2-31 * *"), Cron("0 0 1 2-12 *"))
#: Triggers whose plan would take a second, by their cause.
COSTLY = {
    "counted": lambda: AnyOf(SECONDLY, *map(counted, range(19))),
    "excluded": lambda: SECONDLY.excluding(*map(counted, range(10))),
    "barren": lambda: AnyOf(*(Cron(f"{n} 9 * * *").excluding(*SELDOM) for n in range(20))),
}
