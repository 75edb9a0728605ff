"""A broker and workers in memory, for a frozen clock, with the real guard and recorder."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from celery_dynbeat import Dynbeat
from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store import nodes
from celery_dynbeat.worker.outcome_recorder import Recorder
from celery_dynbeat.worker.outcomes import Outcome
from celery_dynbeat.worker.start_decision import Delivery, StartAction, decide_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A run's message in the broker."""

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
    """A queue of messages, and workers with the messages that they run.

    ``workers`` maps the name of each running worker to its messages by run id. ``starts`` counts
    the starts of each run's body. ``acks_late`` is the setting of their task. Only a call of
    ``heartbeat`` writes heartbeats.
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
        self.acks_late = True
        self._attempts: dict[tuple[str, str], int | None] = {}

    def enqueue(self, runs: Iterable[OutgoingRun]) -> None:
        """Add the runs that beat has published to the queue."""
        self.queue += map(Message.of, runs)

    def start_worker(self, worker: str) -> None:
        """Start a worker; it replaces a dead worker of the same name."""
        self.workers[worker] = {}
        heartbeat = self._node_heartbeat(worker)
        self._context.database.run(
            partial(nodes.register, heartbeat=heartbeat, started_at=heartbeat.seen_at)
        )

    def _node_heartbeat(self, worker: str) -> nodes.NodeHeartbeat:
        now, pid = self._context.clock.now(), os.getpid()
        return nodes.NodeHeartbeat(kind=NodeKind.WORKER, name=worker, pid=pid, seen_at=now)

    def heartbeat(self) -> None:
        """Write a heartbeat of each running worker."""
        for worker in self.workers:
            self._context.database.run(
                partial(nodes.refresh, heartbeat=self._node_heartbeat(worker))
            )

    def kill_worker(self, worker: str, *, redelivered: bool) -> None:
        """Kill a worker; with ``redelivered`` the broker delivers its messages again."""
        held = self.workers.pop(worker).values()
        if redelivered:
            self.queue += [replace(message, redelivered=True) for message in held]

    def deliver(self, message: Message, worker: str) -> StartAction | None:
        """Deliver a message of the queue to a worker. Return None if the message has expired."""
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
            acks_late=self.acks_late,
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
        """Deliver the messages of a running worker again, as after a visibility timeout."""
        held = self.workers[worker].values()
        self.queue += [replace(message, redelivered=True) for message in held]

    def workers_running(self, run_id: str) -> list[str]:
        """Return the names of the workers that run this run."""
        return [worker for worker, held in self.workers.items() if run_id in held]

    def finish(self, worker: str, run_id: str, status: Status) -> None:
        """End a run on a worker. ``revoked`` is the status after a termination."""
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
