"""Hostile input is stored unchanged or rejected with a DynbeatError; nothing else changes."""

import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import (
    Cron,
    DynbeatError,
    InvalidArgumentError,
    InvalidTriggerError,
    Trigger,
)
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.security.bounds import attempt
from tests.security.hostile_values import cursor
from tests.security.lookalikes import everything
from tests.support.applications import MINUTELY, START, execute
from tests.support.property_application import EXAMPLE_FACTOR, delete_all_rows, prepared_application
from tests.support.suites import each_database

INJECTIONS = [
    *("'; DROP TABLE dynbeat_run; --", "' OR '1'='1", '"; DELETE FROM dynbeat_schedule; --'),
    *("\\'; DROP TABLE dynbeat_schedule; #", "%s %(owner)s :owner {0} $1 ?", "/* x */ -- x"),
    *("a'||(SELECT version())||'b", "1; SELECT pg_sleep(9)", "\\x27 OR 1=1", "`id`", "%27%3B--"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "../../etc/passwd", "${jndi:ldap://x}"),
    *("\u202eright to left", "zero\u200bwidth", "\u0130i\u0307", "\U0001f600" * 60, "NULL", "\\"),
]


@each_database
def test_text_that_looks_like_sql_is_stored_unchanged(dynbeat):
    for text in INJECTIONS:
        delete_all_rows(dynbeat)
        store_and_read(dynbeat, text)


def store_and_read(dynbeat, text):
    fields = {
        "description": text, "tags": [text], "args": [text, {text: [text]}], "kwargs": {text: text},
        "options": {"shadow": text, "headers": {"h": text}}, "queue": text[:60],
    }  # fmt: skip
    delete_all_rows(dynbeat)
    dynbeat.schedules.for_owner("other").create("n", task="t", trigger=MINUTELY)
    before = everything(dynbeat)
    mine = dynbeat.schedules.for_owner(text)

    made = mine.create(text, task=text, trigger=MINUTELY, **fields)

    found = mine.get(text)
    assert found == made == mine.list(task=text)[0]
    assert (found.owner, found.name, found.task) == (text, text, text)
    for field in ("description", "tags", "args", "kwargs"):
        assert getattr(found, field) == fields[field]
    assert found.options == {**fields["options"], "queue": text[:60]}
    assert mine.pause(text, reason=text).paused_reason == text
    assert mine.runs(text) == []
    with pytest.raises(InvalidArgumentError):
        mine.runs(text, status=text)
    assert before <= everything(dynbeat)
    assert {(each.owner, each.name) for each in mine.changes(text)} == {(text, text)}
    mine.delete(text)
    assert without_changes(dynbeat) == {line for line in before if not is_change(line)}


def without_changes(dynbeat):
    return {line for line in everything(dynbeat) if not is_change(line)}


def is_change(line):
    return line.startswith("dynbeat_change:")


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite_url",
        "postgresql_url",
        "mariadb_url",
    ],
)
def test_a_list_finds_a_tag_of_any_characters(kind, request, clock):
    tags = ["plain", "é", "\U0001f600", "a'b", 'a"b', "a\\b", "%", "$[0]", "* OR 1=1"]
    with prepared_application(request.getfixturevalue(kind), clock=clock) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        for tag in tags:
            mine.create(tag, task="t", trigger=MINUTELY, tags=[tag])

        for tag in tags:
            assert [schedule.name for schedule in mine.list(tag=tag)] == [tag]


CHARACTERS = st.characters(exclude_categories=()) | st.sampled_from("\x00\n'\"\\%_;\ud800\u202e ")
TEXTS = st.text(CHARACTERS, max_size=12) | st.sampled_from(INJECTIONS)
ODD = st.sampled_from([10**30, -(10**400), float("nan"), float("inf"), b"b", {1}, ...])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(TEXTS | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)
DURATIONS = st.floats() | st.integers() | st.timedeltas() | st.none() | TEXTS
FIELDS = {
    "task": TEXTS, "description": TEXTS, "tags": st.lists(TEXTS, max_size=3) | JSON,
    "args": st.lists(JSON, max_size=2) | JSON, "kwargs": st.dictionaries(TEXTS, JSON, max_size=2),
    "options": st.dictionaries(
        st.sampled_from(["queue", "shadow", "headers", "countdown", "time_limit", "priority"]),
        JSON, max_size=2,
    ),
    "queue": TEXTS | JSON, "priority": JSON, "max_runs": JSON, "pause_after_failures": JSON,
    "alerts": JSON, "retry": JSON, "ping_url": TEXTS | JSON,
    "window": DURATIONS, "expires_after": DURATIONS, "catch_up_window": DURATIONS,
    "max_run_time": DURATIONS, "overlap": TEXTS | JSON, "start_at": st.datetimes() | JSON,
}  # fmt: skip
FORMS = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)
KINDS = ["cron", "every", "once", "rrule", "solar", "any_of", "excluding"]
SPECS = [
    *("*/5 9-17 * * mon-fri", "H H * * *", "0 0 29 2 *", "@daily", "PT5M", "P1M", "PT0.5S"),
    *("R/2026-11-21T09:00:00Z/PT5M", "2026-11-21T09:00:01Z", "9899-12-31T00:00:00Z"),
    "DTSTART;TZID=Asia/Seoul:20261123T090000 RRULE:FREQ=WEEKLY;BYDAY=MO",
    *("RRULE:FREQ=SECONDLY;BYSECOND=1,2", "sunrise 37.5 126.9", "solar_noon -90 180"),
    '[{"kind":"cron","spec":"0 9 * * mon-fri"},{"kind":"every","spec":"P1M"}]',
    '{"trigger":{"kind":"cron","spec":"0 9 * * *"},"dates":["2026-12-25"]}',
]
ZONES = ["UTC", "Asia/Seoul", "../../etc/passwd", "/etc/localtime", "europe/berlin", "America"]


@st.composite
def damaged(draw, texts):
    """Draw a text in which one part is replaced."""
    text = draw(st.sampled_from(texts))
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(len(text), start + 4)))
    return text[:start] + draw(TEXTS) + text[stop:]


def rules(texts):
    return st.sampled_from(texts) | damaged(texts) | TEXTS


def check(url, *, examples):
    """Pass drawn values to the API: they are stored and planned, or rejected without a change."""
    clock = FrozenClock(START)
    with prepared_application(url, clock=clock) as dynbeat:
        beat = ManualBeat(dynbeat)

        @settings(
            max_examples=examples * EXAMPLE_FACTOR,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(TEXTS, TEXTS, FORMS, st.sampled_from(KINDS), rules(SPECS), rules(ZONES))
        def check_input(owner, name, form, kind, spec, zone):
            made = attempt(make, dynbeat, owner, name, form, kind, spec, zone)
            assert isinstance(made, DynbeatError) == (not everything(dynbeat))
            if not isinstance(made, DynbeatError):
                assert dynbeat.schedules.for_owner(owner).get(name) == made
                compare(made, form)
                beat.run_until_idle()
                assert made.error is None
            delete_all_rows(dynbeat)

        check_input()


def make(dynbeat, owner, name, form, kind, spec, zone):
    trigger = attempt(Trigger.from_json, {"kind": kind, "spec": spec, "timezone": zone})
    if isinstance(trigger, InvalidTriggerError):
        # The fields are still tested.
        trigger = MINUTELY
    given = {"task": "t", **form}
    return dynbeat.schedules.for_owner(owner).create(name, trigger=trigger, **given)


def compare(made, form):
    for field in form.keys() & {"args", "kwargs", "description", "task", "max_runs"}:
        assert getattr(made, field) == json.loads(json.dumps(form[field]))
    if "tags" in form:
        assert made.tags == sorted(set(form["tags"]))
    if form.get("queue") is not None:
        assert made.options["queue"] == form["queue"]


def test_any_input_is_stored_or_rejected_on_sqlite(sqlite_url):
    check(sqlite_url, examples=150)


def test_any_input_is_stored_or_rejected_on_postgresql(postgresql_url):
    check(postgresql_url, examples=60)


def test_any_input_is_stored_or_rejected_on_mariadb(mariadb_url):
    check(mariadb_url, examples=30)


def named_cursor(key):
    return cursor(["name", *key])


def test_any_cursor_is_accepted_or_rejected(postgresql_url):
    with prepared_application(postgresql_url, clock=FrozenClock(START)) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="t", trigger=MINUTELY)
        cursors = st.lists(TEXTS, min_size=2, max_size=2).map(named_cursor) | st.binary().map(
            cursor
        )

        @settings(max_examples=50 * EXAMPLE_FACTOR, database=None)
        @given(cursors | TEXTS)
        def check_cursor(after):
            found = attempt(mine.list, after=after)
            assert isinstance(found, InvalidArgumentError) or {each.owner for each in found} <= {
                mine.owner
            }

        check_cursor()


#: Values that SQL can write and the API rejects.
SQL_VALUES = {
    "trigger_spec": [*INJECTIONS, "x" * 60_000, "[" * 6_000, "PT0S", "R5/2026/PT1M"],
    "trigger_kind": ["any_of", "excluding", "solar", "rrule"],
    "timezone": ["../../etc/passwd", "/etc/passwd", "UTC\n", ""],
}


@pytest.mark.parametrize("column", SQL_VALUES)
@each_database
def test_a_row_with_hostile_text_from_sql_is_quarantined_and_the_others_are_sent(
    dynbeat, beat, column
):
    cron = Cron("0 10 * * *", timezone="UTC") if column == "timezone" else MINUTELY
    for number, text in enumerate(SQL_VALUES[column]):
        for owner, trigger in (("hand", cron), ("crowd", MINUTELY)):
            dynbeat.schedules.for_owner(owner).create(f"{number}", task="t", trigger=trigger)
        statement = f"UPDATE dynbeat_schedule SET {column} = :text WHERE name = :name"
        execute(dynbeat, f"{statement} AND owner = 'hand'", text=text, name=f"{number}")
    dynbeat.context.clock.advance(timedelta(days=2))

    attempt(beat.run_until_idle)

    assert [run.owner for run in beat.publisher.sent] == ["crowd"] * len(SQL_VALUES[column])
    for schedule in dynbeat.schedules.list(owner="hand"):
        assert schedule.error
        assert len(schedule.error) < 1_000
        assert schedule.next_run_at is None
