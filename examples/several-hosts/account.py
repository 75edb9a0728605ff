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
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hosts import Host

OWNERS = 50
INTERVAL = timedelta(seconds=1)
#: Seconds from the request to the fire time of a reminder, longer than two timeouts of the client.
REMINDER_AFTER = 15
REQUESTS_A_SECOND = 4
#: A cancellation that was confirmed later than this before the fire time may come too late.
MARGIN = timedelta(seconds=1)
#: A fire time of the last seconds before the end may not have been dispatched.
NOT_DISPATCHED = timedelta(seconds=3)

FireTime = tuple[str, datetime]


@dataclass
class Start:
    """A line of the task, and the instant (``time.monotonic``) when it was read."""

    name: str
    fire_time: datetime
    attempt: int
    seen: float
    #: Seconds from the fire time until the line was read.
    late: float


class Starts:
    """Follows the file with the starts in a thread. The clocks of the hosts do not matter."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.seen: list[Start] = []
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
                self.seen += [self._parse(line, now, instant) for line in lines]
                time.sleep(0.02)

    def _parse(self, line: str, now: float, instant: datetime) -> Start:
        written = json.loads(line)
        fire_time = datetime.fromisoformat(written["fire_time"])
        late = (instant - fire_time).total_seconds()
        return Start(written["schedule"], fire_time, written["attempt"], now, late)


@dataclass
class Reminder:
    """What the client asked for, and what was confirmed."""

    at: datetime
    created: bool = False
    cancel_asked: bool = False
    cancelled_at: datetime | None = None


@dataclass
class Client:
    """Creates reminders through the API servers, and cancels every third one.

    Like behind a load balancer, a request without an answer goes to the other server, once.
    """

    hosts: list[Host]
    ask: Callable[[Host, str, str], object]
    reminders: dict[str, Reminder] = field(default_factory=dict)
    refused: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(16)
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
        reminder.created = self._request(f"{path}?at={instant}", "PUT", number)
        if reminder.created and number % 3 == 0:
            time.sleep(1)
            reminder.cancel_asked = True
            if self._request(path, "DELETE", number):
                reminder.cancelled_at = datetime.now(UTC)

    def _request(self, path: str, method: str, number: int) -> bool:
        first = number % len(self.hosts)
        for host in (*self.hosts[first:], *self.hosts[:first]):
            if self.ask(host, path, method) is not None:
                return True
        self.refused += 1
        return False


@dataclass
class Account:
    """The result: each list is empty if nothing was lost or doubled."""

    expected: int
    lost: list[FireTime]
    doubled: list[FireTime]
    #: Starts after the death of a worker, which ``acks_late`` allows.
    repeated: int
    confirmed: int
    lost_reminders: list[str]
    #: Started, although the cancellation was confirmed before the fire time.
    not_cancelled: list[str]

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, doubled, or started after its cancellation."""
        return not (self.lost or self.doubled or self.lost_reminders or self.not_cancelled)


def pulse_names(rate: int) -> list[str]:
    """Return the names of the schedules that fire each second."""
    return [f"pulse-{number}" for number in range(rate)]


def make_account(
    starts: list[Start],
    *,
    first: dict[str, datetime],
    stopped_at: datetime,
    reminders: dict[str, Reminder],
) -> Account:
    """Compare the starts with the schedules (``first`` fire times) and the confirmed reminders."""
    # A worker may die before its first attempt has written its line.
    began = {(each.name, each.fire_time) for each in starts}
    first_attempts = Counter((each.name, each.fire_time) for each in starts if each.attempt == 1)
    expected = set(_fire_times(began, first, stopped_at))
    started = {name for name, _ in began}
    certain = {
        name: each for name, each in reminders.items() if each.created and not each.cancel_asked
    }
    cancelled = [
        name
        for name, each in reminders.items()
        if each.cancelled_at is not None and each.cancelled_at < each.at - MARGIN
    ]
    return Account(
        expected=len(expected),
        lost=sorted(expected - began),
        doubled=sorted(key for key, number in first_attempts.items() if number > 1),
        repeated=sum(each.attempt > 1 for each in starts),
        confirmed=len(certain),
        lost_reminders=[name for name in certain if name not in started],
        not_cancelled=[name for name in cancelled if name in started],
    )


def _fire_times(
    began: set[FireTime], first: dict[str, datetime], stopped_at: datetime
) -> Iterator[FireTime]:
    """Yield each fire time from the first one until the schedule was stopped."""
    last_started: dict[str, datetime] = {}
    for name, fire_time in began:
        last_started[name] = max(fire_time, last_started.get(name, fire_time))
    for name, begin in first.items():
        # A pause cancels a fire time that has passed and was not dispatched yet.
        end = max(last_started.get(name, begin), stopped_at - NOT_DISPATCHED)
        fire_time = begin
        while fire_time <= end:
            yield name, fire_time
            fire_time += INTERVAL
