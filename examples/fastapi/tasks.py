"""The Celery application: its tasks, and its schedules in a database.

    celery -A tasks dynbeat schema upgrade
    celery -A tasks worker
    celery -A tasks beat

The defaults need no server. For PostgreSQL and Redis set
DYNBEAT_DEMO_DATABASE_URL=postgresql+psycopg://... and DYNBEAT_DEMO_BROKER_URL=redis://...
"""

import os

from celery import Celery

from celery_dynbeat import Dynbeat, OwnerLimits

DATABASE_URL = os.environ.get("DYNBEAT_DEMO_DATABASE_URL", "sqlite:///app.sqlite3")
#: Schedules of one user.
MAX_SCHEDULES = 10

app = Celery("tasks")
app.conf.update(
    broker_url=os.environ.get("DYNBEAT_DEMO_BROKER_URL", "sqla+sqlite:///broker.sqlite3"),
    broker_connection_retry_on_startup=True,
    beat_scheduler="dynbeat",
    dynbeat_database_url=DATABASE_URL,
    dynbeat_owner_limits=OwnerLimits(max_schedules=MAX_SCHEDULES),
    # SQLite and its broker cannot notify beat of a change, so beat polls twice a second.
    dynbeat_poll_interval=0.5,
)
dynbeat = Dynbeat(app)


@app.task
def remind(user: str, text: str) -> str:
    """Pretend to send a message to ``user``."""
    return f"{user}: {text}"


@app.task
def send_report(user: str, text: str) -> str:
    """Pretend to write a report and to send it."""
    return f"report {text!r} for {user}"
