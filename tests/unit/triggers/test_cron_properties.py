"""Properties of every cron expression, valid or mistyped."""

import json
import time
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import Cron, Trigger, parse_trigger
from celery_dynbeat.triggers.cron import expression, trigger
from tests.unit.triggers import expressions

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
BUDGET_SECONDS = 0.05
CACHES = [expression.parse_expression, trigger.wall_times, trigger._first_after]
ALPHABET = "0123456789*/,-#lwhr?() @jfmasondeurtiy"
ALL_DAYS = ",".join(f"{day}w" for day in range(31, 8, -1))

valid = st.one_of(
    st.tuples(expressions.times(), expressions.dates()).map(" ".join), expressions.hashed()
)
starts = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@st.composite
def mistyped(draw: st.DrawFn) -> str:
    """Draw a valid expression with some characters added, removed or changed."""
    text = draw(valid)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(text)))
        put = draw(st.text(ALPHABET, max_size=2))
        text = text[:place] + put + text[place + draw(st.integers(0, 2)) :]
    return text


anything = st.one_of(
    *(st.text(max_size=260), st.text(ALPHABET, max_size=260), valid, mistyped()),
    st.lists(st.text("0123456789*/,-#lwh()", min_size=1, max_size=12), min_size=5, max_size=6).map(
        " ".join
    ),
)


def made(expression: str, *, day_or: bool) -> Cron | None:
    try:
        return Cron(expression, day_or=day_or)
    except InvalidTriggerError:
        return None


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    # The process reads the list of zones once.
    Cron("0 0 1 1 *", timezone="Asia/Seoul").next_after(NOW)


@pytest.mark.no_cover
@settings(max_examples=400)
@given(expression=anything, day_or=st.booleans())
@example(expression="h h h(1-31) h h", day_or=False)
@example(expression="0 0 h h mon#5", day_or=False)
@example(expression="0 0 29w 2 mon#5", day_or=False)
@example(expression=f"0 0 {ALL_DAYS} * sun", day_or=False)
@example(expression=f"0 0 {ALL_DAYS} h sun", day_or=False)
def test_any_expression_is_parsed_or_rejected_within_its_time_limit(expression, day_or):
    # Up to three attempts: garbage collection may run during any of them.
    assert any(seconds_to_read(expression, day_or=day_or) < BUDGET_SECONDS for _ in range(3))


def seconds_to_read(expression: str, *, day_or: bool) -> float:
    for cached in CACHES:
        cached.cache_clear()
    started = time.process_time()
    trigger = made(expression, day_or=day_or)
    if trigger is not None:
        trigger.next_after(NOW)
    return time.process_time() - started


@given(expression=valid, day_or=st.booleans(), start=starts)
def test_fire_times_strictly_increase(expression, day_or, start):
    trigger = made(expression, day_or=day_or)
    if trigger is None:
        return
    chain = [start]
    for _ in range(5):
        chain.append(trigger.next_after(chain[-1]))

    assert all(earlier < later for earlier, later in pairwise(chain))


@given(expression=valid, day_or=st.booleans(), zone=st.sampled_from([None, "Asia/Seoul"]))
def test_a_cron_survives_text_and_json(expression, day_or, zone):
    if made(expression, day_or=day_or) is None:
        return
    trigger = Cron(expression.upper(), timezone=zone, day_or=day_or)

    assert parse_trigger("cron", trigger.spec, timezone=zone) == trigger
    assert Trigger.from_json(json.loads(json.dumps(trigger.to_json()))) == trigger
    assert trigger.phrase()


@given(expression=mistyped(), day_or=st.booleans())
def test_an_error_is_short_and_names_a_cron_field(expression, day_or):
    names = {"minute", "hour", "day of month", "month", "day of week", "second", None}
    refusal = None
    try:
        Cron(expression, day_or=day_or)
    except InvalidTriggerError as error:
        refusal = error

    assert refusal is None or (refusal.field in names and len(str(refusal)) < 500)
