"""Whatever the headers of a message hold, the guard decides at once and never sends a copy."""

import json
import logging
import random

import pytest
from celery.app.task import Context
from celery.exceptions import Ignore

from celery_dynbeat import broker
from celery_dynbeat.broker import run_headers
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import DeferredMessage, TaskGuard
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database

NODE = "w1@test"
MAX_LINE = 2_000
NAMES = sorted(value for name, value in vars(broker).items() if name.startswith("HEADER_"))
#: Headers that the guard reads, and those that become attributes of the request.
HEADERS = sorted({*NAMES, "headers", "retries"} - {broker.HEADER_RUN_ID})
VALUES = [
    *(None, True, False, 0, -1, 1, 2, 2**31 - 1, 2**31, 2**63, 2**70, -(2**70), 0.5, 1e308),
    *("", "1", "0", "x" * 1_000_000, "\x00", "\ud800", "a\nb", "9999-99-99", "2026-01-01"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00+00:00"),
    *([], [1], ["9999-99-99"], {}, {"a": 1}, [[[]]], {"dynbeat_attempt": 0}),
]
MESSAGES_PER_STATE = 150


@pytest.fixture
def deliver(dynbeat, caplog):
    """Return a function that delivers a message of a new run to the guard."""
    caplog.set_level(logging.INFO)
    starts = []
    app = dynbeat.context.app

    def body():
        starts.append(1)

    task = app.task(body, name="t", shared=False)
    outcomes = OutcomeSignals(dynbeat.context, NODE)
    TaskGuard(dynbeat.context, NODE, outcomes).wrap(task)

    def deliver(outgoing, forged, *, redelivered):
        caplog.clear()
        starts.clear()
        written = {**run_headers(outgoing), **forged}
        request = Context(
            # As a JSON message brings them.
            json.loads(json.dumps({"retries": 0, "headers": written, **written})),
            id=outgoing.run_id,
            args=[],
            kwargs={},
            called_directly=False,
            delivery_info={"redelivered": redelivered},
        )
        task.request_stack.push(request)
        try:
            task.run()
        except DeferredMessage:
            pytest.fail(f"the guard sent a copy of {forged}")
        except Ignore:
            pass
        finally:
            task.request_stack.pop()
        lines = [each for each in caplog.records if each.name.startswith("celery_dynbeat.")]
        assert len(lines) <= 1, lines
        assert all(len(line.getMessage()) <= MAX_LINE for line in lines)
        assert all(len(str(vars(line))) <= 2 * MAX_LINE for line in lines)
        return len(starts)

    return deliver


@pytest.mark.parametrize("state", ["running", "succeeded", "unknown"])
@each_database
def test_random_values(dynbeat, mine, beat, deliver, state):
    mine.create("n", task="t", trigger=MINUTELY)
    mine.run_now("n")
    beat.run_until_idle()
    (outgoing,) = beat.publisher.sent
    if state == "unknown":
        execute(dynbeat, "DELETE FROM dynbeat_run")
    chance = random.Random(state)  # noqa: S311 - repeatable values, no secret
    for _ in range(MESSAGES_PER_STATE):
        finished_at = "fire_at" if state == "succeeded" else "NULL"
        execute(
            dynbeat,
            f"UPDATE dynbeat_run SET status = :state, attempt = 1, retries = 0, overdue_at = NULL,"
            f" worker = '{NODE}', worker_pid = 1, finished_at = {finished_at}",
            state=state,
        )
        forged = {name: chance.choice(VALUES) for name in chance.sample(HEADERS, 3)}

        starts = deliver(outgoing, forged, redelivered=chance.choice([True, False]))

        # With other "headers" the message is that of a plain task. A count of retries is a retry.
        assert starts == 0 or state == "running" or "headers" in forged, forged
