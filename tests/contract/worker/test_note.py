"""The note that a task keeps on its run, by ``note()``."""

from datetime import timedelta

import pytest
from celery.app.task import Context

from celery_dynbeat import SkipRun, note
from celery_dynbeat.common.states import Status
from celery_dynbeat.store.runs import attempts
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.worker import note_of
from tests.support.applications import MINUTELY

MINUTE = timedelta(minutes=1)


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, run_tasks=True)


@pytest.fixture
def execute_task(dynbeat, beat, clock, mine):
    """Return a function that executes the body of a task as one run, and returns the run."""

    def execute_task(body, passes=1, **options):
        dynbeat.app.task(name="t", shared=False, **options)(body)
        mine.create("n", task="t", trigger=MINUTELY)
        run = mine.run_now("n")
        mine.pause("n")
        for _ in range(passes):
            beat.run_until_idle()
            clock.advance(MINUTE)
        return mine.get_run(run.id)

    return execute_task


def test_the_run_has_the_last_note(execute_task):
    def body():
        note("12 mails")
        note("13 mails, é 🐝")

    run = execute_task(body)

    assert (run.status, run.note, run.error) == ("succeeded", "13 mails, é 🐝", None)


@pytest.mark.parametrize(
    ("text", "stored"), [("x" * 501, "x" * 497 + "..."), ("a\x00b\ud800", "a\\x00b\\ud800")]
)
def test_a_note_is_cut_and_made_storable(text, stored, execute_task):
    def body():
        note(text)

    run = execute_task(body)

    assert run.note[:490] == stored[:490]
    assert len(run.note) <= 500


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "failed"), (SkipRun("no mail"), "skipped")]
)
def test_an_attempt_that_does_not_succeed_keeps_its_note(error, status, execute_task):
    def body():
        note("3 of 5")
        raise error

    run = execute_task(body)

    assert (run.status, run.note) == (status, "3 of 5")


@pytest.mark.parametrize(("last", "stored"), [("done", "done"), (None, "3 of 5")])
def test_a_retry_replaces_the_note_if_it_notes_something(last, stored, execute_task):
    def body(task):
        if not task.request.retries:
            note("3 of 5")
            raise task.retry(countdown=1)
        if last:
            note(last)

    run = execute_task(body, passes=2, bind=True)

    assert (run.status, run.attempt, run.note) == ("succeeded", 2, stored)


def test_outside_of_a_run_it_does_nothing(dynbeat, mine):
    note("outside of a task")

    @dynbeat.app.task(name="plain", shared=False)
    def plain():
        note("in a task that no schedule sent")

    assert plain.apply().state == "SUCCESS"
    assert not mine.runs()


def test_a_header_of_a_message_is_no_note():
    assert note_of(Context({"dynbeat_note": "forged", "headers": {}})) is None


def test_each_kind_of_end_is_one_statement_that_keeps_a_note(clock):
    end = {"run_id": "r", "attempt": 1, "worker": "w", "at": clock.now()}
    end["status"] = Status.SUCCEEDED

    plain, values = attempts.finishing(attempts.AttemptEnd(**end))
    noted, _ = attempts.finishing(attempts.AttemptEnd(**end, note="a"))

    assert plain is noted
    assert values["said"] is None
    assert "note=coalesce(:said, dynbeat_run.note)" in str(plain)


def test_the_note_is_in_the_export_and_not_in_the_events(mine, execute_task, caplog):
    def body():
        note("secret-12")

    execute_task(body)

    (line,) = [each for each in mine.export() if each["record"] == "run"]
    assert line["note"] == "secret-12"
    assert "secret-12" not in caplog.text
