"""Beats that kill themselves with outgoing runs in memory, and suspended processes."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
from celery import Celery, signals

from celery_dynbeat.beat import dispatcher
from celery_dynbeat.beat.scheduler import DatabaseScheduler
from tests.support.processes import CeleryProcess
from tests.support.sites import Site
from tests.support.waiting import wait_until

#: Points at which a beat dies, separated by commas; "message 20" is the 20th of a batch.
POINTS_VARIABLE = "DYNBEAT_TEST_KILL_AT"
#: The folder with a file for each point at which a beat has died.
DEATHS_VARIABLE = "DYNBEAT_TEST_KILL_DEATHS"
KILLING = "tests.support.killed_beats:KillingScheduler"


class KillingScheduler(DatabaseScheduler):
    """The scheduler of the package, with a kill.

    Only one of several beats dies at a point, and only with outgoing runs.
    """

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._outgoing_count = self._messages = 0
        super().__init__(app, *args, lazy=lazy, **kwargs)
        if lazy:
            return
        for name in ("claim", "take_overdue"):
            setattr(dispatcher, name, self._counting_outgoing(getattr(dispatcher, name)))
        signals.after_task_publish.connect(self._count, weak=False)

    def _counting_outgoing(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = work(*args, **kwargs)
            self._outgoing_count, self._messages = len(result.outgoing), 0
            return result

        return counted

    def _count(self, **_: Any) -> None:
        self._messages += 1
        self.failpoint(f"message {self._messages}")

    def failpoint(self, point: str) -> None:
        """Kill the process at a point of the environment, unless another beat died there before."""
        if not self._outgoing_count or point not in os.environ[POINTS_VARIABLE].split(","):
            return
        with contextlib.suppress(FileExistsError):
            # Two beats may reach the point at the same time.
            (Path(os.environ[DEATHS_VARIABLE]) / point).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledBeats:
    """Beats of one installation. At each of the points one of them dies."""

    def __init__(self, site: Site, *points: str) -> None:
        self._site = site
        self._points = ",".join(points)
        self._folder = site.folder / "deaths"
        self._folder.mkdir()
        self.beats: list[CeleryProcess] = []

    def start(self, number: int) -> Sequence[CeleryProcess]:
        """Start more beats and return them when they have started."""
        environment = {POINTS_VARIABLE: self._points, DEATHS_VARIABLE: str(self._folder)}
        started = [self._site.beat(scheduler=KILLING, **environment) for _ in range(number)]
        self.beats += started
        for beat in started:
            beat.wait_for_log("beat started")
        return started

    @property
    def dead(self) -> Sequence[CeleryProcess]:
        """The beats that have exited for any reason."""
        return [beat for beat in self.beats if beat.exit_status is not None]

    def wait_for_kills(self, number: int, *, within: float = 30.0) -> None:
        """Return when ``number`` beats have died."""
        wait_until(
            lambda: len(self.dead) >= number,
            within=within,
            message=f"only {len(self.dead)} of {number} beats died at {self._points}",
        )
        assert [beat.exit_status for beat in self.dead] == [-signal.SIGKILL] * number

    @property
    def killed_at(self) -> set[str]:
        """The points at which a beat died."""
        return {mark.name for mark in self._folder.iterdir()}


def _family(process: CeleryProcess) -> Sequence[psutil.Process]:
    main = psutil.Process(process.pid)
    return [main, *main.children(recursive=True)]


@contextmanager
def suspended(process: CeleryProcess, *, children: bool = True) -> Iterator[None]:
    """Suspend a process, by default with its children, like a machine that stalls."""
    family = _family(process) if children else [psutil.Process(process.pid)]
    for member in family:
        member.suspend()
    try:
        yield
    finally:
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()
