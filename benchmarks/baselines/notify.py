"""F3: time NOTIFY to LISTEN and back between two processes that use only psycopg."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psycopg
from sqlalchemy import make_url

from benchmarks.services import Site

NAME = "NOTIFY to LISTEN and back"
REQUEST, REPLY = "benchmark_request", "benchmark_reply"
LAST = "last"
REPLY_TIMEOUT = 30.0


def measure(site: Site, *, count: int, pause: float = 0.0) -> Sequence[float]:
    """Return the seconds of ``count`` sequential round trips. PostgreSQL only.

    Both processes are idle for ``pause`` seconds before each.
    """
    url = make_url(site.database_url).set(drivername="postgresql")
    conninfo = url.render_as_string(hide_password=False)
    # Spawn, because this process has connections and the threads of a progress bar.
    with (
        ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        connection.execute(f"LISTEN {REPLY}")
        other = pool.submit(reply, conninfo)
        # The other process sends one notification when it listens.
        _wait(connection)
        trips = []
        for _ in range(count):
            time.sleep(pause)
            trips.append(_round_trip(connection))
        connection.execute(f"NOTIFY {REQUEST}, '{LAST}'")
        other.result(REPLY_TIMEOUT)
        return trips


def reply(conninfo: str) -> None:
    """Reply to each notification until the last."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"LISTEN {REQUEST}")
        connection.execute(f"NOTIFY {REPLY}")
        while _wait(connection) != LAST:
            connection.execute(f"NOTIFY {REPLY}")


def _round_trip(connection: "psycopg.Connection") -> float:
    started_at = time.perf_counter()
    connection.execute(f"NOTIFY {REQUEST}")
    _wait(connection)
    return time.perf_counter() - started_at


def _wait(connection: "psycopg.Connection") -> str:
    """Return the payload of the next notification."""
    for notification in connection.notifies(timeout=REPLY_TIMEOUT, stop_after=1):
        return notification.payload
    raise AssertionError(f"no notification within {REPLY_TIMEOUT:g} s")
