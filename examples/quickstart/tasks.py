"""A Celery application with its schedules in a database. This file is the whole application.

    celery -A tasks dynbeat schema upgrade     (on SQLite, at the first use)
    celery -A tasks worker
    celery -A tasks beat                       (any number)

The defaults need no server. For PostgreSQL and Redis set
DYNBEAT_DEMO_DATABASE_URL=postgresql+psycopg://... and DYNBEAT_DEMO_BROKER_URL=redis://...
"""

import os

from celery import Celery

from celery_dynbeat import Dynbeat

app = Celery("tasks")
app.conf.update(
    broker_url=os.environ.get("DYNBEAT_DEMO_BROKER_URL", "sqla+sqlite:///broker.sqlite3"),
    broker_connection_retry_on_startup=True,
    beat_scheduler="celery_dynbeat:DatabaseScheduler",
    dynbeat_database_url=os.environ.get("DYNBEAT_DEMO_DATABASE_URL", "sqlite:///schedules.sqlite3"),
    # SQLite and its broker cannot notify beat of a change, so beat polls twice a second.
    dynbeat_poll_interval=0.5,
)
dynbeat = Dynbeat(app)


@app.task
def send_digest(user: str) -> str:
    """Pretend to send an e-mail."""
    return f"digest for {user}"


@app.task
def remind(user: str, text: str) -> str:
    """Pretend to send a reminder to ``user``."""
    return f"{user}: {text}"


@app.task
def fetch_feed(url: str) -> None:
    """Fail like an unreachable host."""
    raise ConnectionError(f"{url} does not answer")
