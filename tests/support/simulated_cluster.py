"""A broker and workers in memory, for a clock that stands still; guard and recorder are real."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from celery_dynbeat import Dynbeat
from celery_dynbeat.common.run_states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.store import nodes
from celery_dynbeat.worker.outcome_recorder import Outcome, Recorder
from celery_dynbeat.worker.start_decision import Delivery, StartAction, decide_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A run's message as the broker holds it."""

    run_id: str
    after: int
    expires_at: datetime | None
    awaited: bool
    redelivered: bool = False

    @classmethod
    def of(cls, run: OutgoingRun) -> "Message":
        """Return the message of a run that beat has published."""
        awaited = run.overlap == "buffer_one"
        return cls(run_id=run.run_id, after=run.attempt, expires_at=run.expires_at, awaited=awaited)


class SimulatedCluster:
    """Messages in ``queue``; in ``workers``, by name, what each living worker has in progress.

    ``starts`` counts how often the body of each run was begun. A living worker is heard of as often
    as ``heartbeat`` is called; one that died is not.
    """

    def __init__(self, dynbeat: Dynbeat) -> None:
        self._context = dynbeat.context
        self._recorder = Recorder(
            dynbeat.context.database,
            settings=dynbeat.context.settings,
            notify=dynbeat.context.notifier.notify,
        )
        self.queue: list[Message] = []
        self.workers: dict[str, dict[str, Message]] = {}
        self.starts: Counter[str] = Counter()
        self._attempts: dict[tuple[str, str], int | None] = {}

    def enqueue(self, runs: Iterable[OutgoingRun]) -> None:
        """Queue what beat has published."""
        self.queue += map(Message.of, runs)

    def start_worker(self, worker: str) -> None:
        """Let a worker begin, in place of one of the same name that has died."""
        self.workers[worker] = {}
        heartbeat = self._node_heartbeat(worker)
        self._context.database.run(
            partial(nodes.register, heartbeat=heartbeat, started_at=heartbeat.seen_at)
        )

    def _node_heartbeat(self, worker: str) -> nodes.NodeHeartbeat:
        now, pid = self._context.clock.now(), os.getpid()
        return nodes.NodeHeartbeat(kind=NodeKind.WORKER, name=worker, pid=pid, seen_at=now)

    def heartbeat(self) -> None:
        """Let the living workers say that they are."""
        for worker in self.workers:
            self._context.database.run(
                partial(nodes.refresh, heartbeat=self._node_heartbeat(worker))
            )

    def kill_worker(self, worker: str, *, redelivered: bool) -> None:
        """Kill a worker; with ``redelivered`` the broker gives its messages to others."""
        held = self.workers.pop(worker).values()
        if redelivered:
            self.queue += [replace(message, redelivered=True) for message in held]

    def deliver(self, message: Message, worker: str) -> StartAction | None:
        """Give a message of the queue to a worker; None when it came after its expiry."""
        self.queue.remove(message)
        now = self._context.clock.now()
        if message.expires_at is not None and message.expires_at <= now:
            self._record(message, worker, Status.EXPIRED, started=False)
            return None
        delivery = Delivery(
            run_id=message.run_id,
            retries=0,
            expected_attempt=message.after,
            redelivered=message.redelivered,
            deferred=False,
            worker=worker,
            main_pid=os.getpid(),
            pid=os.getpid(),
            executes_here=lambda: message.run_id in self.workers[worker],
        )
        timeout = self._context.settings.node_timeout
        decision = self._context.database.run(
            lambda session: decide_start(session, delivery, now=now, timeout=timeout)
        )
        action = decision.action
        if action is StartAction.START:
            self.starts[message.run_id] += 1
            self.workers[worker][message.run_id] = message
            self._attempts[worker, message.run_id] = decision.attempt
        return action

    def redeliver(self, worker: str) -> None:
        """Let the broker lose patience with a worker, and offer what it has in progress again."""
        held = self.workers[worker].values()
        self.queue += [replace(message, redelivered=True) for message in held]

    def workers_running(self, run_id: str) -> list[str]:
        """Return the living workers that have the run in progress."""
        return [worker for worker, held in self.workers.items() if run_id in held]

    def finish(self, worker: str, run_id: str, status: Status) -> None:
        """End what a worker has in progress; ``revoked`` is what a termination makes of it."""
        self._record(self.workers[worker].pop(run_id), worker, status)

    def _record(
        self, message: Message, worker: str, status: Status, *, started: bool = True
    ) -> None:
        outcome = Outcome(
            run_id=message.run_id,
            attempt=self._attempts[worker, message.run_id] if started else message.after,
            worker=worker,
            status=status,
            at=self._context.clock.now(),
            started=started,
            error=None if status == Status.SUCCEEDED else str(status),
            awaited=message.awaited and started,
        )
        self._recorder.record(outcome)
