"""The text of a row leaves out the zone of the parts that name none: the row gives it."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat import AnyOf, Cron, Every, InvalidTriggerError, Once, RRule
from celery_dynbeat.triggers import parse_trigger

ZONES = ["Asia/Seoul", "Europe/Berlin", "UTC"]
NAMED = st.none() | st.sampled_from(ZONES)
DAY = date(2026, 12, 25)
LEAVES = st.one_of(
    st.builds(Cron, st.sampled_from(["0 9 * * *", "30 12 * * mon", "H 3 * * *"]), timezone=NAMED),
    st.builds(lambda zone: Every(days=2, timezone=zone), NAMED),
    st.builds(
        RRule,
        st.sampled_from(["FREQ=DAILY", "DTSTART:20260105T090000\nRRULE:FREQ=WEEKLY"]),
        timezone=NAMED,
    ),
    st.sampled_from([Every(300), Once(datetime(2027, 6, 1, tzinfo=UTC))]),
)


def excluded(trigger, zone):
    """Return ``trigger`` without some days of ``zone``."""
    return trigger.excluding(DAY, Cron("0 0 1 1 *"), timezone=zone)


EXCLUDING = st.builds(excluded, LEAVES, NAMED)
ANY_OF = st.builds(
    lambda parts: AnyOf(*parts),
    st.lists(LEAVES | EXCLUDING, min_size=2, max_size=4, unique=True),
)
PLAIN = st.builds(AnyOf, LEAVES, st.just(Every(timedelta(minutes=7))))
TRIGGERS = LEAVES | EXCLUDING | ANY_OF | st.builds(excluded, PLAIN, NAMED)


@given(TRIGGERS, st.sampled_from(ZONES))
def test_the_text_of_a_row_gives_the_trigger_in_the_zone_of_the_row(trigger, zone):
    column = zone if trigger.needs_zone else trigger.timezone

    assert parse_trigger(trigger.kind, trigger.spec, timezone=column) == trigger.in_zone(zone)


@given(TRIGGERS)
def test_a_trigger_needs_a_zone_if_a_zone_changes_it(trigger):
    assert trigger.needs_zone == (trigger.in_zone("Asia/Kathmandu") != trigger)


@given(TRIGGERS)
def test_a_trigger_that_needs_no_zone_has_its_plain_text_in_a_row(trigger):
    zoned = trigger.in_zone("Asia/Kathmandu")

    assert (zoned.needs_zone, zoned.spec) == (False, zoned.spec)


def test_equal_triggers_in_a_list_are_still_rejected():
    part = '{"kind":"cron","spec":"0 9 * * *"}'

    with pytest.raises(InvalidTriggerError, match="different triggers"):
        parse_trigger("any_of", f"[{part},{part}]", timezone="UTC")
