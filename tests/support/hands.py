"""A worker made by hand: its guard and its recorder are the real ones, its tasks take no time."""

import os

from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat
from celery_dynbeat.db.models import NodeKind, Status
from celery_dynbeat.guard import Delivery, Verdict, judge
from celery_dynbeat.publish import Outgoing
from celery_dynbeat.recorder import Outcome, Recorder
from celery_dynbeat.store import nodes


class HandWorker:
    """One worker node that starts and ends runs when it is told to."""

    def __init__(self, dynbeat: Dynbeat, name: str = "w1") -> None:
        self.name = name
        self._context = dynbeat.context
        self._recorder = Recorder(
            dynbeat.context.database,
            settings=dynbeat.context.settings,
            announce=dynbeat.context.notifier.announce,
        )
        self._context.prepare()
        self.live()

    def live(self) -> None:
        """Give a sign of life."""
        self._context.database.run(self._live)

    def _live(self, session: Session) -> None:
        now, kind, pid = self._context.clock.now(), NodeKind.WORKER, os.getpid()
        if not nodes.refresh(session, kind=kind, name=self.name, pid=pid, now=now):
            nodes.enter(session, kind=kind, name=self.name, pid=pid, started_at=now, now=now)

    def start(self, run: Outgoing, *, redelivered: bool = False) -> bool:
        """Ask the guard for the run's message; return whether it may start."""
        message = Delivery(
            run_id=run.run_id,
            retries=0,
            redelivered=redelivered,
            put_off_at=None,
            worker=self.name,
            main_pid=os.getpid(),
            pid=os.getpid(),
            runs_here=lambda: True,
        )
        now, timeout = self._context.clock.now(), self._context.settings.node_timeout
        verdict = self._context.database.run(
            lambda session: judge(session, message, now=now, timeout=timeout)
        )
        return verdict is Verdict.START

    def finish(self, run: Outgoing, status: Status = Status.SUCCEEDED) -> None:
        """Record how the run ended."""
        failed = status == Status.FAILED
        self._recorder.record(
            Outcome(
                run_id=run.run_id,
                retries=0,
                worker=self.name,
                status=status,
                at=self._context.clock.now(),
                error="ValueError: no" if failed else None,
                awaited="dynbeat_overlap" in run.headers,
            )
        )
