"""No call of an owner reads or changes the data of another owner, with any name."""

import inspect
import itertools
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import (
    Every,
    InvalidArgumentError,
    NotFoundError,
    ScheduleExistsError,
)
from celery_dynbeat.api import OwnerSchedules, Schedules
from celery_dynbeat.db.models import Alert
from celery_dynbeat.insights.explain.reading import explain
from tests.security.lookalikes import ALIKE, INVALID_OWNERS, VICTIM, everything
from tests.support.applications import MINUTELY, START, execute
from tests.support.suites import each_database

NAME = "dáily"
NEW = {"name": NAME, "task": "t", "trigger": MINUTELY}
SPAN = {"since": START, "until": START + timedelta(minutes=3)}

#: Calls for a schedule that the caller does not own.
MISSING = {
    "update": lambda mine, name, **how: mine.update(name, description="mine now", **how),
    "pause": lambda mine, name, **how: mine.pause(name, **how),
    "resume": lambda mine, name, **how: mine.resume(name, **how),
    "delete": lambda mine, name, **how: mine.delete(name, **how),
    "rename": lambda mine, name, **how: mine.rename(name, "mine now", **how),
    "get": lambda mine, name, **how: mine.get(name, **how),
    "run_now": lambda mine, name, **how: mine.run_now(name, **how),
    "skip": lambda mine, name, **how: mine.skip(name, START + timedelta(minutes=1), **how),
    "unskip": lambda mine, name, **how: mine.unskip(name, START + timedelta(minutes=1), **how),
    "upcoming": lambda mine, name, **how: mine.upcoming(name, **how),
    "explain": lambda mine, name, **how: mine.explain(name, **how),
    "backfill": lambda mine, name, **how: mine.backfill(name, **SPAN, **how),
}


def lines_about(mine, name):
    """Return the lines of an export that name the schedule."""
    return [line for line in mine.export() if line.get("name") == name]


#: Calls that return a list.
LISTS = {
    "list": lambda mine, theirs: mine.list(after=theirs.cursor),
    "count": lambda mine, theirs: range(mine.count(name_prefix=theirs.name[:2]).count),
    "runs": lambda mine, theirs: mine.runs(theirs.name),
    "count_runs": lambda mine, theirs: range(mine.count_runs(theirs.name).count),
    "usage": lambda mine, _theirs: range(mine.usage().schedules),
    "forecast": lambda mine, _theirs: (
        mine.forecast(until=START + timedelta(days=1), per="hour").rows
    ),
    "export": lambda mine, theirs: lines_about(mine, theirs.name),
    "holds": lambda mine, _theirs: mine.holds(),
    "changes": lambda mine, theirs: mine.changes(theirs.name),
}
#: Calls for the run of another owner.
RUNS = {
    "get_run": lambda mine, theirs: mine.get_run(theirs.run_id),
    "rerun": lambda mine, theirs: mine.rerun(theirs.run_id),
    "cancel_run": lambda mine, theirs: mine.cancel_run(theirs.run_id),
}
#: Calls without a schedule of another owner. Tests of their own cover them.
WITHOUT = {"rerun_many", "cancel_runs", "get_batch", "hold", "release", "holds", "alerts"}
WITHOUT |= {"pause_many", "resume_many", "update_many", "delete_many"}
#: Calls that create a schedule of the caller.
CREATES = {
    "create": lambda mine: mine.create(NAME, task="t", trigger=MINUTELY),
    "upsert": lambda mine: mine.upsert(NAME, task="other", trigger=Every(9)),
    "create_many": lambda mine: mine.create_many([NEW])[0],
}
#: Calls with a filter by owner.
FILTERED = {"list", "count", "runs", "count_runs", "cancel_runs", "changes"}
VERSIONED = {"update", "pause", "resume", "delete", "rename", "skip", "unskip"}


def public(kind):
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_each_call_of_an_owner_is_covered():
    own = {"preview", "timezone", "set_timezone"}
    own |= {"quiet_hours", "set_quiet_hours", "clear_quiet_hours"}
    assert public(OwnerSchedules) == {*(*MISSING, *LISTS, *RUNS, *CREATES, *WITHOUT, *own), "bound"}


def test_each_call_that_spans_owners_is_covered():
    calls = {"bound", "for_owner", "create_many", "delete_owner", "list", "count", "changes"}
    calls |= {"usage", "forecast", "explain"}
    of_runs = {"runs", "count_runs"}
    assert public(Schedules) == {*calls, *of_runs, *RUNS, *WITHOUT}


def test_an_owner_uses_calendars_and_changes_none(dynbeat):
    """The calls of an owner have no calendars, and a preview shows no schedule of another owner."""
    dynbeat.calendars.upsert("holidays", dates=[START.date()])
    trigger = MINUTELY.excluding(calendar="holidays")
    dynbeat.schedules.for_owner(VICTIM).create("n", task="t", trigger=trigger)
    mine = dynbeat.schedules.for_owner(ALIKE[0])

    assert not [name for name in dir(mine) if "calendar" in name]
    mine.create("n", task="t", trigger=trigger)
    mine.delete("n")
    assert any("calendar holidays" in each.message for each in mine.preview(trigger).warnings)
    assert dynbeat.calendars.get("holidays").schedules.count == 1


@pytest.mark.parametrize("name", sorted(FILTERED))
def test_a_filter_by_another_owner_is_rejected(dynbeat, name):
    for owner in ALIKE:
        call = getattr(dynbeat.schedules.for_owner(owner), name)
        with pytest.raises(InvalidArgumentError) as raised:
            call(owner=VICTIM)
        assert raised.value.field == "owner", owner
        assert call(owner=owner) == call(owner=None) == call(), owner


@pytest.mark.parametrize("name", sorted(FILTERED))
def test_a_filter_that_does_not_exist_is_rejected(dynbeat, name):
    for calls in (dynbeat.schedules, dynbeat.schedules.for_owner(VICTIM)):
        with pytest.raises(InvalidArgumentError, match="did you mean owner") as raised:
            getattr(calls, name)(ownr=VICTIM)
        assert raised.value.field == "ownr"


def test_only_the_alerts_of_the_owner_are_listed(dynbeat, clock):
    dynbeat.schedules.for_owner(VICTIM).create(NAME, task="t", trigger=MINUTELY)
    (schedule,) = dynbeat.schedules.for_owner(VICTIM).list()
    opened = {"opened_at": clock.now(), "task": "t", "cause": "x"}
    with Session(dynbeat.context.database.engine) as session, session.begin():
        alert = {"schedule_id": schedule.id, "kind": "failing", **opened}
        session.add(Alert(owner=VICTIM, name=NAME, **alert))

    assert [each.schedule for each in dynbeat.schedules.for_owner(VICTIM).alerts()] == [NAME]
    assert not any(dynbeat.schedules.for_owner(owner).alerts() for owner in ALIKE)


def populate(dynbeat, beat, clock, *owners):
    for owner in owners:
        theirs = dynbeat.schedules.for_owner(owner)
        for name in (NAME, "other"):
            theirs.create(name, task="t", trigger=MINUTELY, description=f"of {owner}")
    clock.advance(timedelta(minutes=5))
    beat.run_until_idle()
    for owner in owners:
        theirs = dynbeat.schedules.for_owner(owner)
        theirs.run_now(NAME)
        for name in (NAME, "other"):
            theirs.backfill(name, **SPAN)
    return theirs


@pytest.fixture
def theirs(dynbeat, beat, clock):
    """Return the data of another owner: schedules, runs, a backfill, the cursor of a page."""
    other = populate(dynbeat, beat, clock, VICTIM)
    return SimpleNamespace(
        name=NAME,
        cursor=other.list(limit=1).cursor,
        run_id=other.runs(NAME)[0].id,
        batch_id=other.runs(NAME, origin="backfill")[0].batch_id,
        version=other.get(NAME).version,
    )


@contextmanager
def transaction(dynbeat, *, within):
    """Yield the arguments of a call in its own transaction, or in one of the caller."""
    if not within:
        yield {}
        return
    with Session(dynbeat.context.database.engine) as session, session.begin():
        yield {"session": session}


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within a transaction"])
def test_the_schedule_of_another_owner_is_not_found_and_does_not_change(dynbeat, theirs, within):
    before = everything(dynbeat)
    names = [NAME, NAME.upper(), "da%", "d_ily", "%", theirs.run_id, theirs.batch_id]

    for call, owner in itertools.product(MISSING, ALIKE):
        mine = dynbeat.schedules.for_owner(owner)
        versions = {"expected_version": theirs.version} if call in VERSIONED else {}
        with transaction(dynbeat, within=within) as how:
            for name in names if owner == ALIKE[0] else names[:1]:
                with pytest.raises(NotFoundError) as caught:
                    MISSING[call](mine.bound(**how), name, **versions)
                assert (caught.value.owner, caught.value.name) == (owner, name)

    assert everything(dynbeat) == before


@pytest.mark.parametrize("call", RUNS)
def test_the_run_of_another_owner_is_not_found_and_does_not_change(dynbeat, theirs, call):
    before = everything(dynbeat)

    for owner, within in itertools.product(ALIKE, (False, True)):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=within) as how, pytest.raises(NotFoundError) as caught:
            RUNS[call](mine.bound(**how), theirs)
        assert (caught.value.owner, caught.value.name) == (owner, theirs.run_id)

    assert everything(dynbeat) == before


def test_an_invalid_name_matches_no_row(dynbeat, theirs):
    before = everything(dynbeat)
    mine = dynbeat.schedules.for_owner(ALIKE[0])

    for call, suffix in itertools.product(MISSING, ("\n", " ", "\x00", "\ud800")):
        with pytest.raises(InvalidArgumentError) as caught:
            MISSING[call](mine, theirs.name + suffix)
        assert caught.value.field == "name"

    assert everything(dynbeat) == before


@each_database
def test_a_list_shows_no_schedule_of_another_owner(dynbeat, theirs):
    before = everything(dynbeat)

    for call, owner, within in itertools.product(LISTS.values(), ALIKE, (False, True)):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=within) as how:
            assert list(call(mine.bound(**how), theirs)) == []
        assert [*mine.runs(), *mine.list(), *mine.list(task="t"), *mine.list(enabled=True)] == []
        assert mine.count_runs().count == mine.count_runs(task="t").count == 0

    assert everything(dynbeat) == before


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("call", CREATES)
def test_a_schedule_with_the_same_name_of_another_owner_is_separate(dynbeat, call):
    before = everything(dynbeat)

    for number, owner in enumerate(ALIKE):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=bool(number % 2)) as how:
            CREATES[call](mine.bound(**how))
        assert [schedule.owner for schedule in mine.list()] == [owner]
        assert mine.runs(NAME) == []

    after = everything(dynbeat)
    assert before <= after
    # A schedule and its change each.
    assert len(after - before) == 2 * len(ALIKE)


@pytest.mark.usefixtures("theirs")
def test_a_hold_of_another_owner_is_neither_shown_nor_released(dynbeat):
    victim = dynbeat.schedules.for_owner(VICTIM)
    held = victim.hold(reason="mine")

    for owner in ALIKE:
        mine = dynbeat.schedules.for_owner(owner)
        assert mine.holds() == []
        assert mine.release() is None

    assert [each.reason for each in victim.holds()] == [held.reason]


@each_database
def test_a_batch_of_another_owner_is_neither_counted_listed_nor_cancelled(dynbeat, theirs):
    execute(dynbeat, "UPDATE dynbeat_run SET status = 'failed', overdue_at = NULL,"
                     " finished_at = fire_at WHERE status = 'sent'")  # fmt: skip
    dynbeat.context.clock.advance(timedelta(minutes=1))
    of_victim = dynbeat.schedules.for_owner(VICTIM).rerun_many(since=START, name=NAME)
    of_all = dynbeat.schedules.rerun_many(since=START)
    before = everything(dynbeat)
    assert of_victim.total > 0 < of_all.total

    batches = (theirs.batch_id, of_victim.batch_id, of_all.batch_id)
    for owner, within, batch_id in itertools.product(ALIKE, (False, True), batches):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=within) as how:
            assert list(mine.bound(**how).runs(batch_id=batch_id)) == []
            assert mine.bound(**how).count_runs(batch_id=batch_id).count == 0
            assert mine.bound(**how).cancel_runs(batch_id=batch_id) == 0
            with pytest.raises(NotFoundError) as caught:
                mine.bound(**how).get_batch(batch_id)
            assert (caught.value.owner, caught.value.name) == (owner, batch_id)
    assert everything(dynbeat) == before

    for owner in ALIKE:
        assert dynbeat.schedules.for_owner(owner).rerun_many(since=START).total == 0
        assert dynbeat.schedules.rerun_many(owner=owner, since=START).total == 0


@each_database
def test_a_filter_of_another_owner_cancels_no_run(dynbeat, theirs):
    before = everything(dynbeat)
    filters = ({}, {"name": theirs.name}, {"status": ["pending", "sent"]}, {"task": "t"})

    for owner, within in itertools.product(ALIKE, (False, True)):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=within) as how:
            for matching in filters:
                assert mine.bound(**how).cancel_runs(**matching) == 0
                assert dynbeat.schedules.bound(**how).cancel_runs(owner=owner, **matching) == 0

    assert everything(dynbeat) == before


@each_database
def test_a_filter_of_an_owner_counts_and_cancels_only_own_runs(dynbeat, beat, clock):
    victim = populate(dynbeat, beat, clock, *ALIKE, VICTIM)
    unfinished = {"status": ["pending", "sent"]}
    number = victim.count_runs(NAME, **unfinished).count
    others = {line for line in everything(dynbeat) if f"{VICTIM!r}," not in line}
    assert 0 < number < dynbeat.schedules.count_runs(**unfinished).count

    assert dynbeat.schedules.count_runs(owner=VICTIM).count == victim.count_runs().count
    assert victim.cancel_runs(name=NAME) == number

    assert others <= everything(dynbeat)
    assert victim.count_runs(NAME, **unfinished).count == 0
    for owner in ALIKE:
        assert dynbeat.schedules.for_owner(owner).count_runs(NAME, **unfinished).count == number


def test_a_filter_of_another_owner_changes_no_schedule(dynbeat, theirs):
    before = everything(dynbeat)
    filters = ({"everything": True}, {"name_prefix": theirs.name[:2]}, {"task": "t"})

    for owner, within in itertools.product(ALIKE, (False, True)):
        mine = dynbeat.schedules.for_owner(owner)
        with transaction(dynbeat, within=within) as how:
            for matching in filters:
                for scope, also in ((mine, {}), (dynbeat.schedules, {"owner": owner})):
                    calls, given = scope.bound(**how), {**matching, **also}
                    if also:
                        given.pop("everything", None)
                    assert calls.pause_many(**given).matched == 0
                    assert calls.resume_many(**given).matched == 0
                    assert calls.update_many({"description": "mine now"}, **given).matched == 0
                    assert calls.delete_many(**given).matched == 0

    assert everything(dynbeat) == before


@pytest.mark.usefixtures("theirs")
def test_a_hold_a_time_zone_and_quiet_hours_change_no_other_owner(dynbeat):
    def of_victim():
        return {line for line in everything(dynbeat) if f"{VICTIM!r}," in line}

    before = of_victim()
    assert before

    for owner in ALIKE:
        mine = dynbeat.schedules.for_owner(owner)
        mine.hold(reason="mine")
        mine.set_timezone("Asia/Seoul")
        assert mine.set_quiet_hours(["22:00-07:00"]) == 0
        assert mine.clear_quiet_hours() == 0
        mine.set_quiet_hours(["22:00-07:00"])

    assert of_victim() == before
    victim = dynbeat.schedules.for_owner(VICTIM)
    assert (victim.timezone(), victim.holds(), victim.get(NAME).timezone) == ("UTC", [], "UTC")
    assert victim.quiet_hours() == []


@pytest.mark.parametrize("call", ["list", "runs", "changes"])
@pytest.mark.usefixtures("theirs")
def test_a_cursor_of_another_owner_pages_only_through_own_rows(dynbeat, call):
    other = getattr(dynbeat.schedules.for_owner(VICTIM), call)(limit=1).cursor
    assert other is not None

    for owner in ALIKE:
        mine = dynbeat.schedules.for_owner(owner)
        mine.create("zz", task="t", trigger=MINUTELY)
        mine.run_now("zz")
        for cursor in (other, None):
            page = getattr(mine, call)(after=cursor, limit=1_000)
            assert {each.owner for each in page} <= {owner}


@pytest.mark.usefixtures("theirs")
def test_an_explanation_is_only_of_own_schedules(dynbeat):
    before = everything(dynbeat)

    for owner in ALIKE:
        with pytest.raises(NotFoundError):
            explain(dynbeat.context, owner=owner, name=NAME)

    assert everything(dynbeat) == before


@pytest.mark.usefixtures("theirs")
def test_an_erasure_leaves_the_data_of_another_owner(dynbeat):
    before = everything(dynbeat)

    for owner in ALIKE:
        assert dynbeat.schedules.delete_owner(owner, erase_history=True) == 0

    assert before <= everything(dynbeat)
    # The record of each erasure.
    assert len(everything(dynbeat) - before) == len(ALIKE)


@pytest.mark.usefixtures("theirs")
def test_create_many_cannot_replace_the_schedule_of_another_owner(dynbeat):
    before = everything(dynbeat)

    dynbeat.schedules.create_many({**NEW, "owner": owner} for owner in ALIKE)
    with pytest.raises(ScheduleExistsError):
        dynbeat.schedules.create_many([{**NEW, "owner": VICTIM}])

    after = everything(dynbeat)
    assert before <= after
    # A schedule and its change each.
    assert len(after - before) == 2 * len(ALIKE)


@pytest.mark.usefixtures("theirs")
def test_an_invalid_owner_is_rejected_before_any_query(dynbeat):
    before, schedules = everything(dynbeat), dynbeat.schedules
    calls = [
        schedules.for_owner,
        schedules.delete_owner,
        lambda owner: schedules.create_many([{**NEW, "owner": owner}]),
        # None means all owners, which only the application may request.
        lambda owner: schedules.list(owner=owner if owner is not None else 0),
        lambda owner: schedules.runs(owner=owner if owner is not None else 0),
        lambda owner: schedules.rerun_many(owner=owner if owner is not None else 0, since=START),
    ]

    for call, owner in itertools.product(calls, INVALID_OWNERS):
        with pytest.raises(InvalidArgumentError):
            call(owner)

    assert everything(dynbeat) == before


@pytest.mark.usefixtures("theirs")
def test_delete_owner_deletes_no_data_of_another_owner(dynbeat):
    before = everything(dynbeat)

    for owner, within in itertools.product(ALIKE, (False, True)):
        with transaction(dynbeat, within=within) as how:
            assert dynbeat.schedules.bound(**how).delete_owner(owner) == 0

    assert everything(dynbeat) == before


def test_an_owner_with_a_similar_name_is_not_deleted(dynbeat, beat, clock):
    populate(dynbeat, beat, clock, VICTIM, *ALIKE)
    others = {line for line in everything(dynbeat) if f"{VICTIM!r}," not in line}
    assert len(others) < len(everything(dynbeat))

    assert dynbeat.schedules.delete_owner(VICTIM) == 2

    assert others <= everything(dynbeat)
    for owner in ALIKE:
        mine = dynbeat.schedules.for_owner(owner)
        assert len(mine.list()) == 2
        assert mine.runs(NAME, origin="backfill")
        assert {run.status for run in mine.runs()} == {"sent", "pending", "skipped"}


@pytest.mark.usefixtures("theirs")
def test_the_owner_filter_returns_only_that_owner(dynbeat):
    for owner in ALIKE:
        assert list(dynbeat.schedules.list(owner=owner)) == []

        assert list(dynbeat.schedules.runs(owner=owner)) == []

    assert {schedule.owner for schedule in dynbeat.schedules.list(owner=VICTIM)} == {VICTIM}
    assert {run.owner for run in dynbeat.schedules.runs(owner=VICTIM)} == {VICTIM}
