"""A timeline, compared with the rows of the database and the upcoming fire times of each schedule.

The past runs are recorded at their fire times.
"""

from bisect import bisect_left
from collections import defaultdict
from datetime import timedelta
from itertools import product, takewhile
from operator import attrgetter

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every
from celery_dynbeat.api import forecast
from celery_dynbeat.db.models import Run
from celery_dynbeat.insights import timeline as timeline_module
from celery_dynbeat.insights.timeline import schedules_of_bin, timeline
from celery_dynbeat.store.runs import run_spans
from celery_dynbeat.triggers.base import SingleCursor, iter_fire_times, unlimited_budget
from tests.support.applications import START, instants
from tests.support.random_history import add_runs
from tests.support.rollup import count_runs
from tests.support.suites import each_database

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
NOW = START + timedelta(hours=3, seconds=30)
FILTERS = [{}, {"owner": "user:1"}, {"task": "report"}, {"tag": "vip"}]
FILTERS.append({"owner": "org/a", "task": "report", "tag": "vip"})


def every(minutes):
    return Every(timedelta(minutes=minutes), anchor=START)


SCHEDULES = {
    ("user:1", "five"): {
        "trigger": Every(5 * MINUTE, anchor=START),
        "task": "sync",
        "tags": ["vip"],
    },
    ("user:1", "hourly"): {"trigger": Cron("7 * * * *"), "task": "report"},
    ("org/a", "ten"): {
        "trigger": Every(10 * MINUTE, anchor=START),
        "task": "report",
        "tags": ["vip", "x"],
    },
    ("org/a", "few"): {"trigger": every(7), "task": "sync", "max_runs": 40},
    ("org/a", "ending"): {
        "trigger": every(9),
        "task": "report",
        "end_at": START + 4 * HOUR,
    },
    ("org/b", "later"): {"trigger": Cron("0 15 * * *"), "task": "report", "tags": ["x"]},
    ("org/b", "paused"): {"trigger": Every(MINUTE), "task": "sync", "enabled": False},
}


@pytest.fixture
def now(dynbeat, clock):
    """Write three hours of history; one schedule fails, one fire time ahead is skipped."""
    clock.move_to(NOW)
    for (owner, name), fields in SCHEDULES.items():
        schedule = dynbeat.schedules.for_owner(owner).create(name, **fields)
        times = takewhile(
            lambda at: at <= NOW,
            iter_fire_times(SingleCursor(schedule.trigger, unlimited_budget()), after=START),
        )
        add_runs(dynbeat, schedule, times if schedule.enabled else ())
    mine = dynbeat.schedules.for_owner("user:1")
    mine.skip("five", instants(mine.upcoming("five"))[1])
    with dynbeat.context.database.engine.begin() as connection:
        late = update(Run).where(Run.finished_at > NOW, Run.fire_at <= NOW)
        connection.execute(late.values(finished_at=Run.fire_at))
    count_runs(dynbeat, now=NOW)
    return NOW


@pytest.fixture
def past(dynbeat, now):
    with Session(dynbeat.context.database.engine) as session:
        return session.scalars(select(Run).where(Run.fire_at <= now)).all()


@pytest.fixture
def future(dynbeat, now):
    """Give owner, name and instant of each fire time of the next 50 hours."""
    return [
        (owner, name, at)
        for owner, name in SCHEDULES
        for at in instants(dynbeat.schedules.for_owner(owner).upcoming(name, count=1_000))
        if at < now + 50 * HOUR
    ]


def matches(key, *, owner=None, task=None, tag=None):
    fields = SCHEDULES[key]
    return (
        owner in {None, key[0]}
        and task in {None, fields["task"]}
        and (tag is None or tag in fields.get("tags", ()))
    )


def labels_of(key, group_by):
    fields = SCHEDULES[key]
    labels = {"owner": [key[0]], "task": [fields["task"]], "tag": fields.get("tags", [""])}
    return labels[group_by]


def bars_of(row):
    return [(bar.id, bar.owner, bar.name, bar.fire_at, bar.status) for bar in row.bars]


def expected_rows(past, future, group_by, *, since, until, **given):
    bars, ticks = defaultdict(list), defaultdict(list)
    for run in sorted(past, key=lambda run: run.fire_at):
        key = (run.owner, run.name)
        if since <= run.fire_at and matches(key, **given):
            for label in labels_of(key, group_by):
                bars[label].append((run.id, *key, run.fire_at, run.status))
    for owner, name, at in future:
        if since <= at < until and matches((owner, name), **given):
            for label in labels_of((owner, name), group_by):
                ticks[label].append((at, owner, name))
    labels = sorted({*bars, *ticks})
    return [(label, sorted(bars[label]), sorted(ticks[label])) for label in labels]


@each_database
def test_rows_have_the_runs_and_fire_times_of_the_window(dynbeat, now, past, future):
    window = {"since": now - 2 * HOUR, "until": now + 5 * HOUR}
    for given, group_by in product(FILTERS, ["owner", "task", "tag"]):
        found = timeline(dynbeat.context, group_by=group_by, **window, **given)

        rows = [
            (
                row.label,
                sorted(bars_of(row)),
                sorted((at, one.owner, one.name) for at, one in row.ticks),
            )
            for row in found.lanes
        ]
        assert rows == expected_rows(past, future, group_by, **window, **given)
        assert (found.is_histogram, found.is_cut) == (False, False)


def expected_bins(bins, past, future, given):
    def number(instants, span):
        return bisect_left(instants, span.end_at) - bisect_left(instants, span.start_at)

    mine = [run for run in past if matches((run.owner, run.name), **given)]
    # Without a filter, a run counts where it ended.
    at = attrgetter("fire_at" if given else "finished_at")
    ran = sorted(at(run) for run in mine if run.status != "skipped")
    failed = sorted(at(run) for run in mine if run.status in {"failed", "lost"})
    planned = sorted(at for owner, name, at in future if matches((owner, name), **given))
    return [(number(ran, each), number(failed, each), number(planned, each)) for each in bins]


def test_bins_count_the_runs_and_fire_times(dynbeat, now, past, future, monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_SCHEDULES", 0)
    for given, hours in product(FILTERS, [(2, 2), (3, -1), (2, 12), (-1, 4)]):
        since, until = now - hours[0] * HOUR, now + hours[1] * HOUR

        found = timeline(dynbeat.context, since=since, until=until, **given)

        assert found.is_histogram
        assert found.bins[0].start_at <= since < found.bins[0].end_at
        assert found.bins[-1].start_at < until <= found.bins[-1].end_at
        counts = [(each.past, each.failed, each.planned) for each in found.bins]
        assert counts == expected_bins(found.bins, past, future, given)
        assert not found.planned_is_at_least
        assert not any(each.more for each in found.bins)


def test_with_many_schedules_only_the_next_run_of_each_is_counted(
    dynbeat, now, past, future, monkeypatch
):
    monkeypatch.setattr(timeline_module, "MAX_LISTED", 0)
    monkeypatch.setattr(forecast, "MAX_FOLLOWED", 0)
    next_runs = {}
    for owner, name, at in future:
        next_runs[owner, name] = min(at, next_runs.get((owner, name), at))
    first = [(*key, at) for key, at in next_runs.items()]
    for given in FILTERS:
        found = timeline(dynbeat.context, since=now - HOUR, until=now + 6 * HOUR, **given)

        assert (found.is_histogram, found.planned_is_at_least) == (True, True)
        counts = [(each.past, each.failed, each.planned) for each in found.bins]
        assert counts == expected_bins(found.bins, past, first, given)


def of_bin(each, schedules):
    """Return the numbers of a bin, and the sums of those of its schedules."""
    sums = [sum(getattr(one, name) for one in schedules) for name in ("past", "failed", "planned")]
    return [each.past, each.failed, each.planned], sums


@pytest.mark.parametrize("followed", [0, 500])
@each_database
def test_the_schedules_of_a_bin_have_the_numbers_of_the_bin(dynbeat, now, followed, monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_LISTED", 0)
    monkeypatch.setattr(forecast, "MAX_FOLLOWED", followed)
    monkeypatch.setattr(timeline_module, "MAX_SCHEDULES", 0)
    window = {"since": now - 3 * MINUTE, "until": now + 8 * MINUTE}
    for given in FILTERS:
        for each in timeline(dynbeat.context, **window, **given).bins:
            bounds = {"start_at": each.start_at, "end_at": each.end_at}
            found = schedules_of_bin(dynbeat.context, **bounds, **given)

            numbers, sums = of_bin(each, found.schedules)
            assert numbers == sums
            assert followed == 0 or not found.more
            for one in found.schedules:
                assert one.task == SCHEDULES[one.owner, one.name]["task"]
                assert matches((one.owner, one.name), **given)


def test_quiet_hours_move_ticks_as_beat_does(dynbeat, mine, beat, clock):
    triggers = {
        "half-hourly": Every(30 * MINUTE, anchor=START),
        "at the end": Cron("30 9,12 * * *"),
        "in windows only": Every(24 * HOUR, anchor=START + HOUR),
    }
    for name, trigger in triggers.items():
        mine.create(name, task="t", trigger=trigger, max_runs=2)
    policies = {"catch_up": "all", "overlap": "skip"}
    mine.create("one", task="t", trigger=triggers["half-hourly"], max_runs=2, **policies)
    mine.set_quiet_hours(["09:15-12:30"])
    clock.advance(45 * MINUTE)
    until = START + 4 * HOUR

    found = timeline(dynbeat.context, since=clock.now(), until=until)
    ticks = [(at, one.name) for at, one in found.lanes[0].ticks]

    ran = []
    while clock.now() < until - 30 * MINUTE:
        clock.move_to(clock.now() + 15 * MINUTE)
        before = len(beat.publisher.sent)
        beat.run_until_idle()
        ran += [(clock.now(), run.name) for run in beat.publisher.sent[before:]]
    assert sorted(ticks) == sorted(ran)


def test_a_window_reads_its_newest_runs(dynbeat, now, monkeypatch):
    monkeypatch.setattr(run_spans, "MAX_SCANNED", 20)
    monkeypatch.setattr(run_spans, "MAX_SCANNED_WITH_TAG", 20)
    for given in FILTERS[:4]:
        check_newest(dynbeat, {"since": now - 3 * HOUR, "until": now, **given}, monkeypatch)


def check_newest(dynbeat, window, monkeypatch):
    cut = timeline(dynbeat.context, **window)
    with monkeypatch.context() as patch:
        patch.setattr(run_spans, "MAX_SCANNED", 1_000)
        patch.setattr(run_spans, "MAX_SCANNED_WITH_TAG", 1_000)
        whole = timeline(dynbeat.context, **window)

    assert (cut.is_cut, whole.is_cut) == (True, False)
    bars = {bar.id for row in cut.lanes for bar in row.bars}
    every = sorted((bar for row in whole.lanes for bar in row.bars), key=lambda bar: bar.fire_at)
    assert 0 < len(bars) <= 20
    newest = [bar for bar in every if bar.fire_at > every[-len(bars)].fire_at]
    assert {bar.id for bar in newest} <= bars <= {bar.id for bar in every}


def test_the_newest_runs_are_counted_and_older_bins_are_lower_bounds(dynbeat, now, monkeypatch):
    monkeypatch.setattr(timeline_module, "MAX_SCHEDULES", 0)
    for given in FILTERS[1:4]:
        check_bounds(
            dynbeat, {"since": now - 4 * HOUR, "until": now + 4 * HOUR, **given}, monkeypatch
        )


def check_bounds(dynbeat, window, monkeypatch):
    whole = timeline(dynbeat.context, **window)
    with monkeypatch.context() as patch:
        patch.setattr(run_spans, "MAX_SCANNED", 20)
        patch.setattr(run_spans, "MAX_SCANNED_WITH_TAG", 20)
        cut = timeline(dynbeat.context, **window)

    assert not any(each.more for each in whole.bins)
    assert [each.more for each in cut.bins] == sorted(
        (each.more for each in cut.bins), reverse=True
    )
    for exact, bound in zip(whole.bins, cut.bins, strict=True):
        assert (bound.past, bound.failed) <= (exact.past, exact.failed)
        assert bound == exact or bound.more
    numbers = [(sum(each.past for each in found.bins)) for found in (cut, whole)]
    assert 0 < numbers[0] < numbers[1]
