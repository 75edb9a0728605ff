"""Strategies for schedules: triggers, fields, and steps of the clock."""

from datetime import timedelta

from hypothesis import strategies as st

from celery_dynbeat import Cron, Every
from tests.support.applications import START

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)

TRIGGERS = st.sampled_from(
    [
        Every(60),
        Every(300),
        Every(420, anchor=START + timedelta(seconds=90)),
        Cron("* * * * *"),
        Cron("*/7 * * * *", timezone="Europe/Berlin"),
        Cron("30 9-12 * * *"),
        # One-offs, by their distance from the clock.
        MINUTE,
        7 * MINUTE,
        45 * MINUTE,
    ]
)
DELAYS = st.sampled_from([timedelta(seconds=n) for n in (10, 45, 150, 600)])
POLICIES = {
    "catch_up": st.sampled_from(["latest", "all", "none"]),
    "catch_up_window": DELAYS,
    "overlap": st.sampled_from(["allow", "skip", "buffer_one", "cancel_previous"]),
    "window": DELAYS | st.sampled_from(["30%", "100%"]),
    "expires_after": DELAYS,
    "on_lost": st.sampled_from(["record", "rerun"]),
    "args": st.lists(st.integers(0, 9), max_size=1),
    "max_runs": st.integers(1, 4),
}
# Relative to the clock.
SPAN = {
    "start_at": st.integers(-10, 30).map(lambda minutes: minutes * MINUTE),
    "end_at": st.integers(40, 120).map(lambda minutes: minutes * MINUTE),
}
STEPS = st.one_of(
    st.integers(1, 200).map(lambda seconds: seconds * SECOND),
    st.sampled_from([MINUTE, 5 * MINUTE, timedelta(hours=1)]),
    st.sampled_from([SECOND, 5 * MINUTE, timedelta(hours=2)]).map(lambda back: -back),
)


def too_intricate(fields):
    """Return whether a backlog takes several passes of which each depends on the last one."""
    if fields.get("catch_up") != "all":
        return False
    overlap = fields.get("overlap", "allow")
    return overlap == "cancel_previous" or (overlap != "allow" and "max_runs" in fields)


def some_of(choices):
    """Choose up to three of the fields, and a value for each."""
    return st.lists(st.sampled_from(sorted(choices)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: choices[name] for name in names})
    )


CHANGES = some_of(POLICIES | SPAN)
# Each schedule states its overlap and catch_up: with the defaults they would all behave alike.
FIELDS = (
    st.tuples(
        CHANGES, st.fixed_dictionaries({key: POLICIES[key] for key in ("overlap", "catch_up")})
    )
    .map(lambda parts: parts[0] | parts[1])
    .filter(lambda fields: not too_intricate(fields))
)
