"""Strategies for whole schedules: each kind of trigger, and each field of ``create``."""

from datetime import date, timedelta

from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, Once, RRule, Solar
from tests.support.applications import START

TRIGGERS = st.sampled_from(
    [
        Every(60),
        Every(timedelta(days=1), anchor=START),
        Every(months=1, timezone="Europe/Berlin"),
        Cron("*/5 * * * *"),
        Cron("H 9 * * mon-fri", timezone="Asia/Seoul"),
        Cron("@daily", timezone="America/New_York"),
        Once(START + timedelta(days=3)),
        RRule("DTSTART;TZID=Asia/Seoul:20261123T090000\nRRULE:FREQ=WEEKLY;BYDAY=MO"),
        Solar("sunrise", latitude=37.5, longitude=127.0),
        AnyOf(Cron("0 9 * * *", timezone="Asia/Seoul"), Every(3600)),
        Cron("0 9 * * *", timezone="Asia/Seoul").excluding(date(2026, 12, 25)),
    ]
)
TEXTS = st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=20)
NAMES = TEXTS.map(str.strip).filter(bool)
OWNERS = st.just("") | NAMES
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {"task": NAMES, "trigger": TRIGGERS},
    optional={
        "args": st.lists(JSON_VALUES, max_size=3),
        "kwargs": st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
        "queue": NAMES.filter(lambda name: len(name.encode()) < 256),
        "priority": st.integers(0, 9),
        "options": st.just({"exchange": "x", "headers": {"a": "b"}}),
        "start_at": st.integers(0, 10**5).map(lambda n: START + n * timedelta(seconds=2)),
        "end_at": st.just(START + timedelta(days=400)),
        "max_runs": st.integers(1, 10**6),
        "catch_up": st.sampled_from(["latest", "all", "none"]),
        "catch_up_window": st.floats(1, 10**6),
        "expires_after": st.integers(1, 10**6),
        "window": st.integers(0, 10**6) | st.integers(1, 100).map(lambda share: f"{share}%"),
        "overlap": st.sampled_from(["allow", "skip", "buffer_one", "cancel_previous"]),
        "max_run_time": st.floats(0.5, 10**6),
        "on_lost": st.sampled_from(["record", "rerun"]),
        "pause_after_failures": st.integers(0, 9),
        "retry": st.fixed_dictionaries(
            {"max_retries": st.integers(0, 100)},
            optional={"backoff": st.floats(1, 10**6), "until_next_fire": st.booleans()},
        ),
        "description": TEXTS,
        "tags": st.lists(NAMES, max_size=3),
        "finish_within": st.integers(1, 10**6),
        "enabled": st.booleans(),
    },
)
