"""The traces of the runs that a pass takes: which contexts it reads, and which it stores.

    claim, backfill     a new trace per run, linked to the edit of its schedule
    rerun               the same, also linked to the trace of the original run
    sweep               the trace of the run continues. If none is stored, a new one

A context is stored after the publish, because a run that starts at once needs none. If beat dies
before it has stored the contexts, its runs therefore get a second trace.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from celery_dynbeat.broker.publisher import PublishResult, RunPublisher, unsent
from celery_dynbeat.planning.plan import OutgoingRun
from celery_dynbeat.store.runs import traces
from celery_dynbeat.store.runs.traces import RunContexts

if TYPE_CHECKING:
    from celery_dynbeat.tracing.run_tracer import RunTracer

_UNKNOWN = RunContexts()


class RecordedTraces:
    """The traces of one beat."""

    def __init__(self, tracer: "RunTracer") -> None:
        self._tracer = tracer
        self._began_ns = 0
        self._edits: Mapping[tuple[int, int], str] = {}
        self._runs: Mapping[str, RunContexts] = {}

    def begin(self) -> None:
        """Note that a transaction that takes runs begins."""
        self._began_ns = time.time_ns()

    def read(
        self, session: Session, outgoing: Sequence[OutgoingRun], *, may_have_traces: bool
    ) -> None:
        """Read the trace contexts that the traces of ``outgoing`` continue or are linked to.

        In the transaction that takes the runs: after its commit, the runs are published without
        another statement. ``may_have_traces`` is true if the runs are reruns or are not new.
        """
        if not outgoing:
            return
        self._edits = traces.of_edits(session, {run.schedule_id for run in outgoing})
        self._runs = {}
        if may_have_traces:
            self._runs = traces.of_runs(session, [run.run_id for run in outgoing])

    def start(self, outgoing: Sequence[OutgoingRun]) -> Mapping[str, str]:
        """Start or continue the trace of each run; return the new contexts to store, by run id."""
        return self._tracer.claimed(
            outgoing,
            began_ns=self._began_ns,
            ended_ns=time.time_ns(),
            known={run.run_id: self._known(run) for run in outgoing},
        )

    def _known(self, run: OutgoingRun) -> tuple[str | None, Sequence[str | None]]:
        """Return the context that the trace of ``run`` continues, and the contexts of its links."""
        contexts = self._runs.get(run.run_id, _UNKNOWN)
        return contexts.own, (self._edits.get((run.schedule_id, run.version)), contexts.original)

    def publish(self, publisher: RunPublisher, outgoing: Sequence[OutgoingRun]) -> PublishResult:
        """Publish the runs, and end their publish spans."""
        failures = dict.fromkeys((run.run_id for run in outgoing), "the broker is unreachable")
        try:
            published = publisher.publish(outgoing)
            failures = unsent(published)
        finally:
            self._tracer.published(failures)
        return published
