"""The application of the load run: one task that does nothing, so that what is measured is beat."""

import os

from celery import Celery

from celery_dynbeat import Dynbeat

app = Celery("load")
app.conf.update(
    broker_url=os.environ.get("DYNBEAT_DEMO_BROKER_URL", "sqla+sqlite:///broker.sqlite3"),
    broker_connection_retry_on_startup=True,
    # A queue of its own, which can be emptied without harm.
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
