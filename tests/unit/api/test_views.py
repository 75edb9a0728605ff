"""The JSON of the values that the API returns."""

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from celery_dynbeat import Every
from celery_dynbeat.api.results import BatchInfo, Page, RunInfo
from celery_dynbeat.common.infos import Info

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BATCH = BatchInfo(batch_id="b", created_at=NOON, counts={"pending": 3, "failed": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Info):
    value: Any


def as_json(value):
    """Return ``value`` after a round trip through ``to_dict`` and JSON."""
    return json.loads(json.dumps(Sample(value=value).to_dict()))["value"]


def run_info(**instants):
    given = {"sent_at": None, "started_at": None, "finished_at": None, "ready_at": None}
    given |= instants
    return RunInfo(
        id="x",
        schedule_id=1,
        owner="",
        name="n",
        task="t",
        fire_at=NOON,
        fire_count=1,
        status="sent",
        origin="schedule",
        batch_id=None,
        rerun_of=None,
        attempt=0,
        retries=0,
        retry_at=None,
        waited_for=None,
        earlier_errors=(),
        created_at=NOON,
        worker=None,
        error=None,
        traceback=None,
        note=None,
        **given,
    )


def test_an_instant_is_utc_text():
    assert as_json(NOON) == "2026-11-22T12:00:00+00:00"
    assert as_json(NOON.astimezone(timezone(timedelta(hours=9)))) == as_json(NOON)


def test_a_duration_is_seconds():
    assert as_json(timedelta(minutes=1.5)) == 90


def test_a_trigger_is_its_json():
    assert as_json(Every(300)) == Every(300).to_json()


def test_the_keys_are_the_attributes_in_their_order():
    names = [each.name for each in fields(BATCH)]
    assert list(BATCH.to_dict()) == [*names, "total", "unfinished"]
    assert (BATCH.to_dict()["total"], BATCH.to_dict()["unfinished"]) == (4, 3)


def test_a_page_is_its_items_and_cursor():
    page = Page((), "next")
    assert page.to_dict() == {"items": [], "cursor": "next"}


def test_a_run_has_the_times_between_its_steps():
    run = run_info(
        sent_at=NOON + SECOND, started_at=NOON + 3 * SECOND, finished_at=NOON + 7 * SECOND
    )

    assert (run.lag, run.queue_time, run.duration) == (SECOND, 2 * SECOND, 4 * SECOND)
    assert [run.to_dict()[name] for name in ("lag", "queue_time", "duration")] == [1, 2, 4]


def test_a_time_of_a_run_is_none_until_its_end_is_known():
    assert run_info().queue_time is run_info().duration is None
    assert run_info(sent_at=NOON).queue_time is None
    assert run_info(started_at=NOON).queue_time is None
    assert run_info(sent_at=NOON, started_at=NOON).duration is None
    assert run_info(sent_at=NOON, finished_at=NOON).duration is None
    assert run_info(sent_at=NOON).to_dict()["duration"] is None
