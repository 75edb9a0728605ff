"""The application of the load run. Its task does nothing, so that only beat is measured."""

import os

from celery import Celery

from celery_dynbeat import Dynbeat

app = Celery("load")
app.conf.update(
    broker_url=os.environ.get("DYNBEAT_DEMO_BROKER_URL", "sqla+sqlite:///broker.sqlite3"),
    broker_connection_retry_on_startup=True,
    # A separate queue, because the load run purges it.
    task_default_queue="dynbeat-load",
    task_ignore_result=True,
    worker_prefetch_multiplier=16,
    beat_scheduler="celery_dynbeat:DatabaseScheduler",
    dynbeat_database_url=os.environ.get("DYNBEAT_DEMO_DATABASE_URL", "sqlite:///schedules.sqlite3"),
)
dynbeat = Dynbeat(app)


@app.task
def touch(user: str) -> None:
    """Do nothing for ``user``."""
    del user
