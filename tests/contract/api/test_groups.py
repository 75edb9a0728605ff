"""Groups of owners: list, count, hold and release."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from celery_dynbeat import Cron, Every, HeldByOthersError, InvalidScheduleError, RunNotFoundError
from celery_dynbeat.api.control import cancelling
from celery_dynbeat.api.edit import bulk
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.store import holds
from celery_dynbeat.store.runs import run_pages
from celery_dynbeat.store.schedules import schedule_pages
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START

GROUP, INNER = "org:7/", "org:7/team:1/"
#: The owners of the group, by code point.
OWNERS = ("org:7/a", "org:7/team:1/b", "org:7/team:1/c", "org:7/z")
#: Owners that are near the group by code point or in a collation of a language, and not in it.
OTHERS = ("Org:7/a", "org:7", "org:7.", "org:70", "org:70/a", "org:6/a")


@pytest.fixture
def schedules(dynbeat):
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": "t", "trigger": MINUTELY}
        for owner in (*OWNERS, *OTHERS)
        for name in ("x", "y")
    )
    return dynbeat.schedules


def owners_of(page):
    return sorted({each.owner for each in page})


def due_at(dynbeat, owner):
    """Return the next_run_at that the rows of the owner have."""
    query = select(Schedule.next_run_at).where(Schedule.owner == owner).distinct()
    return dynbeat.context.database.read(lambda session: session.scalars(query).one())


def sent_by(dynbeat, clock, *, minutes=1):
    """Return the owners whose runs a beat sends in the next minutes."""
    beat = ManualBeat(dynbeat)
    for _ in range(minutes):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    return {run.owner for run in beat.publisher.sent}


@pytest.mark.parametrize(
    ("group", "owners"),
    [(GROUP, OWNERS), (INNER, OWNERS[1:3]), ("org:8/", ()), ("org:70/", ("org:70/a",))],
)
def test_a_list_and_a_count_of_a_group_have_the_schedules_of_its_owners(schedules, group, owners):
    of_group = schedules.for_group(group)
    found = list(of_group.list())

    assert [(each.owner, each.name) for each in found] == [
        (owner, name) for owner in owners for name in "xy"
    ]
    assert list(schedules.list(owner=group)) == found
    assert of_group.count().count == schedules.count(owner=group).count == len(found)
    assert owners_of(of_group.list(order="next_run_at")) == list(owners)
    assert [each.name for each in of_group.list(name_prefix="y")] == ["y"] * len(owners)
    assert of_group.count(name_prefix="y").count == len(owners)


def test_pages_of_a_group_have_each_schedule_once(schedules):
    of_group = schedules.for_group(GROUP)
    for order in ("name", "next_run_at"):
        found, after = [], None
        while True:
            page = of_group.list(limit=3, after=after, order=order)
            found += [(each.owner, each.name) for each in page]
            after = page.cursor
            if after is None:
                break
        assert sorted(found) == [(owner, name) for owner in OWNERS for name in "xy"]


def test_the_states_of_a_group_are_listed_and_counted(schedules):
    schedules.for_owner("org:7/a").pause("x")
    schedules.for_owner("org:70/a").pause("x")
    of_group = schedules.for_group(GROUP)

    assert [each.owner for each in of_group.list(state="paused")] == ["org:7/a"]
    assert of_group.count(state="paused").count == 1
    assert of_group.count(state="active").count == 7


def test_the_owner_of_a_filter_must_lie_in_the_group(schedules):
    of_group = schedules.for_group(GROUP)

    assert owners_of(of_group.list(owner="org:7/a")) == ["org:7/a"]
    assert owners_of(of_group.list(owner=INNER)) == list(OWNERS[1:3])
    for owner in ("org:70", "org:7", ""):
        with pytest.raises(InvalidScheduleError, match="these calls, group 'org:7/'"):
            of_group.list(owner=owner)
    with pytest.raises(InvalidScheduleError, match="these calls, owner 'org:7/a'"):
        schedules.for_owner("org:7/a").list(owner=GROUP)


@pytest.mark.parametrize("batch", [3, 500])
@pytest.mark.parametrize("within", ["for_group", "owner"])
def test_the_edits_of_many_and_a_cancel_reach_the_owners_of_the_group_and_no_others(
    schedules, monkeypatch, within, batch
):
    monkeypatch.setattr(bulk, "BATCH_SIZE", batch)
    monkeypatch.setattr(cancelling, "BATCH_SIZE", batch)
    calls, how = schedules, {"owner": GROUP}
    if within == "for_group":
        calls, how = schedules.for_group(GROUP), {"everything": True}
    for owner in (*OWNERS, *OTHERS):
        schedules.for_owner(owner).run_now("x")
    others = {owner: list(schedules.for_owner(owner).list()) for owner in OTHERS}

    of_runs = {"owner": GROUP} if within == "owner" else {}
    assert calls.cancel_runs("y", **of_runs) == 0
    assert calls.cancel_runs("x", **of_runs) == len(OWNERS)
    assert {run.owner for run in schedules.runs(status="revoked")} == set(OWNERS)
    assert calls.pause_many(**how, expected=2 * len(OWNERS)).changed == 2 * len(OWNERS)
    assert calls.resume_many(**how).changed == 2 * len(OWNERS)
    assert calls.update_many({"queue": "slow"}, **how).changed == 2 * len(OWNERS)
    with pytest.raises(InvalidScheduleError) as caught:
        calls.delete_many(**how, expected=1)
    assert caught.value.field == "expected"
    assert calls.delete_many(**how).changed == 2 * len(OWNERS)

    assert schedules.count(owner=GROUP).count == 0
    assert {owner: list(schedules.for_owner(owner).list()) for owner in OTHERS} == others
    assert schedules.count_runs(status="pending").count == len(OTHERS)


def test_a_run_of_the_group_is_cancelled_by_its_id(schedules):
    of_group = schedules.for_group(GROUP)
    inside, outside = (schedules.for_owner(each).run_now("x") for each in ("org:7/z", "org:70/a"))

    assert of_group.cancel_run(inside.id).status == "revoked"
    with pytest.raises(RunNotFoundError, match="group 'org:7/'"):
        of_group.cancel_run(outside.id)
    assert schedules.get_run(outside.id).status == "pending"


def test_a_call_that_accepts_no_group_says_so(schedules):
    for call in (
        lambda: schedules.requests(owner=GROUP),
        lambda: schedules.rerun_many(owner=GROUP, since=START - timedelta(hours=1)),
        lambda: schedules.for_owner(GROUP),
    ):
        with pytest.raises(InvalidScheduleError, match="name one owner") as caught:
            call()
        assert caught.value.field == "owner"


@pytest.mark.parametrize("group", ["", "org:7", 7, "x" * 300 + "/"])
def test_a_group_ends_with_a_slash(dynbeat, group):
    with pytest.raises(InvalidScheduleError) as caught:
        dynbeat.schedules.for_group(group)
    assert caught.value.field == "group"


def test_a_hold_of_a_group_stops_its_owners_and_no_others(schedules, dynbeat, clock):
    hold = schedules.for_group(INNER).hold(actor="alice", reason="unpaid")

    assert (hold.owner, hold.actor) == (INNER, "alice")
    assert sent_by(dynbeat, clock) == {"org:7/a", "org:7/z", *OTHERS}
    assert [each.owner for each in schedules.for_owner("org:7/team:1/b").holds()] == [INNER]
    assert not schedules.for_owner("org:7/a").holds().items
    assert owners_of(schedules.list(state="held")) == list(OWNERS[1:3])
    assert schedules.count(state="held").count == 4

    schedules.for_group(INNER).release(actor="alice")

    assert {"org:7/team:1/b", "org:7/team:1/c"} <= sent_by(dynbeat, clock)
    assert not schedules.list(state="held").items


def test_an_owner_is_held_until_the_last_hold_of_it_and_its_groups_is_released(
    schedules, dynbeat, clock
):
    owner = schedules.for_owner("org:7/team:1/b")
    held = (schedules.for_group(GROUP), schedules.for_group(INNER), owner)
    for each in held:
        each.hold(actor="alice")
    assert sent_by(dynbeat, clock) == set(OTHERS)

    for first, second, third in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        held[first].release(actor="alice")
        held[second].release(actor="alice")
        assert "org:7/team:1/b" not in sent_by(dynbeat, clock)
        held[third].release(actor="alice")
        assert "org:7/team:1/b" in sent_by(dynbeat, clock)
        for each in held:
            each.hold(actor="alice")
        assert sent_by(dynbeat, clock) == set(OTHERS)


def test_after_a_release_of_a_group_each_owner_is_due_at_the_end_of_its_own_holds(
    schedules, dynbeat, clock
):
    until = clock.now() + timedelta(minutes=30)
    schedules.for_owner("org:7/a").hold(until=until, actor="alice")
    schedules.for_group(INNER).hold(actor="alice")
    schedules.for_group(GROUP).hold(actor="bob")
    assert sent_by(dynbeat, clock) == set(OTHERS)

    schedules.for_group(GROUP).release(actor="bob")

    # Not only after the next claim, which would hold them again.
    assert due_at(dynbeat, "org:7/a") == until
    assert due_at(dynbeat, "org:7/team:1/b") == holds.NEVER
    assert due_at(dynbeat, "org:7/z") == clock.now()
    assert sent_by(dynbeat, clock) == {"org:7/z", *OTHERS}
    clock.advance(timedelta(minutes=30))
    assert sent_by(dynbeat, clock) == {"org:7/z", "org:7/a", *OTHERS}


def test_after_a_release_of_an_owner_it_is_due_at_the_end_of_the_holds_of_its_groups(
    schedules, dynbeat, clock
):
    until = clock.now() + timedelta(minutes=30)
    schedules.for_group(GROUP).hold(until=until, actor="alice")
    owner = schedules.for_owner("org:7/team:1/b")
    owner.hold(actor="alice")
    assert sent_by(dynbeat, clock) == set(OTHERS)
    assert due_at(dynbeat, owner.owner) == holds.NEVER

    owner.release(actor="alice")

    assert due_at(dynbeat, owner.owner) == until


def test_a_shorter_hold_of_a_group_ends_earlier(schedules, dynbeat, clock):
    of_group = schedules.for_group(GROUP)
    of_group.hold(actor="alice")
    assert sent_by(dynbeat, clock) == set(OTHERS)

    of_group.hold(actor="alice", until=clock.now() + timedelta(minutes=2))

    assert sent_by(dynbeat, clock) == set(OTHERS)
    assert set(OWNERS) <= sent_by(dynbeat, clock, minutes=2)
    assert not of_group.holds().items


def test_only_the_actor_releases_the_hold_of_a_group(schedules):
    of_group = schedules.for_group(GROUP)
    of_group.hold(actor="alice")

    with pytest.raises(HeldByOthersError, match="group 'org:7/' is held by 'alice'"):
        of_group.release(actor="bob")
    assert len(of_group.release(all_actors=True)) == 1
    assert schedules.for_group(INNER).release() == ()


def test_schedules_of_a_held_group_are_not_overdue(schedules, clock):
    schedules.for_group(GROUP).hold(actor="alice")
    clock.advance(timedelta(minutes=5))

    assert owners_of(schedules.list(state="overdue")) == sorted(OTHERS)
    assert schedules.count(state="overdue").count == 2 * len(OTHERS)
    assert schedules.for_group(GROUP).count(state="overdue").count == 0


def test_the_held_schedules_of_nested_holds_are_listed_once_in_pages(schedules):
    for name in ("org:7/team:1/b", "org:6/a", "org:70"):
        schedules.for_owner(name).hold(actor="alice")
    for group in (GROUP, INNER):
        schedules.for_group(group).hold(actor="alice")
    found, after = [], None
    while True:
        page = schedules.list(state="held", limit=3, after=after)
        found += [(each.owner, each.name) for each in page]
        after = page.cursor
        if after is None:
            break

    held = sorted([*OWNERS, "org:6/a", "org:70"])
    assert found == [(owner, name) for owner in held for name in "xy"]
    assert schedules.count(state="held").count == len(found)
    assert schedules.for_group(INNER).count(state="held").count == 4
    assert schedules.for_owner("org:7/z").count(state="held").count == 2


def test_more_held_owners_than_a_page_reads_do_not_hide_those_behind_a_held_group(dynbeat):
    schedules = dynbeat.schedules
    owners = [f"a/{number:03}" for number in range(60)] + ["b"]
    schedules.create_many(
        {"owner": owner, "name": "n", "task": "t", "trigger": MINUTELY} for owner in owners
    )
    schedules.for_group("a/").hold(actor="alice")
    for owner in owners:
        schedules.for_owner(owner).hold(actor="alice")
    found, after = [], None
    while True:
        page = schedules.list(state="held", after=after)
        found += [each.owner for each in page]
        after = page.cursor
        if after is None:
            break

    assert found == owners


def test_releases_of_a_group_and_of_its_owner_at_the_same_time_leave_nothing_held(
    schedules, dynbeat, clock
):
    owner, of_group = schedules.for_owner("org:7/a"), schedules.for_group(GROUP)
    owner.hold(actor="alice")
    of_group.hold(actor="alice")
    assert sent_by(dynbeat, clock) == set(OTHERS)

    second = threading.Thread(target=owner.release, kwargs={"actor": "alice"})
    with Session(dynbeat.context.database.engine) as first:
        of_group.release(actor="alice", session=first)
        second.start()
        second.join(0.5)
        first.commit()
    second.join(30)

    assert not second.is_alive()
    assert set(OWNERS) <= sent_by(dynbeat, clock)


def test_a_backfill_of_a_held_group_waits(schedules, dynbeat, clock):
    mine = schedules.for_owner("org:7/a")
    mine.create("later", task="t", trigger=Every(60))
    since = clock.now()
    clock.advance(timedelta(minutes=3))
    schedules.for_group(GROUP).hold(actor="alice")
    mine.backfill("later", since=since, until=clock.now())

    assert "org:7/a" not in sent_by(dynbeat, clock)


def test_a_run_that_leaves_the_group_while_its_runs_are_cancelled_is_kept(dynbeat, monkeypatch):
    dynbeat.schedules.for_owner("org:7/a").create("n", task="t", trigger=MINUTELY)
    run = dynbeat.schedules.for_owner("org:7/a").run_now("n")
    read = run_pages.unfinished_keys

    def moved(*args, **kwargs):
        found = read(*args, **kwargs)
        if found.rows:
            dynbeat.schedules.move("n", owner="org:7/a", to="org:8/b")
        return found

    monkeypatch.setattr(run_pages, "unfinished_keys", moved)

    assert dynbeat.schedules.for_group("org:7/").cancel_runs() == 0
    theirs = dynbeat.schedules.for_owner("org:8/b")
    assert theirs.get_run(run.id).status == "pending"
    assert "cancel" not in [change.action for change in theirs.changes()]


def test_a_schedule_that_moves_during_an_edit_of_many_keeps_its_zone(dynbeat, monkeypatch):
    theirs = dynbeat.schedules.for_owner("org:7/b")
    for owner in ("org:7/a", "org:7/b"):
        dynbeat.schedules.for_owner(owner).set_timezone("Asia/Seoul")
    dynbeat.schedules.for_owner("org:7/a").create("n", task="t", trigger=Cron("0 8 * * *"))
    read = schedule_pages.page

    def moved(*args, **kwargs):
        found = read(*args, **kwargs)
        if found.rows and found.rows[0].owner == "org:7/a":
            dynbeat.schedules.move("n", owner="org:7/a", to="org:7/b")
        return found

    monkeypatch.setattr(schedule_pages, "page", moved)
    changes = {"trigger": Cron("0 9 * * *")}

    dynbeat.schedules.for_group("org:7/").update_many(changes, everything=True)

    assert theirs.get("n").timezone == "Asia/Seoul"
