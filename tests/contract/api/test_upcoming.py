"""``upcoming`` returns the fire times that beat then sends, in the same order."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_dynbeat import Cron, Every, InvalidArgumentError, Once
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import START, instants
from tests.support.property_application import EXAMPLE_FACTOR, delete_all_rows, prepared_application

COUNT = 8

#: Shortly before clock changes: forward and back, by an hour and by half an hour, at midnight, at
#: noon UTC, back for Ramadan.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 28, 23, 20, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 23, 20, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 5, 30, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 4, 30, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 13, 45, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 14, 15, tzinfo=UTC)),
    ("Pacific/Chatham", datetime(2026, 4, 4, 12, 30, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 2, 10, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 0, 40, tzinfo=UTC)),
    ("Asia/Seoul", START),
]
EXPRESSIONS = [
    "* * * * *",
    "*/20 * * * *",
    "30 * * * *",
    "30 1,2 * * *",
    "0 0-5 * * *",
    "*/15 1-3 * * *",
    "15 */2 * * *",
    "0 0 * * *",
    "H H(0-4) * * *",
    "30 2 29 2 *",
    "*/10 * * * * 7,31",
]


@st.composite
def cases(draw):
    """Draw a zone, an instant near a change of its clock, a trigger and fields."""
    zone, start = draw(st.sampled_from(CHANGES))
    now = start + timedelta(seconds=draw(st.integers(-3_600, 3_600)))
    minutes = draw(st.integers(1, 200))
    trigger = draw(
        st.sampled_from([Cron(expression, timezone=zone) for expression in EXPRESSIONS])
        | st.sampled_from(
            [
                Every(timedelta(minutes=minutes)),
                Every(minutes * 7.25, anchor=now - timedelta(days=2)),
                Every(days=1 + minutes % 3, timezone=zone),
                Every(months=1, anchor=now - timedelta(days=1), timezone=zone),
                Once(now + timedelta(minutes=minutes)),
            ]
        )
    )
    optional = {
        "window": st.integers(1, 7_200) | st.integers(1, 100).map(lambda share: f"{share}%"),
        "max_runs": st.integers(1, COUNT),
        "catch_up": st.sampled_from(["latest", "all", "none"]),
        "catch_up_window": st.integers(1, 600),
        "start_at": st.integers(-300, 300).map(lambda n: now + timedelta(minutes=n)),
        "end_at": st.integers(301, 2_000).map(lambda n: now + timedelta(minutes=n)),
    }
    return now, trigger, draw(st.fixed_dictionaries({}, optional=optional))


def upcoming_is_what_beat_sends(dynbeat, clock, case):
    now, trigger, fields = case
    clock.move_to(now)
    beat, mine = ManualBeat(dynbeat), dynbeat.schedules.for_owner("user:42")
    try:
        made = mine.create("n", task="t", trigger=trigger, **fields)
    except InvalidArgumentError:
        # The schedule would never fire.
        return
    promised = [*instants(mine.upcoming("n", count=COUNT))]
    assert promised
    assert now < promised[0] <= made.next_run_at

    sent_at = []
    while made.next_run_at is not None and len(sent_at) < COUNT:
        # Just before the schedule is due, beat sends nothing.
        clock.move_to(made.next_run_at - timedelta(microseconds=1))
        beat.run_until_idle()
        assert len(beat.publisher.sent) == len(sent_at)
        clock.move_to(made.next_run_at)
        beat.run_until_idle()
        sent_at.append(clock.now())
        made = mine.get("n")

    assert [run.fire_at for run in beat.publisher.sent] == promised
    assert {run.status for run in mine.runs(limit=100)} == {"sent"}
    follows = [*promised[1:], datetime.max.replace(tzinfo=UTC)]
    for fire_at, at, following in zip(promised, sent_at, follows, strict=True):
        assert fire_at <= at < following
        window = fields.get("window", 0)
        is_share = isinstance(window, str)
        assert is_share or at == fire_at or at - fire_at < timedelta(seconds=window)
    if len(promised) < COUNT:
        assert (instants(mine.upcoming("n")), made.next_run_at) == ([], None)
        assert made.finished_at == clock.now()


def check(url, *, examples):
    clock = FrozenClock(START)
    # There is no worker: sent runs stay sent.
    with prepared_application(url, clock=clock, resend_after=timedelta(days=36_500)) as dynbeat:

        @settings(max_examples=examples * EXAMPLE_FACTOR, suppress_health_check=list(HealthCheck))
        @given(case=cases())
        def each(case):
            delete_all_rows(dynbeat)
            upcoming_is_what_beat_sends(dynbeat, clock, case)

        each()


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_upcoming_equals_what_beat_sends_on_sqlite(sqlite_url):
    check(sqlite_url, examples=150)


@pytest.mark.timeout(300 * EXAMPLE_FACTOR)
def test_upcoming_equals_what_beat_sends_on_postgresql(postgresql_url):
    check(postgresql_url, examples=10)


@pytest.mark.parametrize("way", ["pause", "finish"])
def test_a_schedule_that_no_longer_fires_has_no_upcoming_fire_times(mine, clock, beat, way):
    mine.create("n", task="t", trigger=Every(60), max_runs=1)
    if way == "pause":
        mine.pause("n")
    else:
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()

    assert instants(mine.upcoming("n")) == []
