"""The page of one run, with its steps.

due -> recorded -> ready (after a wait) -> sent -> started -> ended
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from operator import itemgetter
from typing import Any

from celery_dynbeat.api.reading import schedule_of
from celery_dynbeat.api.results import RunInfo
from celery_dynbeat.common import states
from celery_dynbeat.common.errors import NotFoundError
from celery_dynbeat.common.states import UNFINISHED, UNOWNED, Origin, was_started
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.svg import share
from celery_dynbeat.insights.explain.past import is_of_stop
from celery_dynbeat.insights.explain.reading import spec_of_run
from celery_dynbeat.insights.explain.runs import explain_run, wait_text

#: Reruns of a run have its fire time, each a microsecond later.
_RERUN_SPAN = timedelta(milliseconds=1)
_MAX_RERUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that the run reached, and how long it took since the previous one.

    ``start`` and ``share`` place that time in the whole run: fractions from 0 to 1.
    """

    label: str
    at: datetime
    took: timedelta | None
    start: float
    share: float


def steps(run: RunInfo) -> Sequence[Step]:
    """Return the steps that the run has reached, in their order."""
    reached = list(_reached(run))
    first, last = reached[0][1], max(at for _, at in reached)
    # The clocks of machines differ, so a later step can have an earlier time.
    whole = max((last - first).total_seconds(), 1e-6)
    found = [Step(label=reached[0][0], at=first, took=None, start=0.0, share=0.0)]
    for (_, before), (label, at) in pairwise(reached):
        took = max(at - before, timedelta(0))
        start = min(1.0, max(0.0, (before - first).total_seconds() / whole))
        share = min(1.0 - start, took.total_seconds() / whole)
        found.append(Step(label=label, at=at, took=took, start=start, share=share))
    return found


def _reached(run: RunInfo) -> Iterator[tuple[str, datetime]]:
    # A rerun or a backfill did not wait since its old fire time, so the time counts from its
    # record.
    if run.origin == Origin.SCHEDULE and was_started(run.status, run.attempt):
        yield "due", run.fire_at
    recorded = [("recorded", run.created_at)]
    recorded += [] if run.ready_at is None else [("ready", run.ready_at)]
    yield from sorted(recorded, key=itemgetter(1))
    for label, at in (("sent", run.sent_at), ("started", run.started_at)):
        if at is not None:
            yield label, at
    if run.finished_at is not None:
        yield run.status, run.finished_at


def can_rerun(run: RunInfo) -> bool:
    """Return whether the run can run again. Its schedule can still refuse it."""
    return states.can_rerun(run.status, run.attempt) and run.schedule_id is not None


def can_cancel(run: RunInfo) -> bool:
    """Return whether the run can be cancelled, because no worker executes it."""
    return run.status in UNOWNED


def is_unfinished(run: RunInfo) -> bool:
    """Return whether the run can still change."""
    return run.status in UNFINISHED


class RunPage(PageHandler):
    """The history of one fire time, step by step."""

    tab = "runs"
    route = "dynbeat_run"

    async def get(self, run_id: str) -> None:
        """Render the page. Answers 404 for an id that no run has."""
        await self.render_page("run.html", **await self.call(lambda: self._read(run_id)))

    def _read(self, run_id: str) -> dict[str, Any]:
        context, run = self.dynbeat.context, self.schedules.get_run(run_id)
        mine, schedule, now = (
            self.for_owner(run.owner),
            schedule_of(context, run),
            context.clock.now(),
        )
        name = run.name if schedule is None else schedule.name
        until = run.fire_at + _RERUN_SPAN
        later = mine.runs(name, origin="rerun", since=run.fire_at, until=until, limit=_MAX_RERUNS)
        if schedule is not None and is_of_stop(run):
            # Who paused or held the schedule, and why.
            sentence = mine.explain(name, at=run.fire_at).sentence
        else:
            sentence = explain_run(run, now=now, spec=spec_of_run(context, run))
        return {
            "run": run,
            "schedule": schedule,
            "reruns": [each for each in later if each.rerun_of == run.id],
            "now": now,
            "local": self.zone.of("UTC" if schedule is None else schedule.timezone),
            "sentence": sentence[:1].upper() + sentence[1:],
            "steps": steps(run),
            "draw": _draw,
            "wait_text": wait_text,
            "can_rerun": can_rerun(run),
            "can_cancel": can_cancel(run),
            "task_url": self._task_url(run.id),
        }

    def _task_url(self, run_id: str) -> str | None:
        """Return Flower's page of the task, if Flower has received its events."""
        is_known = run_id in self.application.events.state.tasks
        return self.reverse_url("task", run_id) if is_known else None


def _draw(step: Step) -> str:
    return share(start=step.start, share=step.share, label=f"{step.share:.0%} of the run")


class RunLinkData(PageHandler):
    """The URL of a run, for Flower's page of its task: ``{"url": null}`` if it is not a run."""

    tab = "runs"

    async def get(self, run_id: str) -> None:
        """Answer with JSON."""
        try:
            await self.call(lambda: self.schedules.get_run(run_id))
        except (NotFoundError, ValueError):
            self.finish({"url": None})
            return
        self.finish({"url": self.link("dynbeat_run", run_id)})
