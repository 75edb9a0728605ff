"""F5: measure a start of stock ``celery beat`` with one entry: time, processor time, memory.

With LIBRARIES, it imports what a beat with a SQL database cannot do without.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.message_receiver import QUEUE as DEFAULT_QUEUE
from benchmarks.message_receiver import message_receiver
from benchmarks.processes import Process, command
from benchmarks.services import Site

NAME = "stock beat"
NAME_WITH_LIBRARIES = "stock beat that imports SQLAlchemy's ORM and psycopg"
LIBRARIES = ("sqlalchemy.orm", "psycopg", "sqlalchemy.dialects.postgresql.psycopg")
QUEUE = "stock"
START_TIMEOUT = 60.0
#: After this time, beat frees and loads no more memory for the first message.
SETTLE_SECONDS = 1.0
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a beat: the time from exec to the arrival of its message.

    Processor time and memory are those SETTLE_SECONDS later: a thread that the beat starts may do
    its work before or after the message.
    """

    started_in_seconds: float
    cpu_seconds: float
    rss_bytes: int


def measure(site: Site, *, libraries: Sequence[str] = ()) -> Start:
    """Start stock beat with one entry that is due at once, then stop it. Redis only.

    It also imports ``libraries``. Its message goes to a separate queue, which is empty afterwards.
    """
    entry = {"task": "noop", "schedule": DAY, "options": {"queue": QUEUE}}
    config: dict[str, Any] = {
        "broker_url": site.broker_url,
        "beat_schedule": {"one": entry},
        "plain": True,
        "libraries": libraries,
    }
    return measure_start(command("beat", "-l", "INFO", config=config), site=site, queue=QUEUE)


def measure_start(
    starting: AbstractContextManager[Process], *, site: Site, queue: str = DEFAULT_QUEUE
) -> Start:
    """Start a beat that sends one message to ``queue``, then stop the beat."""
    with message_receiver(site.broker_url, queue=queue) as messages:
        with starting as process:
            seconds = messages.wait(within=START_TIMEOUT) - process.started
            time.sleep(SETTLE_SECONDS)
            assert not messages.count(), f"more than one message\n{process.report()}"
            usage = process.usage()
        return Start(seconds, usage.cpu_seconds, usage.rss_bytes)
