"""A worker without a process: it has the real guard and recorder, and its tasks take no time."""

import os
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat import Dynbeat
from celery_dynbeat.broker import run_headers
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import nodes
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.start_decision import Delivery, StartAction, decide_start


class WorkerStub:
    """A worker node that starts and ends runs when the test calls it."""

    def __init__(self, dynbeat: Dynbeat, name: str = "w1") -> None:
        self.name = name
        self._attempts: dict[str, int | None] = {}
        self._context = dynbeat.context
        self._recorder = Recorder(
            dynbeat.context.database,
            settings=dynbeat.context.settings,
            notify=dynbeat.context.notifier.notify,
        )
        self._context.prepare()
        self.heartbeat()

    def heartbeat(self) -> None:
        """Write a heartbeat."""
        self._context.database.run(self._write_heartbeat)

    def _write_heartbeat(self, session: Session) -> None:
        now = self._context.clock.now()
        heartbeat = nodes.NodeHeartbeat(
            kind=NodeKind.WORKER, name=self.name, pid=os.getpid(), seen_at=now
        )
        if not nodes.refresh(session, heartbeat=heartbeat):
            nodes.register(session, heartbeat=heartbeat, started_at=now)

    def start(
        self,
        run: OutgoingRun,
        *,
        redelivered: bool = False,
        acks_late: bool = True,
        replaces: bool = False,
    ) -> bool:
        """Pass the run's message to the guard; return whether the guard starts it."""
        message = Delivery(
            run_id=run.run_id,
            retries=run.retries,
            expected_attempt=run.attempt,
            redelivered=redelivered,
            acks_late=acks_late,
            worker=self.name,
            main_pid=os.getpid(),
            pid=os.getpid(),
            executes_here=lambda: True,
            replaces=replaces,
        )
        now, timeout = self._context.clock.now(), self._context.settings.node_timeout
        decision = self._context.database.run(
            lambda session: decide_start(session, message, now=now, timeout=timeout)
        )
        self._attempts[run.run_id] = decision.attempt
        return decision.action is StartAction.START

    def postpone(self, run: OutgoingRun, *, until: datetime) -> None:
        """Record that the task postponed the run."""
        self._recorder.record(
            Outcome(
                run_id=run.run_id,
                attempt=self._attempts[run.run_id],
                worker=self.name,
                status=Status.PENDING,
                at=self._context.clock.now(),
                resend_at=until,
            )
        )

    def finish(
        self,
        run: OutgoingRun,
        status: Status = Status.SUCCEEDED,
        *,
        retry_at: datetime | None = None,
        sent_by_beat: bool = False,
    ) -> None:
        """Record how the run ended."""
        failed = status == Status.FAILED
        self._recorder.record(
            Outcome(
                run_id=run.run_id,
                attempt=self._attempts[run.run_id],
                worker=self.name,
                status=status,
                at=self._context.clock.now(),
                retry_at=retry_at,
                sent_by_beat=sent_by_beat,
                retries=run.retries,
                error="ValueError: no" if failed else None,
                awaited="dynbeat_overlap" in run_headers(run),
            )
        )
