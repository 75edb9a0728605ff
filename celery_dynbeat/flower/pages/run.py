"""The page of one run."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_dynbeat.api.lists.history import schedule_of
from celery_dynbeat.api.results import RunInfo, ScheduleInfo
from celery_dynbeat.common.errors import RunNotFoundError
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.charts.share import share
from celery_dynbeat.flower.pages import run_steps
from celery_dynbeat.insights.explain.collect import spec_of_run
from celery_dynbeat.insights.explain.past import is_of_stop
from celery_dynbeat.insights.explain.runs import explain_run, wait_text
from celery_dynbeat.planning import ScheduleSpec

#: Reruns of a run have its fire time, each a microsecond later.
_RERUN_SPAN = timedelta(milliseconds=1)
_MAX_RERUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A run, its schedule if that exists, and the runs that repeat it."""

    run: RunInfo
    schedule: ScheduleInfo | None
    reruns: list[RunInfo]
    now: datetime
    spec: ScheduleSpec | None
    #: Who paused or held the schedule, and why, if that skipped or revoked the run.
    stop: str | None


class RunPage(PageHandler):
    """The history of one fire time, step by step."""

    tab = "runs"
    route = "dynbeat_run"

    async def get(self, run_id: str) -> None:
        """Render the page. Answers 404 for an id that no run has."""
        found = await self.call(lambda: self._read(run_id))
        run, schedule = found.run, found.schedule
        sentence = found.stop or explain_run(run, now=found.now, spec=found.spec)
        await self.render_page(
            "run.html",
            run=run,
            schedule=schedule,
            reruns=found.reruns,
            now=found.now,
            local=self.zone.of("UTC" if schedule is None else schedule.timezone),
            sentence=sentence[:1].upper() + sentence[1:],
            steps=run_steps.steps(run),
            draw=_draw,
            wait_text=wait_text,
            can_rerun=run_steps.can_rerun(run),
            can_cancel=run_steps.can_cancel(run),
            task_url=self._task_url(run.id),
        )

    def _read(self, run_id: str) -> _Found:
        run = self.schedules.get_run(run_id)
        mine = self.for_owner(run.owner)
        schedule = schedule_of(self.dynbeat.context, run)
        name = run.name if schedule is None else schedule.name
        until = run.scheduled_for + _RERUN_SPAN
        later = mine.runs(
            name, origin="rerun", since=run.scheduled_for, until=until, limit=_MAX_RERUNS
        )
        now = self.dynbeat.context.clock.now()
        return _Found(
            run=run,
            schedule=schedule,
            reruns=[each for each in later if each.rerun_of == run.id],
            now=now,
            spec=spec_of_run(self.dynbeat.context, run),
            stop=mine.explain(name, at=run.scheduled_for).sentence
            if schedule is not None and is_of_stop(run)
            else None,
        )

    def _task_url(self, run_id: str) -> str | None:
        """Return Flower's page of the task, if Flower has received its events."""
        is_known = run_id in self.application.events.state.tasks
        return self.reverse_url("task", run_id) if is_known else None


def _draw(step: run_steps.Step) -> str:
    return share(start=step.start, share=step.share, label=f"{step.share:.0%} of the run")


class RunLinkData(PageHandler):
    """The URL of a run, for Flower's page of its task: ``{"url": null}`` if it is not a run."""

    tab = "runs"

    async def get(self, run_id: str) -> None:
        """Answer with JSON."""
        try:
            await self.call(lambda: self.schedules.get_run(run_id))
        except (RunNotFoundError, ValueError):
            self.finish({"url": None})
            return
        self.finish({"url": self.link("dynbeat_run", run_id)})
