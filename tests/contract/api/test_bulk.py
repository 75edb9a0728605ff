"""pause_many(), resume_many(), update_many(), delete_many(): edits of all that match a filter."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from celery_dynbeat import BulkResult, Cron, Every, InvalidArgumentError
from celery_dynbeat.api import many
from celery_dynbeat.notify import PollingNotifier
from tests.support.applications import MINUTELY, START, execute

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CALLS = {
    "pause_many": lambda calls, **how: calls.pause_many(**how),
    "resume_many": lambda calls, **how: calls.resume_many(**how),
    "update_many": lambda calls, **how: calls.update_many({"description": "d"}, **how),
    "delete_many": lambda calls, **how: calls.delete_many(**how),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class CountingNotifier(PollingNotifier):
    """Counts the notifications."""

    def __init__(self):
        self.count = 0

    def notify(self, session):
        del session
        self.count += 1


@pytest.fixture
def crowd(dynbeat):
    """Create schedules a to e for two owners; a, c and e have the tag x."""
    dynbeat.schedules.create_many(
        {"owner": owner, "name": name, "task": f"t.{name}", "trigger": MINUTELY, "tags": tags}
        for owner in ("user:42", "user:7")
        for name, tags in zip("abcde", (["x"], [], ["x"], [], ["x"]), strict=True)
    )


@pytest.fixture
def batches(monkeypatch):
    """Make a batch two schedules."""
    monkeypatch.setattr(many, "BATCH_SIZE", 2)


def names(calls, **matching):
    return [each.name for each in calls.list(**matching)]


def result(**numbers):
    return BulkResult(matched=sum(numbers.values()), **numbers)


@pytest.mark.usefixtures("crowd", "batches")
def test_a_pause_of_many_pauses_each_as_pause_does(dynbeat, mine, clock, beat):
    clock.advance(MINUTE)
    beat.run_until_idle()
    mine.pause("c", reason="on holiday")

    with dynbeat.acting(actor="ann", reason="mail is down"):
        assert mine.pause_many(tag="x") == result(changed=2, unchanged=1)

    paused = {each.name: each.paused_reason for each in mine.list(state="paused")}
    assert paused == {"a": "mail is down", "c": "on holiday", "e": "mail is down"}
    assert {run.name for run in mine.runs() if run.status == "revoked"} == {"a", "c", "e"}
    changes = [(each.name, each.actor) for each in mine.changes(actor="ann", action="pause")]
    assert sorted(changes) == [("a", "ann"), ("e", "ann")]
    assert names(dynbeat.schedules.for_owner("user:7"), state="paused") == []


@pytest.mark.usefixtures("crowd", "batches")
@pytest.mark.parametrize("filters", [
    {"tag": "x"}, {"task": "t.c"}, {"name_prefix": "a"}, {"enabled": False}, {"owner": "user:7"},
    *({"state": state} for state in ("active", "paused", "finished", "quarantined", "failing")),
    {"state": "held"}, {"state": "overdue"}, {"state": "overdue", "owner": "user:42"},
    {"everything": True},
])  # fmt: skip
def test_a_call_of_all_owners_changes_what_count_counts(dynbeat, mine, clock, filters):
    mine.pause("b")
    dynbeat.schedules.for_owner("user:7").hold(reason="r")
    execute(dynbeat, "UPDATE dynbeat_schedule SET failing_since = :now WHERE name = 'd'", now=START)
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET error = 'e', next_run_at = NULL, next_fire_at = NULL"
        " WHERE name = 'e'",
    )
    clock.advance(HOUR)
    counted = {key: value for key, value in filters.items() if key != "everything"}
    number = dynbeat.schedules.count(**counted).count
    listed = {(each.owner, each.name) for each in dynbeat.schedules.list(**counted)}
    assert len(listed) == number

    done = dynbeat.schedules.delete_many(expected=number, **filters)

    assert done == result(changed=number)
    left = {(each.owner, each.name) for each in dynbeat.schedules.list()}
    assert len(left) == 10 - number
    assert not left & listed


@each_call
def test_a_call_without_a_filter_is_refused(dynbeat, mine, call):
    mine.create("n", task="t", trigger=MINUTELY)

    for calls in (dynbeat.schedules, mine):
        for filters in ({}, {"tag": None}, {"name_prefix": ""}, {"everything": False}):
            with pytest.raises(InvalidArgumentError, match="everything=True") as raised:
                call(calls, **filters)
            assert raised.value.field == "everything"
        with pytest.raises(InvalidArgumentError, match="cannot be combined"):
            call(calls, everything=True, tag="x")
        with pytest.raises(InvalidArgumentError, match="True or False"):
            call(calls, everything="yes", tag="x")

    assert mine.get("n").version == 1
    assert call(mine, everything=True).matched == 1


@pytest.mark.usefixtures("crowd", "batches")
@pytest.mark.parametrize("expected", [0, 2, 4, 5])
@each_call
def test_another_number_than_the_expected_one_changes_nothing(mine, call, expected):
    before = list(mine.list())

    with pytest.raises(InvalidArgumentError, match="nothing was changed") as raised:
        call(mine, tag="x", expected=expected)

    assert raised.value.field == "expected"
    assert list(mine.list()) == before


@pytest.fixture
def before_write(dynbeat, monkeypatch):
    """Give a function whose argument is called after the schedules are read, before the edits."""

    def arrange(change):
        write, calls = dynbeat.context.write, [change]

        def write_after_change(session, work):
            if calls:
                calls.pop()()
            return write(session, work)

        monkeypatch.setattr(dynbeat.context, "write", write_after_change)

    return arrange


@pytest.mark.usefixtures("crowd", "batches")
def test_with_an_expected_number_a_schedule_that_matches_later_is_not_changed(mine, before_write):
    before_write(lambda: mine.create("f", task="t", trigger=MINUTELY, tags=["x"]))

    assert mine.delete_many(tag="x", expected=3) == result(changed=3)
    assert names(mine) == ["b", "d", "f"]


@pytest.mark.usefixtures("crowd")
def test_a_schedule_that_no_longer_matches_is_not_changed(mine, before_write):
    def change():
        mine.update("a", tags=[])
        mine.delete("c")

    before_write(change)

    assert mine.delete_many(tag="x") == result(changed=1)
    assert names(mine) == ["a", "b", "d"]


@pytest.mark.usefixtures("crowd")
def test_a_schedule_that_fails_is_not_changed_in_part(dynbeat, mine):
    """The fire times that skip() took out make an edit read the database before it fails."""
    for name in "ac":
        mine.skip(name, mine.upcoming(name, count=1)[0].fire_at)
    mine.update("a", end_at=START + HOUR)
    mine.pause("c")
    execute(dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'x' WHERE name = 'c'")
    before = [mine.get("a"), mine.get("c")]

    for session in (None, Session(dynbeat.context.database.engine)):
        bound, costly = mine.bound(session=session), {"trigger": Cron("0 0 1 1 *"), "window": 5}
        assert bound.update_many(costly, name_prefix="a").failed == 1
        assert bound.resume_many(name_prefix="c").failed == 1
        if session is not None:
            session.commit()
            session.close()
        assert [mine.get("a"), mine.get("c")] == before


@pytest.mark.parametrize(("changes", "field"), [
    ({}, "changes"), (5, "changes"), ({"window": -1}, "window"), ({"colour": 1}, "colour"),
    ({"name": "m"}, "name"), ({"enabled": False}, "enabled"), ({"trigger": 5j}, "trigger"),
    ({"alerts": {"to": "nowhere"}}, "alerts"), ({"options": {"serializer": "none"}}, "options"),
])  # fmt: skip
def test_a_value_that_no_schedule_accepts_is_refused_before_the_edits(mine, changes, field):
    with pytest.raises(InvalidArgumentError) as raised:
        mine.update_many(changes, everything=True)
    assert (raised.value.field or "").startswith(field)


@pytest.mark.usefixtures("crowd", "batches")
def test_without_a_session_each_batch_commits(dynbeat, mine, monkeypatch):
    context, written = dynbeat.context, []
    write = context.write

    def write_and_count(session, work):
        done = write(session, work)
        written.append(mine.count().count)
        return done

    monkeypatch.setattr(context, "write", write_and_count)

    mine.delete_many(everything=True, expected=5)

    assert written == [3, 1, 0]


@pytest.mark.usefixtures("crowd")
def test_beat_is_notified_once_for_each_batch(dynbeat, mine):
    dynbeat.context.notifier = notifier = CountingNotifier()
    counts = []
    # Of the three schedules, within dynbeat_poll_interval.
    for call in (
        lambda: mine.update_many({"trigger": Every(2)}, tag="x"),
        lambda: mine.pause_many(tag="x"),
        lambda: mine.resume_many(tag="x"),
        lambda: mine.update_many({"trigger": MINUTELY}, tag="x"),
        lambda: mine.delete_many(tag="x"),
    ):
        notifier.count = 0
        assert call().changed == 3
        counts.append(notifier.count)

    assert counts == [1, 0, 1, 0, 0]
