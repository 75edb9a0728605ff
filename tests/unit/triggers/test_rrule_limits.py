"""RRule is fast for any text, and has each occurrence at its anchor and at its limits."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import RRule
from celery_dynbeat.triggers.rrule import trigger as prepared
from celery_dynbeat.triggers.rrule.days import RuleWallTimes

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
START = "DTSTART:20260101T090000Z"
MICROSECOND, SECOND = timedelta(microseconds=1), timedelta(seconds=1)
DAY, DECADE = timedelta(days=1), timedelta(days=3652)
SIXTY = ",".join(map(str, range(60)))


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Stopwatch:
    """The CPU seconds of this process."""

    def __enter__(self):
        self._started = time.process_time()
        return self

    def __exit__(self, *_):
        self.seconds = time.process_time() - self._started


@pytest.fixture(autouse=True)
def empty_caches():
    prepared.prepare.cache_clear()
    prepared.normal_form.cache_clear()


def rules(number, pattern):
    return "\n".join([START, *(f"RRULE:{pattern.format(each)}" for each in range(number))])


# A tenth of each limit is typical.
@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (f"{START} FREQ=MINUTELY;INTERVAL=999983;COUNT=1000", 0.1),
        (f"{START} FREQ=MINUTELY;INTERVAL=999983;COUNT=1000;BYSECOND=0,1;BYSETPOS=1", 0.2),
        (rules(20, "FREQ=MINUTELY;INTERVAL=999983;COUNT=1000;BYSECOND={}"), 0.7),
        (rules(20, "FREQ=WEEKLY;BYDAY=MO,TU;COUNT=1000;BYMINUTE={}"), 0.7),
        (rules(20, "FREQ=SECONDLY;INTERVAL=999983;COUNT=1000;BYHOUR=3;BYMINUTE=1,{0}"), 0.7),
    ],
)
def test_a_rule_is_counted_quickly_or_rejected(text, seconds):
    with Stopwatch() as watch:
        try:
            RRule(text)
        except InvalidTriggerError as refusal:
            assert "UNTIL, or the schedule's max_runs" in str(refusal)  # noqa: PT017 - either may be

    assert watch.seconds < seconds


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU;COUNT=3",
        "FREQ=HOURLY;INTERVAL=168;BYDAY=TU;COUNT=1000",
    ],
)
def test_a_rule_whose_interval_misses_its_days_is_rejected_with_a_dtstart_as_the_hint(rule):
    monday = "DTSTART:20260105T090000Z"

    with pytest.raises(InvalidTriggerError, match="or never fires; choose a DTSTART") as refusal:
        RRule(f"{monday} RRULE:{rule}")

    assert refusal.value.field == "rrule"
    assert RRule(f"DTSTART:20260106T090000Z RRULE:{rule}").next_after(NOW - DECADE)


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        ("FREQ=DAILY;INTERVAL=2;COUNT=1000", NOW.replace(month=1, day=1, hour=9) + 1998 * DAY),
        ("FREQ=HOURLY;COUNT=25", utc("2026-01-02 09:00")),
        ("FREQ=MINUTELY;INTERVAL=90;COUNT=3", utc("2026-01-01 12:00")),
        ("FREQ=SECONDLY;INTERVAL=100000;COUNT=2", utc("2026-01-02 12:46:40")),
    ],
)
def test_the_last_occurrence_of_a_plain_rule_is_computed(monkeypatch, rule, last):
    monkeypatch.setattr(RuleWallTimes, "walls_from", None)
    schedule = prepared.prepare(*prepared.normal_form(f"{START}\nRRULE:{rule}", None))
    schedule._rules  # noqa: B018 - builds them
    monkeypatch.undo()

    trigger = RRule(f"{START}\nRRULE:{rule}")

    assert trigger.next_after(last - SECOND) == last
    assert trigger.next_after(last) is None


@pytest.mark.parametrize(
    "text",
    [
        "DTSTART:20260101T090000Z\nfreq=monthly;byday=mo;bysetpos=1;count=900",
        "freq=monthly;byday=mo;bysetpos=1;count=900",
    ],
)
def test_no_rule_is_counted_twice(monkeypatch, text):
    built = []
    real_init = RuleWallTimes.__init__

    def init(walls, rule, dtstart, steps):
        built.append((rule, dtstart))
        real_init(walls, rule, dtstart, steps)

    monkeypatch.setattr(RuleWallTimes, "__init__", init)
    trigger = RRule(text)
    for _ in range(3):
        trigger.next_after(NOW)
        RRule(trigger.spec).describe()

    assert len(built) == len(set(built))


LONG = [
    "FREQ=YEARLY;INTERVAL=400;BYMONTH=1;BYDAY=MO;BYSETPOS=1",
    f"FREQ=MONTHLY;INTERVAL=999983;BYSECOND={SIXTY}",
    "FREQ=MONTHLY;INTERVAL=13;BYMONTHDAY=31",
    "FREQ=WEEKLY;INTERVAL=999983;BYDAY=TH",
    "FREQ=WEEKLY;INTERVAL=300;BYMONTH=2;BYDAY=SU",
    "FREQ=DAILY;INTERVAL=363;BYMONTH=2;BYMONTHDAY=29;BYDAY=TU",
    "FREQ=DAILY;INTERVAL=999983",
    "FREQ=HOURLY;INTERVAL=8783;BYHOUR=3",
    "FREQ=MINUTELY;INTERVAL=527039;BYHOUR=3;BYMINUTE=4",
    "FREQ=MINUTELY;INTERVAL=499979;BYMONTHDAY=13;BYDAY=FR",
    "FREQ=SECONDLY;INTERVAL=999983;BYMONTH=2;BYMONTHDAY=29;BYDAY=SU",
]


@pytest.mark.no_cover
@pytest.mark.parametrize("rule", LONG)
def test_a_search_of_a_rare_rule_is_fast(rule):
    trigger = RRule(f"{START}\nRRULE:{rule}")

    with Stopwatch() as first:
        trigger.next_after(NOW)
    with Stopwatch() as second:
        trigger.latest_until(after=NOW, until=NOW + 3 * DECADE)

    assert first.seconds < 0.1
    assert second.seconds < 0.1


def test_times_of_day_are_limited_over_all_rules():
    RRule(f"{START}\nFREQ=HOURLY;BYMINUTE={SIXTY};BYSECOND=0,1,2,3")

    with pytest.raises(InvalidTriggerError, match="1800 times a day"):
        RRule(rules(6, f"FREQ=HOURLY;BYMINUTE={SIXTY};BYSECOND=0,1,2,3,{{0}}5"))


@pytest.mark.parametrize("anchor", ["09:00:00", "09:00:00.000001", "09:00:30", "09:00:59.999999"])
@pytest.mark.parametrize("freq", ["DAILY", "HOURLY", "MINUTELY", "SECONDLY"])
def test_the_first_occurrence_is_the_first_one_at_or_after_the_anchor(anchor, freq):
    instant = utc(f"2026-07-01 {anchor}")
    within = SECOND if freq == "SECONDLY" else 60 * SECOND

    trigger = RRule(f"FREQ={freq};COUNT=1", timezone="Europe/Berlin").anchored_at(instant)
    found = trigger.next_after(instant - MICROSECOND)

    assert timedelta() <= found - instant < within
    assert trigger.next_after(found) is None
