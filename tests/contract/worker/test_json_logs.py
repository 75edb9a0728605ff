"""The JSON recipe of docs/reference/logging.md: records keep their fields and name their run."""

import json
import logging
import re
from io import StringIO

import pytest
from celery.signals import after_setup_logger, after_setup_task_logger

from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY
from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "logging.md"
(RECIPE,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SECRET = "4111-1111-of-a-card"


@pytest.fixture
def recipe():
    names = {}
    exec(RECIPE, names)  # noqa: S102 - our own page
    yield names
    for signal in (after_setup_logger, after_setup_task_logger):
        assert signal.disconnect(names["write_json"])


@pytest.fixture
def lines(recipe):
    """Return a function that parses the lines which the root logger has written."""
    stream, root = StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    # Celery sends this after it has created its handlers.
    others = {each: each.formatter for each in root.handlers}
    after_setup_logger.send(sender=None, logger=root)
    assert type(handler.formatter) is recipe["JsonFormatter"]
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for each, formatter in others.items():
        each.setFormatter(formatter)
    root.removeHandler(handler)
    root.setLevel(level)


def test_records_keep_their_fields_and_name_their_run(dynbeat, mine, lines):
    logger = logging.getLogger("tests.json_logs")

    def body(self, card):
        logger.info("one\ntwo", extra={"schedule": "own field", "total": 3})
        if not self.request.retries:
            raise self.retry(countdown=0)
        return card

    dynbeat.app.task(name="t", shared=False, bind=True)(body)
    mine.create("digest", task="t", trigger=MINUTELY, kwargs={"card": SECRET})
    run = mine.run_now("digest")
    logger.info("outside")
    ManualBeat(dynbeat, run_tasks=True).run_until_idle()

    (outside,) = [each for each in lines() if each["message"] == "outside"]
    assert "run_id" not in outside
    inside = [each for each in lines() if each["message"] == "one\ntwo"]
    assert [(each["run_id"], each["attempt"]) for each in inside] == [(run.id, 1), (run.id, 2)]
    assert {(each["owner"], each["schedule"], each["total"]) for each in inside} == {
        ("user:42", "own field", 3)
    }
    (event,) = [each for each in lines() if each.get("event") == "runs_republished"]
    assert event["logger"] == "celery_dynbeat.events"
    assert [sent["run_id"] for sent in event["runs"]] == [run.id]


def test_the_data_of_celerys_records_is_not_written(recipe):
    record = logging.makeLogRecord({"msg": "done", "data": {"kwargs": SECRET}, "total": 3})
    line = recipe["JsonFormatter"]().format(record)
    assert SECRET not in line
    assert json.loads(line)["total"] == 3


def test_an_exception_is_written_with_its_traceback(lines):
    try:
        int(SECRET)
    except ValueError:
        logging.getLogger("tests.json_logs").exception("failed")
    (line,) = lines()
    assert line["exception"].splitlines()[-1].startswith("ValueError: invalid literal")
