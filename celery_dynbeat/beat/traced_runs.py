"""The traces of the runs that a pass takes: which contexts it reads, and which it stores.

    claim, backfill     a new trace per run, linked to the edit of its schedule
    rerun               the same, linked to the trace of the original run, too
    sweep               the trace of the run continues. If none is stored, a new one

A context is stored after the publish: a run that starts at once needs none. So the runs of a beat
that dies in between get a second trace.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from celery_dynbeat.planning.outgoing_run import OutgoingRun
from celery_dynbeat.store import traces
from celery_dynbeat.store.traces import RunContexts

if TYPE_CHECKING:
    from celery_dynbeat.tracing.run_tracer import RunTracer

_UNKNOWN = RunContexts()


class TracedRuns:
    """Starts the traces of runs. ``tracer`` None: no traces, and nothing is read or written."""

    def __init__(self, tracer: "RunTracer | None") -> None:
        self._tracer = tracer
        self._edits: Mapping[tuple[int, int], str] = {}
        self._runs: Mapping[str, RunContexts] = {}

    def read(
        self, session: Session, outgoing: Sequence[OutgoingRun], *, may_have_traces: bool = False
    ) -> None:
        """Read the trace contexts that the traces of ``outgoing`` continue or are linked to.

        In the transaction that takes the runs: after its commit, the runs are published without
        another statement. ``may_have_traces``: the runs are not new, or are reruns.
        """
        if self._tracer is None or not outgoing:
            return
        self._edits = traces.of_edits(session, {run.schedule_id for run in outgoing})
        self._runs = {}
        if may_have_traces:
            self._runs = traces.of_runs(session, [run.run_id for run in outgoing])

    def start(self, outgoing: Sequence[OutgoingRun], *, began_ns: int) -> Mapping[str, str]:
        """Start or continue the trace of each run; return the new contexts to store, by run id.

        ``began_ns``: when the transaction that took the runs began.
        """
        if self._tracer is None:
            return {}
        return self._tracer.claimed(
            outgoing,
            began_ns=began_ns,
            ended_ns=time.time_ns(),
            known={run.run_id: self._known(run) for run in outgoing},
        )

    def _known(self, run: OutgoingRun) -> tuple[str | None, Sequence[str | None]]:
        """Return the context that the trace of ``run`` continues, and those it is linked to."""
        contexts = self._runs.get(run.run_id, _UNKNOWN)
        return contexts.own, (self._edits.get((run.schedule_id, run.version)), contexts.original)
