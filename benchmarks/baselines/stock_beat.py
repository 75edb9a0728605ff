"""F5: measure the memory of stock ``celery beat`` with one entry, and the time to its message."""

import time
from dataclasses import dataclass

from benchmarks.message_receiver import message_receiver
from benchmarks.processes import command
from benchmarks.services import Site

NAME = "stock beat"
QUEUE = "stock"
START_TIMEOUT = 60.0
#: After this time, beat frees and loads no more memory for the first message.
SETTLE_SECONDS = 1.0
DAY = 86_400


@dataclass(frozen=True, slots=True)
class StockBeat:
    """One start: the memory after the first message, and the time from exec to its arrival."""

    rss_bytes: int
    started_in_seconds: float


def measure(site: Site) -> StockBeat:
    """Start stock beat with one entry that is due at once, then stop it. Redis only.

    Its message goes to a separate queue, which is empty afterwards.
    """
    entry = {"task": "noop", "schedule": DAY, "options": {"queue": QUEUE}}
    config = {"broker_url": site.broker_url, "plain": True, "beat_schedule": {"one": entry}}
    with (
        message_receiver(site.broker_url, queue=QUEUE) as arrived,
        command("beat", "-l", "INFO", config=config) as process,
    ):
        seconds = arrived.wait(within=START_TIMEOUT) - process.started
        time.sleep(SETTLE_SECONDS)
        assert not arrived.count(), "stock beat sent its one entry more than once"
        return StockBeat(process.usage().rss_bytes, seconds)
