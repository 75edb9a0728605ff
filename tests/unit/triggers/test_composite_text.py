"""Combined triggers convert to JSON text and back. Any text is parsed or rejected."""

import copy
import json
import pickle
import re
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers import (
    AnyOf,
    Cron,
    Every,
    Once,
    RRule,
    Solar,
    Trigger,
    parse_trigger,
)

START = datetime(2026, 3, 7, tzinfo=UTC)
DAY = timedelta(days=1)
NINE, NOON = Cron("0 9 * * *", timezone="Asia/Seoul"), Cron("0 12 * * *", timezone="UTC")
LEAVES = [
    NINE,
    NOON,
    Cron("0 9 * * *"),
    Cron("0 9 1 * fri", day_or=False),
    Every(5000, anchor=START),
    Every(timedelta(hours=6)),
    Every(days=1, timezone="Europe/Berlin", anchor=START),
    Every(weeks=2),
    Once(START + DAY),
    Solar("sunset", latitude=52.5, longitude=13.4),
    RRule("RRULE:FREQ=WEEKLY;BYDAY=MO"),
]
leaves = st.sampled_from(LEAVES)
days = st.dates(date(2026, 1, 1), date(2026, 12, 31))
zones = st.sampled_from([None, "UTC", "Asia/Seoul", "America/New_York"])


def combinations(inner: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    """Return combinations of two different triggers of ``inner`` and exclusions from one."""
    pairs = st.lists(inner, min_size=2, max_size=4, unique=True)
    what = st.lists(st.one_of(days, inner), min_size=1, max_size=3)
    return st.one_of(
        pairs.map(combined),
        st.builds(left, inner, what, zones).filter(bool),
    )


def left(trigger: Trigger, what: list[date | Trigger], zone: str | None) -> Trigger | None:
    try:
        return trigger.excluding(*what, timezone=zone)
    except InvalidTriggerError:
        # No fire time is left, or the inner trigger has exclusions.
        return None


def combined(parts: list[Trigger]) -> Trigger:
    try:
        return AnyOf(*parts)
    except InvalidTriggerError:
        # Both have the same triggers.
        return parts[0]


one = combinations(leaves)
nested = st.one_of(one, combinations(st.one_of(leaves, one)))


@given(nested)
def test_combinations_survive_a_row_pickle_and_copy(trigger):
    twins = [
        parse_trigger(trigger.kind, trigger.spec, timezone=trigger.to_json()["timezone"]),
        pickle.loads(pickle.dumps(trigger)),  # noqa: S301 - our own bytes
        copy.deepcopy(trigger),
    ]

    assert twins == [trigger] * 3
    assert {hash(twin) for twin in twins} == {hash(trigger)}


@given(nested)
def test_a_row_keeps_its_meaning_when_zones_and_anchors_are_given(trigger):
    placed = trigger.in_zone("Asia/Seoul")

    # A row always has a zone.
    try:
        read = parse_trigger(placed.kind, placed.spec, timezone=placed.timezone or "UTC")
    except InvalidTriggerError as refusal:
        # In that zone no fire time is left. The trigger itself raises the same error.
        with pytest.raises(InvalidTriggerError, match=f"^{re.escape(str(refusal))}$"):
            placed.checked()
        reject()

    assert read == placed
    assert read.anchored_at(START) == placed.anchored_at(START)
    assert placed.in_zone("Europe/Berlin") == placed


HOSTILE = [
    "",
    "null",
    "9" * 5000,
    "NaN",
    '"text"',
    "[]",
    "{}",
    "[1, 2]",
    "[[], []]",
    "[" * 4000,
    "[" * 3000 + "]" * 3000,
    '{"trigger":' * 500,
    '[{"kind":"cron"},{"kind":"once"}]',
    '[{"kind":"cron","spec":5},{"kind":"once","spec":null}]',
    '[{"kind":"cron","spec":"0 9 * * *","timezone":[]},{"kind":"every","spec":"PT5M"}]',
    '[{"kind":"cron","spec":"0 9 * * *","extra":1},{"kind":"every","spec":"PT5M"}]',
    '[{"kind":"\\ud800","spec":"\\ud800","timezone":"\\ud800"},{"kind":"every","spec":"PT5M"}]',
    '{"trigger":{"kind":"every","spec":"PT5M"}}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":[]}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":{}}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":["2026-02-30"]}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":["20260201"]}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":[20260201]}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":["2026-02-01"],"zone":"UTC"}',
    '{"trigger":null,"dates":["2026-02-01"]}',
    '{"trigger":[],"dates":["2026-02-01"]}',
    '{"dates":["2026-02-01"]}',
    '{"trigger":{"kind":"every","spec":"PT5M"},"dates":["2026-02-01"],"dates":[]}',
    '[{"kind":"cron","kind":"cron","spec":"0 9 * * *"},{"kind":"every","spec":"PT5M"}]',
    " " * 8001,
]


@pytest.mark.parametrize("spec", HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
@pytest.mark.parametrize("kind", ["any_of", "excluding"])
def test_hostile_text_is_rejected(kind, spec):
    with pytest.raises(InvalidTriggerError):
        parse_trigger(kind, spec)


def test_text_nested_too_deep_is_rejected_without_reading_its_parts():
    spec: object = [{"kind": "every", "spec": "PT5M"}, {"kind": "every", "spec": "PT6M"}]
    for _ in range(120):
        spec = [{"kind": "any_of", "spec": spec}, {"kind": "every", "spec": "PT7M"}]
    text = json.dumps(spec, separators=(",", ":"))

    with pytest.raises(InvalidTriggerError, match="more than 4"):
        parse_trigger("any_of", text)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(max_size=8),
        st.sampled_from(["cron", "every", "any_of", "excluding", "PT5M", "0 9 * * *", "P1D"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["kind", "spec", "timezone", "trigger", "triggers", "dates"]), inner
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(kind=st.sampled_from(["any_of", "excluding"]), value=json_values)
def test_any_json_is_parsed_or_rejected(kind, value):
    try:
        trigger = parse_trigger(kind, json.dumps(value))
    except InvalidTriggerError:
        return
    assert trigger.describe()
