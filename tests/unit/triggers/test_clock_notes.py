"""The notes on clock changes agree with zoneinfo, minute by minute."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_dynbeat import AnyOf, Cron, Every
from celery_dynbeat.triggers.clock_notes import note_on
from celery_dynbeat.triggers.zones import gap_before

MINUTE = timedelta(minutes=1)
#: Shortly before a change of the clock: forward, back, by half an hour, at midnight, by a day.
CHANGES = [
    ("Europe/Berlin", datetime(2027, 3, 27, 22, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 21, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 13, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 12, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 1, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 8, tzinfo=UTC)),
    ("Asia/Seoul", datetime(2026, 11, 21, tzinfo=UTC)),
]


def minutes(start, hours=6):
    return [start + n * MINUTE for n in range(60 * hours)]


def wall(zone, instant):
    return instant.astimezone(zone).replace(tzinfo=None)


@pytest.mark.parametrize(("name", "start"), CHANGES)
def test_a_gap_is_the_wall_times_that_the_clock_did_not_show(name, start):
    zone = ZoneInfo(name)
    jump = next(
        (
            (wall(zone, at - MINUTE) + MINUTE, wall(zone, at), at)
            for at in minutes(start)
            if wall(zone, at) - wall(zone, at - MINUTE) > MINUTE
        ),
        None,
    )
    for at in minutes(start):
        gap = gap_before(zone, at)
        expected = None
        if jump is not None and timedelta() <= at - jump[2] < jump[1] - jump[0]:
            expected = jump[:2]
        assert gap == expected


@pytest.mark.parametrize(("name", "start"), CHANGES)
def test_a_repeated_time_has_a_note_with_its_number(name, start):
    zone, every_minute = ZoneInfo(name), Cron("* * * * *", timezone=name)
    around = minutes(start - timedelta(hours=3), hours=12)
    for at in minutes(start):
        same = [each for each in around if wall(zone, each) == wall(zone, at)]
        note = note_on(every_minute, at, previous=None, timezone="UTC")
        if len(same) == 1:
            assert note is None
        else:
            assert f"this is the {('first', 'second')[same.index(at)]} time" in note


@pytest.mark.parametrize(("name", "start"), CHANGES)
@pytest.mark.parametrize("kind", ["cron", "every"])
def test_each_skipped_minute_has_a_note_with_its_time_and_no_other_minute(name, start, kind):
    zone, midnight = ZoneInfo(name), datetime(2000, 1, 1)  # noqa: DTZ001 - a wall time
    shown = {wall(zone, at) for at in minutes(start, hours=30)}
    for at in minutes(start)[::7]:
        # The wall time that an unchanging clock would show.
        local = wall(zone, start) + (at - start)
        if kind == "cron":
            trigger = Cron(f"{local.minute} {local.hour} * * *", timezone=name)
        else:
            anchor = local.replace(year=local.year, month=1, day=8).replace(tzinfo=zone)
            trigger = Every(days=1, anchor=anchor.astimezone(UTC), timezone=name)
        fire_at = trigger.next_after(start - MINUTE)
        if wall(zone, fire_at).date() < local.date() or local < midnight:
            continue
        note = note_on(trigger, fire_at, previous=None, timezone="UTC")
        if local in shown:
            assert note is None or "does not exist" not in note
        else:
            assert f"{local:%H:%M} does not exist on {local:%Y-%m-%d} in {name}" in note


def test_a_part_of_a_combination_is_named_with_its_own_zone():
    berlin = Cron("30 2 * * *", timezone="Europe/Berlin")
    trigger = AnyOf(berlin, Cron("0 9 * * *", timezone="Asia/Seoul"))
    fire_at = berlin.next_after(datetime(2027, 3, 28, tzinfo=UTC))

    note = note_on(trigger, fire_at, previous=None, timezone="Asia/Seoul")

    assert "02:30 does not exist on 2027-03-28 in Europe/Berlin" in note
    assert "from 02:00 to 03:00" in note


def test_an_interval_has_a_note_when_the_clock_changed_since_the_fire_time_before():
    fire_at = datetime(2027, 3, 28, 9, tzinfo=UTC)

    note = note_on(
        Every(86_400), fire_at, previous=fire_at - timedelta(days=1), timezone="Europe/Berlin"
    )

    assert note == "the clock of Europe/Berlin went forward by 1 hour since the fire time before"
