"""One run, and pages of runs of an owner and of all owners."""

import itertools
from datetime import timedelta

import pytest
from sqlalchemy import update

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.db.models import Run
from celery_dynbeat.store import scans
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database

MINUTE = timedelta(minutes=1)


@pytest.fixture
def theirs(dynbeat):
    return dynbeat.schedules.for_owner("user:41")


@pytest.fixture
def history(mine, theirs, clock, beat):
    """Fill the history: 5 fire times of 2 schedules of one owner and one of another."""
    mine.create("a", task="t", trigger=MINUTELY)
    mine.create("b", task="u", trigger=MINUTELY)
    theirs.create("a", task="t", trigger=MINUTELY)
    for _ in range(5):
        clock.advance(MINUTE)
        beat.run_until_idle()
    return {run.id: run for run in [*mine.runs(limit=100), *theirs.runs(limit=100)]}


def end(dynbeat, status, ids):
    ended = update(Run).where(Run.id.in_(ids)).values(status=status, finished_at=START)
    dynbeat.context.database.run(lambda session: session.execute(ended.values(overdue_at=None)))


def all_pages(call, **how):
    pages = [call(**how)]
    while pages[-1].cursor is not None:
        pages.append(call(**{**how, "after": pages[-1].cursor}))
    return pages


def ids(pages):
    return [run.id for page in pages for run in page]


def test_the_pages_of_an_owner_contain_each_run_once(mine, history):
    own = [run for run in history.values() if run.owner == mine.owner]
    expected = sorted(own, key=lambda run: (run.fire_at, run.id), reverse=True)

    for limit in (1, 3, 10, 100):
        pages = all_pages(mine.runs, limit=limit)
        assert ids(pages) == [run.id for run in expected], limit
        assert {len(page) for page in pages[:-1]} <= {limit}
        assert pages[-1]


def test_the_pages_of_all_owners_contain_each_run_once_newest_first(dynbeat, history):
    for limit in (1, 4, 15):
        pages = all_pages(dynbeat.schedules.runs, limit=limit)

        assert ids(pages) == sorted(history, reverse=True), limit


@pytest.mark.usefixtures("history")
@each_database
def test_a_history_has_filters(dynbeat, mine):
    third, fifth = START + 3 * MINUTE, START + 5 * MINUTE
    lost, failed = mine.runs("a")[0].id, mine.runs("a")[1].id
    end(dynbeat, "lost", [lost])
    end(dynbeat, "failed", [failed])

    for call in (mine.runs, dynbeat.schedules.runs):
        assert ids([call(status=("failed", "lost"))]) == [lost, failed]
        assert ids([call(status="failed")]) == [failed]
        assert {run.fire_at for run in call(since=third, until=fifth)} == {
            third,
            third + MINUTE,
        }
        assert {run.name for run in call(task="u")} == {"b"}
        assert list(call(origin="manual")) == []
        assert call(status=["failed", "sent"], task="u", limit=5).cursor is None


@pytest.mark.usefixtures("history")
@each_database
def test_the_history_of_a_deleted_schedule_has_pages(mine):
    before = ids([mine.runs("a", limit=100)])
    mine.delete("a")

    assert ids(all_pages(lambda **how: mine.runs("a", **how), limit=2)) == before


@pytest.mark.usefixtures("history")
def test_the_cursor_of_another_order_is_rejected(dynbeat, mine):
    cursors = [
        mine.runs(limit=1).cursor,
        dynbeat.schedules.runs(limit=1).cursor,
        mine.list(limit=1).cursor,
    ]
    calls = [mine.runs, dynbeat.schedules.runs, mine.list]

    for number, call in enumerate(calls):
        for other, cursor in enumerate(cursors):
            if other != number:
                with pytest.raises(InvalidArgumentError, match="order") as caught:
                    call(after=cursor)
                assert caught.value.field == "after"


UNFINISHED = ("pending", "sent", "running", "retrying")
FILTERS = (
    {},
    {"status": "succeeded"},
    {"status": "sent"},
    {"status": ("failed", "lost")},
    {"status": UNFINISHED, "task": "u"},
    {"task": "t"},
    {"origin": "manual"},
    {"since": START + 2 * MINUTE},
    {"since": START + 2 * MINUTE, "until": START + 4 * MINUTE, "status": "sent"},
)


@pytest.fixture
def mixed(dynbeat, history):
    """End the runs of the even minutes; return the ids of the others, newest first."""
    unfinished = {run.id for run in history.values() if (run.fire_at - START) // MINUTE % 2 == 1}
    end(dynbeat, "succeeded", history.keys() - unfinished)
    return sorted(unfinished, reverse=True)


@each_database
def test_the_pages_of_unfinished_runs_have_the_order_of_a_history(dynbeat, mine, mixed):
    for limit, name in itertools.product((1, 3, 7, 100), (None, "a")):
        assert ids(all_pages(dynbeat.schedules.runs, status=UNFINISHED, limit=limit)) == mixed
        pages = all_pages(
            lambda name=name, **how: mine.runs(name, **how), limit=limit, status="sent"
        )
        expected = [run.id for run in mine.runs(name, limit=100) if run.id in mixed]
        assert ids(pages) == expected
        assert {len(page) for page in pages[:-1]} <= {limit}


@each_database
def test_unfinished_runs_have_filters(dynbeat, mine, mixed, history):
    found = dynbeat.schedules.runs(status="sent", task="u", since=START + 2 * MINUTE)
    assert list(found) == [
        history[run_id]
        for run_id in mixed
        if history[run_id].task == "u" and history[run_id].fire_at >= START + 2 * MINUTE
    ]
    assert found
    assert dynbeat.schedules.runs(status=("running", "pending")) == []
    assert mine.runs(status="sent", origin="manual") == []
    assert dynbeat.schedules.runs(status=UNFINISHED, owner=mine.owner) == mine.runs(status="sent")


@each_database
def test_many_unfinished_runs_of_all_owners_are_listed_by_schedule(
    dynbeat, mixed, history, monkeypatch
):
    execute(dynbeat, "DELETE FROM dynbeat_schedule WHERE owner = 'user:42' AND name = 'b'")
    schedule_ids = {run.id: run.schedule_id for run in dynbeat.schedules.runs(limit=100)}
    monkeypatch.setattr(scans, "MAX_SCANNED", len(mixed) - 1)

    # A run whose schedule was deleted comes last.
    expected = sorted(mixed, key=lambda each: (schedule_ids[each] or 0, each), reverse=True)
    for limit in (1, 2, 7, 100):
        pages = all_pages(dynbeat.schedules.runs, status="sent", limit=limit)
        assert ids(pages) == expected, limit
    assert {schedule_ids[run_id] is None for run_id in mixed} == {True, False}
    assert len({history[run_id].owner for run_id in mixed}) == 2


@each_database
def test_the_pages_continue_when_the_unfinished_runs_become_many_or_few(
    dynbeat, mixed, monkeypatch
):
    few, many = len(mixed), len(mixed) - 1
    for first, then in ((few, many), (many, few)):
        monkeypatch.setattr(scans, "MAX_SCANNED", first)
        page = dynbeat.schedules.runs(status="sent", limit=3)
        monkeypatch.setattr(scans, "MAX_SCANNED", then)
        rest = all_pages(dynbeat.schedules.runs, status="sent", limit=3, after=page.cursor)
        assert sorted([*ids([page]), *ids(rest)], reverse=True) == mixed


@pytest.mark.usefixtures("mixed")
@each_database
def test_a_count_is_the_number_of_listed_runs(dynbeat, mine):
    calls = [
        (dynbeat.schedules.runs, dynbeat.schedules.count_runs, {}),
        (dynbeat.schedules.runs, dynbeat.schedules.count_runs, {"owner": mine.owner}),
        (mine.runs, mine.count_runs, {}),
        (mine.runs, mine.count_runs, {"name": "a"}),
        (mine.runs, mine.count_runs, {"name": "none"}),
    ]
    for filters, (listed, counted, scope) in itertools.product(FILTERS, calls):
        found = counted(**filters, **scope)
        expected = len(listed(limit=100, **filters, **scope))
        assert (found.count, found.exact) == (expected, True), (filters, scope)


@pytest.mark.usefixtures("mixed")
@each_database
def test_a_count_ends_at_its_limit(dynbeat, mine, monkeypatch):
    monkeypatch.setattr(scans, "MAX_SCANNED", 4)

    for call in (dynbeat.schedules.count_runs, mine.count_runs):
        assert str(call()) == "4+"
    assert str(dynbeat.schedules.count_runs(status=UNFINISHED)) == "4+"
    # Of the newest five.
    newest = [run.task for run in dynbeat.schedules.runs(limit=5)]
    assert str(dynbeat.schedules.count_runs(task="u")) == f"{newest.count('u')}+"
