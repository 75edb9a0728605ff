"""Time the responses of a Flower, and the processor time that each takes."""

import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection

from sqlalchemy import Engine, text

from benchmarks.flower_pages import Request
from benchmarks.processes import cpu_seconds

USER, PASSWORD = "alice", "secret"
_TIMEOUT = 60
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"


@dataclass(frozen=True, slots=True)
class Responses:
    """The responses to one request, in milliseconds.

    ``cpu`` is the processor time of Flower and of the connections of the database. It does not
    contain the time in which other processes used the processor.
    """

    elapsed: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class FlowerClient:
    """A client of the Flower on ``port``. ``pid`` is its process, ``engine`` its database."""

    def __init__(self, port: int, *, pid: int, engine: Engine) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
        credentials = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}"}
        self._flower = pid
        self._engine = engine

    def measure(
        self, pages: Sequence[Request], *, rounds: Iterable[int]
    ) -> Mapping[str, Responses]:
        """Return the responses by label. Each round requests every page once.

        The first round does not count, because SQLAlchemy compiles its statements. AssertionError
        unless each response has status 200 and its text.
        """
        found: dict[str, Responses] = defaultdict(Responses)
        for number in rounds:
            pids = self._pids()
            for page in pages:
                cpu, started = _cpu(pids), time.perf_counter()
                body = self._get(page)
                elapsed = time.perf_counter() - started
                if number:
                    found[page.label].elapsed.append(elapsed * 1_000)
                    found[page.label].cpu.append((_cpu(pids) - cpu) * 1_000)
                assert page.contains in body, f"{page.label}: no {page.contains!r} in {page.path}"
        self._connection.close()
        return found

    def _get(self, page: Request) -> str:
        self._connection.request("GET", page.path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read().decode()
        assert response.status == 200, f"{page.label}: {response.status}\n{body}"
        return body

    def _pids(self) -> Sequence[int]:
        with self._engine.connect() as connection:
            return [self._flower, *connection.execute(text(_BACKENDS)).scalars()]


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(cpu_seconds, pids))
