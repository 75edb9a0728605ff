"""A JSON record that a task logs names the run that executes it."""

import json
import logging

import pytest
from celery.utils.log import get_task_logger

from celery_dynbeat import JsonFormatter
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY


@pytest.fixture
def database_url(sqlite_url):
    return sqlite_url


@pytest.fixture
def lines():
    """Return the lines of loggers below "tests.run_in_log", parsed."""
    parsed = []

    class Lines(logging.Handler):
        def emit(self, record):
            parsed.append(json.loads(self.format(record)))

    handler, logger = Lines(), logging.getLogger("tests.run_in_log")
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield parsed
    logger.removeHandler(handler)


@pytest.fixture
def beat(dynbeat):
    return ManualBeat(dynbeat, run_tasks=True)


def run_fields(line):
    return {key: line.get(key) for key in ("owner", "schedule", "run_id", "attempt", "task")}


def test_a_record_within_a_task_has_the_run(dynbeat, beat, mine, lines):
    logger = logging.getLogger("tests.run_in_log")

    def subtask():
        logger.info("of the caller's run")

    def body(self):
        logger.info("starts", extra={"owner": "forged"})
        sub()
        if not self.request.retries:
            raise self.retry(countdown=0)

    sub = dynbeat.app.task(name="sub", shared=False)(subtask)
    dynbeat.app.task(name="t", shared=False, bind=True)(body)
    mine.create("digest", task="t", trigger=MINUTELY)
    run = mine.run_now("digest")
    logger.info("outside")
    beat.run_until_idle()

    outside, *inside = lines
    assert not any(run_fields(outside).values())
    named = {"owner": "user:42", "schedule": "digest", "run_id": run.id, "task": "t"}
    assert [run_fields(line) for line in inside] == [
        {**named, "attempt": attempt} for attempt in (1, 1, 2, 2)
    ]
    assert {line["task_id"] for line in inside} == {run.id}
    assert inside[0]["extra"] == {"owner": "forged"}


def test_a_task_that_no_schedule_sent_has_no_run(dynbeat, lines):
    logger = get_task_logger("tests.run_in_log.tasks")

    def body():
        logger.info("x")

    parent, logger.parent = logger.parent, logging.getLogger("tests.run_in_log")
    try:
        task = dynbeat.app.task(name="t", shared=False)(body)
        result = task.apply()
    finally:
        logger.parent = parent

    (line,) = lines
    assert (line["task"], line["task_id"]) == ("t", result.id)
    assert not {"owner", "schedule", "run_id", "attempt"} & set(line)
