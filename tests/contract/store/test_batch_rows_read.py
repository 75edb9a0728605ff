"""The runs of a batch that wait for the run before them add little to what a pass reads."""

from datetime import timedelta

import pytest

from celery_dynbeat import Cron
from celery_dynbeat.testing import FrozenClock, ManualBeat
from tests.support.applications import START, application
from tests.support.ended_runs import end_all
from tests.support.executed_statements import record_statements

SIZE, FEW = 1_000, 100
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_previous"])
def test_a_pass_reads_no_run_that_waits_behind_the_one_that_was_sent(request, kind, overlap):
    clock = FrozenClock(START)
    with application(request.getfixturevalue(f"{kind}_url"), clock=clock) as dynbeat:
        dynbeat.context.prepare()
        mine, beat = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat)
        mine.create("n", task="t", trigger=Cron("* * * * *", timezone="UTC"), overlap=overlap)
        mine.pause("n")
        batch = mine.backfill("n", since=START - SIZE * MINUTE, until=START, per_minute=10_000)
        # Each run has its turn, and beat has asked it. Only the next one is asked each second.
        for _ in range(9):
            beat.run_until_idle()
            clock.advance(SECOND)

        for _ in range(2):
            clock.advance(2 * SECOND)
            with record_statements(dynbeat.context.database.engine) as statements:
                beat.run_until_idle()
            assert any("waited_for" in each.sql for each in statements)
            assert sum(each.rows for each in statements) < FEW
        end_all(dynbeat, beat.publisher.sent, "succeeded")
        clock.advance(2 * SECOND)
        beat.run_until_idle()

        assert mine.get_batch(batch.batch_id).counts == {
            "pending": SIZE - 2,
            "sent": 1,
            "succeeded": 1,
        }
