"""The guard publishes a copy of a deferred message, also for a task with its own apply_async."""

import pytest
from celery import Celery
from celery.app.task import Task
from celery.exceptions import Ignore

from celery_dynbeat import Dynbeat
from celery_dynbeat.broker import (
    HEADER_ATTEMPT,
    HEADER_DEFERRALS,
    HEADER_OWNER,
    HEADER_RUN_ID,
    HEADER_SCHEDULE,
)
from celery_dynbeat.worker.signal_handlers import OutcomeSignals
from celery_dynbeat.worker.task_guard import TaskGuard

RUN_ID = "019e0000-0000-7000-8000-000000000001"


class Silent(Task):
    def apply_async(self, *_args, **_options):
        return None


@pytest.fixture
def app(tmp_path):
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.dynbeat_database_url = f"sqlite:///{tmp_path}/no-such-folder/schedules.sqlite3"

    @app.task(name="silent", base=Silent, shared=False)
    def silent():
        pytest.fail("the guard started a run without a decision")

    app.finalize()
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("celery")
    yield app
    app.close()


def test_a_copy_does_not_depend_on_the_tasks_own_apply_async(app):
    context = Dynbeat(app).context
    task = app.tasks["silent"]
    TaskGuard(context, "w1@test", OutcomeSignals(context, "w1@test")).wrap(task)
    task.push_request(
        id=RUN_ID,
        args=[],
        kwargs={},
        called_directly=False,
        headers={HEADER_RUN_ID: RUN_ID, HEADER_ATTEMPT: 0},
        delivery_info={"exchange": "", "routing_key": "celery", "priority": 0},
    )

    with pytest.raises(Ignore, match="deferred"):
        task.run()

    with app.connection_for_read() as connection:
        message = connection.default_channel.basic_get("celery", no_ack=True)
    assert message.headers["id"] == message.headers[HEADER_RUN_ID] == RUN_ID
    assert message.headers["eta"] is not None
    context.database.dispose()


def test_the_log_names_the_deferred_run_and_its_schedule(app, caplog):
    context = Dynbeat(app).context
    task = app.tasks["silent"]
    TaskGuard(context, "w1@test", OutcomeSignals(context, "w1@test")).wrap(task)
    names = {HEADER_OWNER: "user:42", HEADER_SCHEDULE: "digest"}
    task.push_request(
        id=RUN_ID,
        args=[],
        kwargs={},
        called_directly=False,
        headers={HEADER_RUN_ID: RUN_ID, HEADER_ATTEMPT: 1, **names},
        delivery_info={"exchange": "", "routing_key": "celery", "priority": 0},
    )

    with pytest.raises(Ignore, match="deferred"):
        task.run()

    records = [record for record in caplog.records if hasattr(record, "event")]
    assert [record.event for record in records] == ["outcome_buffered", "run_deferred"]
    for record in records:
        named = (record.owner, record.schedule, record.run_id, record.attempt)
        assert named == ("user:42", "digest", RUN_ID, 2)
    context.database.dispose()


def test_a_message_is_not_deferred_longer_than_beat_waits_to_resend_its_run(app, caplog):
    context = Dynbeat(app).context
    task = app.tasks["silent"]
    TaskGuard(context, "w1@test", OutcomeSignals(context, "w1@test")).wrap(task)
    # 360 times 10 seconds are dynbeat_resend_after.
    for deferrals, reason in ((359, "deferred"), (360, "deferred for too long")):
        task.push_request(
            id=RUN_ID,
            args=[],
            kwargs={},
            called_directly=False,
            headers={HEADER_RUN_ID: RUN_ID, HEADER_ATTEMPT: 0, HEADER_DEFERRALS: deferrals},
            delivery_info={"exchange": "", "routing_key": "celery", "priority": 0},
        )

        with pytest.raises(Ignore, match=reason):
            task.run()
        task.pop_request()

    with app.connection_for_read() as connection:
        copies = list(
            iter(lambda: connection.default_channel.basic_get("celery", no_ack=True), None)
        )
    assert [copy.headers[HEADER_DEFERRALS] for copy in copies] == [360]
    assert [record.levelname for record in caplog.records][-1] == "ERROR"
    context.database.dispose()
