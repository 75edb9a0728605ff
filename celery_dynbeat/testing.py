"""For tests, ours and those of applications: time that stands still, and beat made by hand.

    clock = FrozenClock(datetime(2026, 11, 21, 9, tzinfo=UTC))
    dynbeat = Dynbeat(app, clock=clock)
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.for_owner("user:42").create("digest", task=..., trigger=...)
    clock.advance(timedelta(days=1))
    beat.run_until_idle()
    assert [run.task for run in beat.publisher.sent] == ["mail.send_digest"]

No broker takes part, unless a real publisher is given. The passes are those of a real beat, on a
real database.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar, overload

from celery_dynbeat.client import Dynbeat
from celery_dynbeat.dispatch import Dispatcher
from celery_dynbeat.messages import Outgoing
from celery_dynbeat.outlet import Outlet
from celery_dynbeat.publish import Published

#: More passes than this without a pause are taken for a beat that will never rest.
PASSES = 10_000


class FrozenClock:
    """A clock that stands still until it is told to go on. Raises ValueError for naive instants."""

    def __init__(self, start: datetime) -> None:
        self._instant = _utc(start)

    def now(self) -> datetime:
        """Return the instant at which the clock stands, in UTC."""
        return self._instant

    def steady_for(self) -> timedelta:
        """Return timedelta.max: that it is moved by hand is time going by, not a step."""
        return timedelta.max

    def advance(self, duration: timedelta) -> datetime:
        """Go on by ``duration`` and return the new instant."""
        self._instant += duration
        return self._instant

    def move_to(self, instant: datetime) -> datetime:
        """Stand at ``instant``, which may lie in the past, and return it in UTC."""
        self._instant = _utc(instant)
        return self._instant


class RecordingPublisher:
    """Keeps in ``sent``, in order, what a broker would have been given.

    ``terminated`` are the ids of the runs that workers would have been asked to end.
    """

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.terminated: list[str] = []
        self._failure: Exception | None = None

    def fail_with(self, error: Exception | None) -> None:
        """Be away from now on, and raise ``error`` at each use; with None, be back."""
        self._failure = error

    def connect(self) -> None:
        """Raise the error of ``fail_with``, if there is one."""
        if self._failure is not None:
            raise self._failure

    def publish(self, batch: Sequence[Outgoing]) -> Published:
        """Keep the batch."""
        self.connect()
        self.sent += batch
        return Published(sent=[run.run_id for run in batch])

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Keep the ids."""
        self.connect()
        self.terminated += run_ids


P = TypeVar("P", bound=Outlet)


class ManualBeat(Generic[P]):
    """A beat that makes its passes when it is told to, by the clock of ``dynbeat``.

    ``publisher`` receives the runs; without one they are kept in ``publisher.sent``. ``reached`` is
    called with the name of each point at which a crash matters: "recorded", "committed", "swept",
    "published"; what it raises breaks off the pass there.
    """

    publisher: P

    @overload
    def __init__(
        self: "ManualBeat[RecordingPublisher]",
        dynbeat: Dynbeat,
        publisher: None = None,
        *,
        reached: Callable[[str], None] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "ManualBeat[P]",
        dynbeat: Dynbeat,
        publisher: P,
        *,
        reached: Callable[[str], None] | None = None,
    ) -> None: ...

    def __init__(
        self,
        dynbeat: Dynbeat,
        publisher: Outlet | None = None,
        *,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        self.publisher = publisher or RecordingPublisher()  # type: ignore[assignment]
        self._context = dynbeat.context
        self._dispatcher = Dispatcher(
            database=dynbeat.context.database,
            publisher=self.publisher,
            clock=dynbeat.context.clock,
            settings=dynbeat.context.settings,
            reached=reached or (lambda _point: None),
        )

    def tick(self) -> timedelta:
        """Make one pass and return how long beat could sleep after it; zero: there may be more.

        Raises what the publisher or the database raises.
        """
        self._context.prepare()
        # A test changes rows as it likes, and tells nobody.
        self._dispatcher.look_everywhere()
        return self._dispatcher.run_pass()

    def run_until_idle(self) -> None:
        """Make passes until nothing is left to do at this instant.

        Raises RuntimeError when that does not come about, as under a clock that goes on while
        schedules fire faster than they can be sent.
        """
        for _ in range(PASSES):
            if self.tick() > timedelta(0):
                return
        msg = f"beat is not idle after {PASSES} passes: freeze the clock, or see what is due"
        raise RuntimeError(msg)


def _utc(instant: datetime) -> datetime:
    if instant.utcoffset() is None:
        msg = f"naive datetime {instant!r} refused: give an aware one (datetime.now(UTC))"
        raise ValueError(msg)
    return instant.astimezone(UTC)


__all__ = ["FrozenClock", "ManualBeat", "RecordingPublisher"]
