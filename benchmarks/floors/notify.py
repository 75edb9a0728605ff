"""F3: NOTIFY to LISTEN and back, between two processes with nothing but psycopg."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psycopg
from sqlalchemy import make_url

from benchmarks.services import Site

AGAINST = "NOTIFY to LISTEN and back"
THERE, BACK = "benchmark_there", "benchmark_back"
LAST = "last"
ANSWERS_WITHIN = 30.0


def measure(site: Site, *, count: int, pause: float = 0.0) -> Sequence[float]:
    """Return the seconds of ``count`` round trips, one after the other. PostgreSQL only.

    ``pause`` is how long (seconds) both sides are idle before each.
    """
    url = make_url(site.database_url).set(drivername="postgresql")
    address = url.render_as_string(hide_password=False)
    # Not forked: this process has connections, and a thread of the progress bar.
    with (
        ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        connection.execute(f"LISTEN {BACK}")
        other = pool.submit(answer, address)
        # The other process sends one notification when it listens.
        _wait(connection)
        trips = []
        for _ in range(count):
            time.sleep(pause)
            trips.append(_round_trip(connection))
        connection.execute(f"NOTIFY {THERE}, '{LAST}'")
        other.result(ANSWERS_WITHIN)
        return trips


def answer(address: str) -> None:
    """Answer each notification with another one, until the last."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"LISTEN {THERE}")
        connection.execute(f"NOTIFY {BACK}")
        while _wait(connection) != LAST:
            connection.execute(f"NOTIFY {BACK}")


def _round_trip(connection: "psycopg.Connection") -> float:
    began = time.perf_counter()
    connection.execute(f"NOTIFY {THERE}")
    _wait(connection)
    return time.perf_counter() - began


def _wait(connection: "psycopg.Connection") -> str:
    """Return the payload of the next notification."""
    for notice in connection.notifies(timeout=ANSWERS_WITHIN, stop_after=1):
        return notice.payload
    raise AssertionError(f"no notice within {ANSWERS_WITHIN:g} s")
