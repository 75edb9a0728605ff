"""The load, and the account at the end: which fire times started, how often, and when.

The account does not read the tables of dynbeat. It compares three things:

- the fire times that the schedules must have, computed from their start and interval;
- what the API servers confirmed to a client that creates and cancels reminders;
- the lines that the task writes at each start.
"""

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hosts import Host

OWNERS = 50
INTERVAL = timedelta(seconds=1)
#: Seconds from the request to the fire time of a reminder, longer than the time-outs of the client.
REMINDER_AFTER = 15
REQUESTS_A_SECOND = 4
#: A request without an answer takes 20 s at most: 5 s at each host, for a PUT and a DELETE.
THREADS = 128
#: The clock of the database may differ this much from the clock of this program.
MARGIN = timedelta(seconds=3)

FireTime = tuple[str, datetime]


@dataclass(frozen=True)
class Start:
    """A line of the task, and the instant (``time.monotonic``) when it was read."""

    name: str
    fire_time: datetime
    run: str
    attempt: int
    seen: float
    #: Seconds from the fire time until the line was read.
    late: float


class Starts:
    """Follows the file with the starts in a thread. The clocks of the hosts do not matter."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.seen: list[Start] = []
        #: Lines of a task that had no run.
        self.without_run = 0
        threading.Thread(target=self._follow, daemon=True).start()

    def between(self, begin: float, end: float) -> list[Start]:
        """Return the starts that were seen in a period of ``time.monotonic``."""
        return [start for start in self.seen.copy() if begin <= start.seen <= end]

    def _follow(self) -> None:
        while not self._file.exists():
            time.sleep(0.05)
        with self._file.open() as file:
            rest = ""
            while True:
                rest += file.read()
                *lines, rest = rest.split("\n")
                now, instant = time.monotonic(), datetime.now(UTC)
                for line in lines:
                    self._add(json.loads(line), now, instant)
                time.sleep(0.02)

    def _add(self, line: Mapping[str, Any], now: float, instant: datetime) -> None:
        if line["run"] is None:
            self.without_run += 1
            return
        fire_time = datetime.fromisoformat(line["fire_time"])
        late = (instant - fire_time).total_seconds()
        start = Start(line["schedule"], fire_time, line["run"], line["attempt"], now, late)
        self.seen.append(start)


@dataclass
class Reminder:
    """What the client asked for, and what was confirmed."""

    at: datetime
    created: bool = False
    cancel_asked: bool = False
    cancelled_at: datetime | None = None
    #: The answer to its cancellation was that it does not exist.
    vanished: bool = False


@dataclass
class Client:
    """Creates reminders through the API servers, and cancels every third one.

    As a load balancer does, it sends a request without an answer to the other server, once.
    """

    hosts: Sequence[Host]
    ask: Callable[[Host, str, str], Any]
    reminders: dict[str, Reminder] = field(default_factory=dict)
    refused: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; return when all requests have their answers."""
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(1 / REQUESTS_A_SECOND):
                return
            self._pool.submit(self._remind, number)

    def _remind(self, number: int) -> None:
        at = datetime.now(UTC) + timedelta(seconds=REMINDER_AFTER)
        name = f"reminder-{number}"
        path = f"/users/{number % OWNERS}/reminders/{name}"
        reminder = self.reminders[name] = Reminder(at)
        instant = at.isoformat().replace("+00:00", "Z")
        answer, tries = self._request(f"{path}?at={instant}", "PUT", number)
        reminder.created = answer is not None
        # A server that did not answer may still create it, after its cancellation.
        if answer is None or tries > 1 or number % 3:
            return
        time.sleep(1)
        reminder.cancel_asked = True
        answer, tries = self._request(path, "DELETE", number)
        if answer is not None:
            reminder.cancelled_at = datetime.now(UTC)
            reminder.vanished = tries == 1 and not answer["existed"]

    def _request(self, path: str, method: str, number: int) -> tuple[Any, int]:
        """Return the first answer, None if there is none, and how many servers were asked."""
        first = number % len(self.hosts)
        for tries, host in enumerate((*self.hosts[first:], *self.hosts[:first]), start=1):
            if (answer := self.ask(host, path, method)) is not None:
                return answer, tries
        with self._lock:
            self.refused += 1
        return None, len(self.hosts)


@dataclass
class Account:
    """The result: each list is empty if nothing was lost or doubled."""

    expected: int
    lost: list[FireTime]
    #: Fire times with two runs, or with two starts of one attempt.
    doubled: list[FireTime]
    #: Starts at instants that are no fire time, after a confirmed pause, or without a run.
    unexpected: list[FireTime]
    #: Starts after the first one of a run, which ``acks_late`` allows.
    further_attempts: int
    confirmed: int
    lost_reminders: list[str]
    cancelled: int
    #: Started, although the cancellation was confirmed before the fire time.
    not_cancelled: list[str]

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, doubled, or started after its cancellation."""
        return not (
            self.lost
            or self.doubled
            or self.unexpected
            or self.lost_reminders
            or self.not_cancelled
        )


def pulse_names(rate: int) -> list[str]:
    """Return the names of the schedules that fire each second."""
    return [f"pulse-{number}" for number in range(rate)]


def make_account(
    starts: Starts,
    *,
    first: Mapping[str, datetime],
    paused_at: Mapping[str, datetime],
    client: Client,
) -> Account:
    """Compare the starts with the schedules and with the confirmed reminders.

    ``first`` are the first fire times of the schedules, and ``paused_at`` when their pauses were
    confirmed.
    """
    runs: defaultdict[FireTime, set[str]] = defaultdict(set)
    for start in starts.seen:
        runs[start.name, start.fire_time].add(start.run)
    attempts = Counter((each.name, each.fire_time, each.attempt) for each in starts.seen)
    expected, possible = set[FireTime](), set[FireTime]()
    for name, begin in first.items():
        # A pause cancels a fire time that has passed and was not dispatched yet.
        expected |= set(_fire_times(name, begin, paused_at[name] - MARGIN))
        possible |= set(_fire_times(name, begin, paused_at[name] + MARGIN))
    # A fire time of the last seconds counts if a later one of its schedule started.
    newest: dict[str, datetime] = {}
    for name, fire_time in possible & runs.keys():
        newest[name] = max(fire_time, newest.get(name, fire_time))
    expected |= {(name, at) for name, at in possible if name in newest and at <= newest[name]}
    possible |= {(name, each.at) for name, each in client.reminders.items()}
    twice = {(name, at) for (name, at, _), number in attempts.items() if number > 1}
    started = {name for name, _ in runs}
    certain = [
        name for name, each in client.reminders.items() if each.created and not each.cancel_asked
    ]
    cancelled = [
        name
        for name, each in client.reminders.items()
        if each.cancelled_at is not None and each.cancelled_at < each.at - MARGIN
    ]
    vanished = [name for name, each in client.reminders.items() if each.vanished]
    without_run = [("a task without a run", datetime.now(UTC))] * starts.without_run
    return Account(
        expected=len(expected),
        lost=sorted(expected - runs.keys()),
        doubled=sorted(twice | {key for key, ids in runs.items() if len(ids) > 1}),
        unexpected=[*sorted(runs.keys() - possible), *without_run],
        further_attempts=sum(each.attempt > 1 for each in starts.seen),
        confirmed=len(certain),
        lost_reminders=[name for name in certain if name not in started] + vanished,
        cancelled=len(cancelled),
        not_cancelled=[name for name in cancelled if name in started],
    )


def _fire_times(name: str, begin: datetime, end: datetime) -> list[FireTime]:
    return [(name, begin + INTERVAL * number) for number in range((end - begin) // INTERVAL + 1)]
