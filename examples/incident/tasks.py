"""A Celery application with five schedules that do not run as planned, each for another reason."""

import time
from pathlib import Path

from celery import Celery

from celery_dynbeat import Dynbeat

#: While this file exists, the CRM does not answer.
CRM_IS_DOWN = Path("crm-is-down")

app = Celery("tasks")
app.conf.update(
    broker_url="sqla+sqlite:///broker.sqlite3",
    broker_connection_retry_on_startup=True,
    beat_scheduler="dynbeat",
    task_routes={"tasks.report": "reports"},
    # SQLite and its broker cannot notify beat of a change, so beat polls twice a second.
    dynbeat_poll_interval=0.5,
    result_expires=None,
)
dynbeat = Dynbeat(app)


@app.task
def report() -> None:
    """Pretend to write a report."""


@app.task
def sync() -> None:
    """Fail while the CRM is down."""
    if CRM_IS_DOWN.exists():
        raise ConnectionError("crm.example does not answer")


@app.task
def load() -> None:
    """Take longer than the interval of the schedule."""
    time.sleep(300)


@app.task
def digest() -> None:
    """Pretend to send an e-mail."""


@app.task
def clean() -> None:
    """Pretend to delete old files."""
