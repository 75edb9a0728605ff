"""A minimal scheduling loop: sleep until the next fire time, claim, publish.

The loop runs in a separate process, with the statements of F2 and the producer of F1. It adds a
fixed interval to each fire time, confirms no run, and listens for no notification.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

from benchmarks.baselines.claiming import Claimer, DueRow, claimer
from benchmarks.baselines.publishing import Sender, sender
from benchmarks.services import Site
from benchmarks.workloads import period

NAME = "bare loop"
#: The longest sleep, so that the loop ends soon after the load.
MAX_SLEEP = timedelta(milliseconds=200)


@contextmanager
def started(site: Site, *, end: datetime) -> Iterator["Future[list[float]]"]:
    """Run the loop on the steady load of ``site`` and yield the future of its lags in seconds.

    The load ends at ``end``. PostgreSQL only.
    """
    # Spawn, because this process has connections and the threads of a progress bar.
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        yield pool.submit(run, site.database_url, site.broker_url, end)


def run(database_url: str, broker_url: str, end: datetime) -> list[float]:
    """Fire until no fire time before ``end`` is left; return the lags."""

    def next_fire(row: DueRow) -> datetime | None:
        interval = period(row.trigger_kind, row.trigger_spec)
        following = None if interval is None else row.next_fire_at + interval
        return following if following is not None and following < end else None

    with claimer(database_url, next_fire) as rows, sender(broker_url) as messages:
        lags: list[float] = []
        while (earliest := rows.earliest()) is not None:
            sleep = min(earliest - datetime.now(UTC), MAX_SLEEP)
            if sleep > timedelta(0):
                time.sleep(sleep.total_seconds())
            else:
                lags += _fire(rows, messages)
        return lags


def _fire(rows: Claimer, messages: Sender) -> list[float]:
    runs = rows.claim(datetime.now(UTC))
    messages.send(run.message for run in runs)
    sent_at = datetime.now(UTC)
    return [(sent_at - run.fire_at).total_seconds() for run in runs]
