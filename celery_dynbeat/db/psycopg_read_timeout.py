"""A read timeout for psycopg, which has none."""

import re
import selectors
import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

R = TypeVar("R")

#: Whether a wait in which nothing arrives resumes its generator. Before 3.2.13 it waits on in C.
_RESUMES = [int(part) for part in re.findall(r"\d+", psycopg.__version__)[:3]] >= [3, 2, 13]


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that raises OperationalError when the server is silent for too long.

    The limit is ``read_timeout`` in seconds. None means no limit. Each message from the server
    restarts the count, so a long answer may take any time. The connection is closed on a timeout.
    """

    read_timeout: float | None = None

    def wait(self, gen: Generator[Any, Any, R], *args: Any, **kwargs: Any) -> R:
        """Run one step of the protocol as psycopg does, with the read timeout."""
        bounded = gen if self.read_timeout is None else self._bounded(gen, self.read_timeout)
        return super().wait(bounded, *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, R], seconds: float) -> Generator[Any, Any, R]:
        received_at = time.monotonic()
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if not _RESUMES and not self._is_ready(wanted, seconds):
                raise self._timed_out(seconds)
            # The operations for which the socket is ready. It is empty after each wait in which
            # nothing arrived.
            ready = yield wanted
            if ready:
                received_at = time.monotonic()
            elif time.monotonic() - received_at > seconds:
                raise self._timed_out(seconds)

    def _is_ready(self, wanted: int, seconds: float) -> bool:
        """Return whether the socket is ready within ``seconds`` for what a generator wants."""
        with selectors.PollSelector() as selector:
            selector.register(self.pgconn.socket, wanted)
            return bool(selector.select(seconds))

    def _timed_out(self, seconds: float) -> psycopg.OperationalError:
        # The connection is in the middle of an exchange and cannot be used again.
        self.pgconn.finish()
        msg = f"the database did not answer within {seconds:g} s (read_timeout)"
        return psycopg.OperationalError(msg)
