"""A hand-written loop: sleep until the next fire time, claim, publish.

It is a process of its own, with the statements of F2 and the producer of F1. It plans by a table of
intervals, writes no confirms, and receives no notifications.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

from benchmarks.floors.claiming import Claimer, Due, claimer
from benchmarks.floors.publishing import Sender, sender
from benchmarks.loads import period
from benchmarks.services import Site

AGAINST = "bare loop"
#: The longest sleep, so that the loop detects its end soon.
PAUSE = timedelta(milliseconds=200)


@contextmanager
def started(site: Site, *, end: datetime) -> Iterator["Future[list[float]]"]:
    """Yield the future lags in seconds of the steady load on ``site``, which ends at ``end``.

    PostgreSQL only.
    """
    # Not forked: this process has connections, and a thread of the progress bar.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        yield pool.submit(run, site.database_url, site.broker_url, end)


def run(database_url: str, broker_url: str, end: datetime) -> list[float]:
    """Run until ``end`` and until nothing is due; return the lags."""

    def next_fire(row: Due) -> datetime | None:
        step = period(row.trigger_kind, row.trigger_spec)
        following = None if step is None else row.next_fire_at + step
        return following if following is not None and following < end else None

    with claimer(database_url, next_fire) as rows, sender(broker_url) as messages:
        lags: list[float] = []
        while (earliest := rows.earliest()) is not None:
            pause = min(earliest - datetime.now(UTC), PAUSE)
            if pause > timedelta(0):
                time.sleep(pause.total_seconds())
            else:
                lags += _fire(rows, messages)
        return lags


def _fire(rows: Claimer, messages: Sender) -> list[float]:
    taken = rows.claim(datetime.now(UTC))
    messages.send(each.message for each in taken)
    sent_at = datetime.now(UTC)
    return [(sent_at - each.scheduled_for).total_seconds() for each in taken]
