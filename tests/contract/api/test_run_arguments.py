"""The arguments of a run, derived from the audit. "Not known" must be said, and never guessed."""

from datetime import timedelta

import pytest

from celery_dynbeat import RunArguments, RunNotFoundError
from celery_dynbeat.api.lists import run_arguments as module
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application, execute
from tests.support.suites import one_database

MINUTE = timedelta(minutes=1)
FIRST = RunArguments(args=[1], kwargs={"a": {"b": None}})
OTHER = {"args": [2], "kwargs": {}}
INCOMPLETE = "the audit does not have all edits since the run"


@pytest.fixture
def schedule(mine, clock):
    made = mine.create("n", task="t", trigger=MINUTELY, args=FIRST.args, kwargs=FIRST.kwargs)
    clock.advance(MINUTE)
    return made


@pytest.fixture
def fire(dynbeat, mine, clock):
    """Return a function that makes a run, which started 10 seconds later, and returns its id."""

    def fired():
        ManualBeat(dynbeat).run_until_idle()
        run = mine.runs("n").items[0]
        clock.advance(timedelta(seconds=10))
        execute(
            dynbeat,
            "UPDATE dynbeat_run SET status = 'succeeded', overdue_at = NULL, attempt = 1,"
            " started_at = :now, finished_at = :now WHERE id = :id",
            id=run.id,
            now=str(clock.now().replace(tzinfo=None)),
        )
        clock.advance(MINUTE)
        return run.id

    return fired


@pytest.fixture
def arguments(mine):
    """Return the call that gives the arguments of a run."""
    return mine.run_arguments


@one_database
def test_arguments_are_those_of_the_schedule_that_was_not_edited(schedule, fire, arguments):
    assert schedule.args == FIRST.args
    assert arguments(fire()) == FIRST


@pytest.mark.usefixtures("schedule")
def test_arguments_are_those_before_the_edits_that_followed(mine, clock, fire, arguments):
    runs = [fire()]
    for number in (2, 3, 4):
        mine.update("n", args=[number])
        mine.pause("n")
        mine.resume("n")
        clock.advance(MINUTE)
        runs.append(fire())
        mine.run_now("n")
    mine.update("n", kwargs={"a": 5}, task="u")

    found = [arguments(each) for each in runs]

    assert found == [FIRST, *(RunArguments(args=[n], kwargs=FIRST.kwargs) for n in (2, 3, 4))]


@pytest.mark.usefixtures("schedule")
def test_the_run_of_a_deleted_schedule_has_the_arguments_of_its_time(mine, clock, fire, arguments):
    first = fire()
    mine.update("n", **OTHER)
    clock.advance(MINUTE)
    second = fire()
    mine.delete("n")
    clock.advance(MINUTE)
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(MINUTE)
    third = fire()
    mine.delete("n")

    found = [arguments(each) for each in (first, second, third)]

    assert found == [FIRST, RunArguments(**OTHER), RunArguments(args=[], kwargs={})]


@pytest.mark.usefixtures("schedule")
def test_a_restored_schedule_began_with_the_restore(mine, clock, fire, arguments):
    of_deleted = fire()
    mine.update("n", **OTHER)
    clock.advance(MINUTE)
    mine.delete("n")
    clock.advance(MINUTE)
    mine.restore(mine.changes("n")[0].id)
    mine.run_now("n")
    # At the time of the restore.
    first = fire()
    mine.update("n", args=[3])
    clock.advance(MINUTE)
    second = fire()

    found = [arguments(each) for each in (of_deleted, first, second)]

    assert found == [FIRST, RunArguments(**OTHER), RunArguments(args=[3], kwargs={})]


@one_database
@pytest.mark.usefixtures("schedule")
def test_arguments_that_changed_before_the_start_are_not_known(dynbeat, mine, clock, arguments):
    ManualBeat(dynbeat).run_until_idle()
    run = mine.runs("n").items[0]
    clock.advance(timedelta(seconds=10))
    mine.update("n", description="same arguments")
    assert arguments(run.id) == FIRST

    mine.update("n", **OTHER)
    clock.advance(MINUTE)

    found = arguments(run.id)
    assert found.unknown is not None
    assert "changed at 2026-11-21 09:01:10 UTC, before the run started" in found.unknown


@one_database
@pytest.mark.usefixtures("schedule")
@pytest.mark.parametrize("pruned", ["version = 2", "version = 3", "version <= 2", "version > 0"])
def test_arguments_are_not_known_without_all_edits(dynbeat, mine, clock, fire, arguments, pruned):
    run_id = fire()
    for number in (2, 3, 4):
        mine.update("n", args=[number])
        clock.advance(MINUTE)
    dialect = dynbeat.context.database.engine.dialect.name
    version = {
        "sqlite": "json_extract(new_values, '$.version')",
        "postgresql": "CAST(new_values ->> 'version' AS integer)",
    }.get(dialect, "CAST(JSON_EXTRACT(new_values, '$.version') AS SIGNED)")
    statement = f"DELETE FROM dynbeat_change WHERE {pruned.replace('version', version)}"
    execute(dynbeat, statement)

    found = arguments(run_id)

    assert found.unknown is not None
    assert INCOMPLETE in found.unknown


@pytest.mark.usefixtures("schedule")
def test_arguments_are_not_known_after_very_many_edits(mine, clock, fire, arguments, monkeypatch):
    run_id = fire()
    for number in (2, 3):
        mine.update("n", args=[number])
        clock.advance(MINUTE)
    assert arguments(run_id) == FIRST
    monkeypatch.setattr(module, "MAX_CHANGES", 2)

    assert arguments(run_id).unknown is not None


@one_database
@pytest.mark.usefixtures("schedule")
def test_a_run_that_was_not_sent_says_so(dynbeat, mine, arguments):
    ManualBeat(dynbeat).run_until_idle()
    execute(dynbeat, "UPDATE dynbeat_run SET sent_at = NULL, status = 'pending'")

    run = mine.runs("n").items[0]

    assert arguments(run.id) == RunArguments(unknown="The run was not sent.")


@one_database
def test_without_an_audit_only_runs_after_the_last_edit_are_known(database_url, clock):
    with application(database_url, clock=clock, audit=False) as dynbeat:
        mine = dynbeat.schedules.for_owner("user:42")
        mine.create("n", task="t", trigger=MINUTELY, args=[1])
        found = {}
        for number in (2, 3):
            clock.advance(MINUTE)
            ManualBeat(dynbeat).run_until_idle()
            clock.advance(MINUTE)
            for run in mine.runs("n"):
                found[number, run.id] = mine.run_arguments(run.id)
            mine.update("n", args=[number])

    first, *_, last = found.values()
    assert first == RunArguments(args=[1], kwargs={})
    assert last.unknown is not None


@pytest.mark.usefixtures("schedule")
def test_arguments_of_a_schedule_that_replaced_another_without_audit_are_not_taken(
    database_url, mine, clock, fire, arguments
):
    run_id = fire()
    with application(database_url, clock=clock, audit=False) as unaudited:
        others = unaudited.schedules.for_owner(mine.owner)
        others.delete("n")
        others.create("n", task="t", trigger=MINUTELY, **OTHER)
    clock.advance(MINUTE)
    mine.delete("n")

    assert arguments(run_id).unknown is not None


@one_database
@pytest.mark.usefixtures("schedule")
def test_the_arguments_of_a_run_are_for_its_owner_only(dynbeat, fire):
    run_id = fire()

    assert dynbeat.schedules.run_arguments(run_id) == FIRST
    assert FIRST.to_dict() == {"args": FIRST.args, "kwargs": FIRST.kwargs, "unknown": None}
    with pytest.raises(RunNotFoundError):
        dynbeat.schedules.for_owner("user:7").run_arguments(run_id)
