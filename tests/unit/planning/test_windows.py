"""The offset of a schedule in its window, against plain arithmetic."""

import hashlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, QuietHours, RRule
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.common.settings import as_share
from celery_dynbeat.planning import ScheduleSpec
from celery_dynbeat.planning.plan import MICROSECOND, Plan, earliest_due, plan, run_at
from celery_dynbeat.planning.quiet_hours import quiet_of, resolved

START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TRIGGERS = [
    Every(60, anchor=START),
    Every(7 * HOUR, anchor=START),
    Every(months=1, anchor=START, timezone="Europe/Berlin"),
    Cron("0 9 * * mon-fri", timezone="America/New_York"),
    Cron("*/20 1-3 * * *", timezone="Europe/Berlin"),
    RRule("DTSTART:20261121T090000Z\nRRULE:FREQ=DAILY;COUNT=400"),
    AnyOf(Every(50 * MINUTE, anchor=START), Cron("5,6 * * * *")),
    Cron("0 */2 * * *").excluding(START.date() + DAY),
]
DURATIONS = st.integers(1, 200_000).map(lambda seconds: timedelta(seconds=seconds))
SHARES = st.integers(1, 100).map(lambda percent: f"{percent}%")
WINDOWS = DURATIONS | SHARES
KEYS = st.text(max_size=9)


def place(key):
    """Return where the offset of a key is in each window, from 0 up to 1."""
    seed = f"window {key}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest()) / 2**64


def fire_times(trigger, count, *, after=START):
    for _ in range(count):
        after = trigger.next_after(after)
        if after is None:
            return
        yield after


@given(
    st.sampled_from(TRIGGERS), WINDOWS, KEYS, st.integers(0, 2_000).map(lambda n: START + n * HOUR)
)
def test_each_run_is_sent_from_its_fire_time_on_and_before_the_next_one(
    trigger, window, key, after
):
    spec = ScheduleSpec(trigger, window=window, key=key)

    for fire_at, following in pairwise(fire_times(trigger, 9, after=after)):
        sent_at = run_at(spec, fire_at)
        assert fire_at <= sent_at < following
        distance = following - fire_at
        is_share = isinstance(window, str)
        width = distance * int(window[:-1]) / 100 if is_share else min(window, distance)
        assert abs(sent_at - fire_at - width * place(key)) < 2 * MICROSECOND


@given(WINDOWS, KEYS)
def test_the_offset_is_the_same_at_each_fire_time(window, key):
    spec = ScheduleSpec(Every(HOUR, anchor=START), window=window, key=key)

    assert len({run_at(spec, at) - at for at in fire_times(spec.trigger, 30)}) == 1


@pytest.mark.parametrize(
    ("key", "seconds"), [("user:42\ndigest", 480.968789), ("\nreport", 1_171.989702)]
)
def test_the_offset_never_changes_with_a_release_or_a_machine(key, seconds):
    spec = ScheduleSpec(Every(HOUR, anchor=START), window=HOUR, key=key)

    assert run_at(spec, START) - START == timedelta(seconds=seconds)


def test_schedules_spread_evenly_over_their_window():
    hourly = ScheduleSpec(Every(HOUR, anchor=START), window=timedelta(seconds=10))
    offsets = [run_at(hourly._replace(key=f"user:{n}\nx"), START) - START for n in range(5_000)]

    in_each_second = [
        sum(timedelta(seconds=n) <= offset < timedelta(seconds=n + 1) for offset in offsets)
        for n in range(10)
    ]

    # 500 are expected in each second; the standard deviation is 21.
    assert all(400 < count < 600 for count in in_each_second)


@given(
    seconds=st.integers(60, 1_800),
    window=st.integers(1, 3_600).map(lambda n: timedelta(seconds=n)) | SHARES,
    key=KEYS,
)
def test_passes_send_each_fire_time_once_at_its_effective_instant(seconds, window, key):
    spec = ScheduleSpec(Every(60, anchor=START), window=window, key=key, catch_up="all")
    end = START + timedelta(seconds=seconds)
    sent, fire_at = [], START + MINUTE
    while (now := run_at(spec, fire_at)) <= end:
        made = plan(spec, fire_at=fire_at, run_count=0, now=now, limit=9)
        sent += made.send
        fire_at = made.next_fire_at

    minutes = [START + n * MINUTE for n in range(1, 32)]
    assert sent == [at for at in minutes if run_at(spec, at) <= end]


def test_a_fire_time_that_waits_in_its_window_does_not_replace_the_one_before_it():
    spec = ScheduleSpec(Every(60, anchor=START), window=MINUTE, key="user:42/digest")
    first, second = START + MINUTE, START + 2 * MINUTE
    between = (run_at(spec, second) - second) / 2 + second

    made = plan(spec, fire_at=first, run_count=0, now=between, limit=9)

    assert made == Plan(send=(first,), next_fire_at=second)


@given(WINDOWS, KEYS, st.integers(0, 9_000).map(lambda n: timedelta(seconds=n)))
def test_lateness_counts_from_the_effective_instant(window, key, late):
    spec = ScheduleSpec(
        Every(HOUR, anchor=START), window=window, key=key, catch_up_window=30 * MINUTE
    )
    now = run_at(spec, START) + late
    newest = max(at for at in [START + n * HOUR for n in range(5)] if run_at(spec, at) <= now)

    made = plan(spec, fire_at=START, run_count=0, now=now, limit=9)

    is_on_time = now - run_at(spec, newest) <= 30 * MINUTE
    assert made.send == ((newest,) if is_on_time else ())
    passed = (newest - START) // HOUR + 1
    assert sum(skip.count for skip in made.skips) == passed - len(made.send)


@st.composite
def quiet_specs(draw):
    spans = draw(
        st.lists(st.tuples(st.integers(0, 1_438), st.integers(1, 600)), min_size=1, max_size=3)
    )
    windows = [
        QuietHours(
            f"{start // 60:02}:{start % 60:02}",
            f"{(start + length) % 1_440 // 60:02}:{(start + length) % 60:02}",
        )
        for start, length in spans
    ]
    try:
        quiet = quiet_of(resolved([QuietRule(windows)], timezone="UTC"))
    except InvalidArgumentError:
        quiet = None
    trigger = Every(draw(st.sampled_from([7, 45, 60, 300])) * MINUTE, anchor=START)
    return ScheduleSpec(
        trigger,
        window=draw(WINDOWS | st.just(timedelta(0))),
        key=draw(KEYS),
        quiet=draw(st.sampled_from([None, quiet])),
    )


@given(quiet_specs(), st.integers(0, 3_000), st.integers(0, 500))
def test_the_earliest_due_instant_divides_the_fire_times(spec, minutes, since):
    instant, since = START + minutes * MINUTE, START + since * MINUTE

    earliest = earliest_due(spec, instant, since=since)

    at = spec.trigger.next_after(since - MICROSECOND)
    while at < instant + 2 * DAY:
        assert (run_at(spec, at) >= instant) == (at >= earliest)
        at = spec.trigger.next_after(at)


@given(quiet_specs())
def test_a_later_fire_time_is_never_due_earlier(spec):
    due = [run_at(spec, at) for at in fire_times(spec.trigger, 60)]

    assert due == sorted(due)


@pytest.mark.parametrize(
    "text", ["", "%", "0%", "0.0%", "100.1%", "-5%", "1e1%", "5", "\u0665%", "5%%"]
)
def test_a_share_outside_of_its_bounds_is_refused(text):
    with pytest.raises(ValueError, match="more than 0% and at most 100%"):
        as_share(text)
