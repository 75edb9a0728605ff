"""A psycopg connection that gives up a server which does not answer."""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

R = TypeVar("R")


class BoundedConnection(psycopg.Connection[Any]):
    """Raises OperationalError, and is closed, when nothing came for ``read_timeout`` seconds.

    The count begins anew with whatever the server sends, so a long answer has all the time it
    needs. None is no limit.
    """

    read_timeout: float | None = None

    def wait(self, gen: Generator[Any, Any, R], *args: Any, **kwargs: Any) -> R:
        """Run a step of the protocol, as psycopg does, and watch for silence."""
        bounded = gen if self.read_timeout is None else self._bounded(gen, self.read_timeout)
        return super().wait(bounded, *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, R], seconds: float) -> Generator[Any, Any, R]:
        heard_at = time.monotonic()
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            # What the socket is ready for; nothing, each time that psycopg has waited in vain.
            ready = yield wanted
            if ready:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > seconds:
                # In the middle of an exchange it is of no use any more.
                self.pgconn.finish()
                msg = f"the database did not answer within {seconds:g} s (read_timeout)"
                raise psycopg.OperationalError(msg)
