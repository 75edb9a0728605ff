"""The Celery application of the Flower demo. ``DYNBEAT_DEMO_FOLDER`` is where it keeps its files.

The broker is kombu's filesystem transport, made safe for several processes (``atomic_files``).
Unlike kombu's SQLAlchemy transport, it has fanout exchanges. Flower needs them: events and remote
control use them.
"""

import os
import random
import time
from pathlib import Path

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from celery_dynbeat import Dynbeat

#: The part of the slow requests that time out.
TIMEOUTS = 0.3

folder = Path(os.environ["DYNBEAT_DEMO_FOLDER"])
messages, control = folder / "messages", folder / "control"
messages.mkdir(exist_ok=True)

TRANSPORT_ALIASES["atomicfiles"] = "atomic_files:Transport"

app = Celery("tasks")
app.conf.update(
    broker_url=os.environ.get("DYNBEAT_DEMO_BROKER_URL", "atomicfiles://"),
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
    beat_scheduler="celery_dynbeat:DatabaseScheduler",
    dynbeat_database_url=os.environ.get(
        "DYNBEAT_DEMO_DATABASE_URL", f"sqlite:///{folder}/schedules.sqlite3"
    ),
    # SQLite and this broker cannot notify beat of a change, so beat polls twice a second.
    dynbeat_poll_interval=0.5,
)
if app.conf.broker_url.startswith("atomicfiles:"):
    app.conf.broker_transport_options = {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        "polling_interval": 0.1,
    }
dynbeat = Dynbeat(app)


@app.task(name="mail.send_digest")
def send_digest(user_id: int) -> str:
    """Pretend to send an e-mail."""
    time.sleep(random.uniform(0.05, 0.4))  # noqa: S311 - a duration
    return f"digest for {user_id}"


@app.task(name="calendar.sync")
def sync_calendar(user_id: int) -> str:
    """Pretend to copy a calendar."""
    time.sleep(random.uniform(0.2, 2))  # noqa: S311 - a duration
    return f"calendar of {user_id}"


@app.task(name="report.build")
def build_report(kind: str, seconds: float = 3) -> str:
    """Pretend to build a report."""
    time.sleep(seconds)
    return kind


@app.task(name="feed.fetch")
def fetch_feed(url: str) -> None:
    """Fail like an unreachable host."""
    raise ConnectionError(f"{url} does not answer")


@app.task(name="feed.fetch_slowly", autoretry_for=(TimeoutError,), max_retries=3)
def fetch_slowly(url: str) -> str:
    """Time out now and then, so that the task is retried."""
    if random.random() < TIMEOUTS:  # noqa: S311 - not a secret
        raise TimeoutError(f"{url} did not answer in time")
    return url
