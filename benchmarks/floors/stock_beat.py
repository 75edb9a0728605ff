"""F5: the memory of stock ``celery beat`` with one entry, and the time to its first message."""

import time
from dataclasses import dataclass

from benchmarks.arrivals import arrivals
from benchmarks.processes import command
from benchmarks.services import Site

AGAINST = "stock beat"
QUEUE = "stock"
STARTS_WITHIN = 60.0
#: Seconds after the first message until the memory is stable.
SETTLES_AFTER = 1.0
DAY = 86_400


@dataclass(frozen=True, slots=True)
class StockBeat:
    """One start: the memory after the first message, and the time from exec to its arrival."""

    rss_bytes: int
    started_in_seconds: float


def measure(site: Site) -> StockBeat:
    """Start stock beat with one entry that is due at once, and stop it. Redis only.

    Its message goes to a queue of its own and is consumed.
    """
    entry = {"task": "noop", "schedule": DAY, "options": {"queue": QUEUE}}
    config = {"broker_url": site.broker_url, "plain": True, "beat_schedule": {"one": entry}}
    with (
        arrivals(site.broker_url, queue=QUEUE) as arrived,
        command("beat", "-l", "INFO", config=config) as process,
    ):
        seconds = arrived.wait(within=STARTS_WITHIN) - process.started
        time.sleep(SETTLES_AFTER)
        assert not arrived.count(), "stock beat sent its one entry more than once"
        return StockBeat(process.usage().rss_bytes, seconds)
