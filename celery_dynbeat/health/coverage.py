"""Find the queues that no worker consumes, and the tasks that no worker has registered.

A sample of the work is compared with what the workers report: the runs that wait, and the schedules
that are due next. A result is reported only if it is certain. A worker that reports nothing may
serve anything, and a task whose queue is not known may go to any queue.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery import Celery
from celery.app.routes import MapRoute
from sqlalchemy.orm import Session

from celery_dynbeat.broker.task_message import TaskQueues
from celery_dynbeat.health.nodes import reported_names
from celery_dynbeat.store import health, nodes

#: A schedule that is due within this time counts as urgent.
SOON = timedelta(hours=1)


class SampledWork(NamedTuple):
    """A run or a schedule of the sample. ``queue`` is None if it is not known.

    If ``is_run`` is true, it is a run that waits. Otherwise, it is a schedule, and ``is_soon`` says
    whether it is due within an hour. ``is_known`` is true if this application has the task.
    """

    task: str
    queue: str | None
    is_run: bool
    is_soon: bool = False
    is_known: bool = False


class Worker(NamedTuple):
    """The queues and the tasks of a worker, or None if they are not known."""

    queues: frozenset[str] | None
    tasks: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A queue that no worker consumes, or a task that no worker has registered.

    ``queue`` is the queue of the task. ``runs`` and ``schedules`` are their numbers in the sample.
    ``urgent`` says that runs are waiting or will soon fail.
    """

    name: str
    queue: str | None = None
    runs: int
    schedules: int
    urgent: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """The queues or tasks that no worker serves, most runs first, or None if this is unknown."""

    queues: Sequence[Unserved] | None = None
    tasks: Sequence[Unserved] | None = None


def compare(work: Sequence[SampledWork], workers: Sequence[Worker]) -> Coverage:
    """Return what none of ``workers`` serves. If there is no worker, nothing is known."""
    if not workers or any(worker.queues is None for worker in workers):
        return Coverage()
    consumed = frozenset[str]().union(*(worker.queues or () for worker in workers))
    unconsumed = [each for each in work if each.queue is not None and each.queue not in consumed]
    queues = _unserved(unconsumed, lambda each: (each.queue or "", None), lambda each: each.is_run)
    if any(worker.tasks is None for worker in workers):
        return Coverage(queues)
    unregistered = [each for each in work if not _is_registered(each, workers, consumed)]
    return Coverage(
        queues,
        _unserved(
            unregistered,
            lambda each: (each.task, each.queue),
            # A name that this application does not know either may be an error of one schedule.
            lambda each: each.is_known and (each.is_run or each.is_soon),
        ),
    )


def _is_registered(work: SampledWork, workers: Sequence[Worker], consumed: frozenset[str]) -> bool:
    # Only the workers that consume the queue can receive the task.
    anywhere = work.queue not in consumed
    return any(
        work.task in (worker.tasks or ())
        for worker in workers
        if anywhere or work.queue in (worker.queues or ())
    )


def _unserved(
    work: Sequence[SampledWork],
    key: Callable[[SampledWork], tuple[str, str | None]],
    is_urgent: Callable[[SampledWork], bool],
) -> Sequence[Unserved]:
    runs = Counter(key(each) for each in work if each.is_run)
    schedules = Counter(key(each) for each in work if not each.is_run)
    urgent = {key(each) for each in work if is_urgent(each)}
    found = [
        Unserved(
            name=name,
            queue=queue,
            runs=runs[name, queue],
            schedules=schedules[name, queue],
            urgent=(name, queue) in urgent,
        )
        for name, queue in runs | schedules
    ]
    return sorted(found, key=lambda each: (-each.runs, -each.schedules, each.name))


def read(
    session: Session, app: Celery, *, now: datetime, node_timeout: timedelta, lag: timedelta
) -> Coverage:
    """Return what no worker serves at ``now``. Imports the tasks of ``app``.

    Workers that ended within ``lag`` count: they may be restarting.
    """
    rows = nodes.read_workers(
        session, seen_since=now - max(node_timeout, lag), stopped_since=now - lag
    )
    if not rows or len(rows) > nodes.MAX_WORKERS:
        return Coverage()
    workers = [Worker(reported_names(row.queues), reported_names(row.tasks)) for row in set(rows)]
    return compare(list(_sample(session, app, now)), workers)


def _sample(session: Session, app: Celery, now: datetime) -> Iterator[SampledWork]:
    queues = TaskQueues(app, now=now)
    # Only a function of the application can depend on the arguments, which may be large.
    with_arguments = any(not isinstance(route, MapRoute) for route in app.amqp.routes)

    def work(row: Any, **kind: bool) -> SampledWork:
        given = {name: getattr(row, name) for name in ("args", "kwargs") if with_arguments}
        queue = queues.of(row.task, row.options, **given)
        return SampledWork(row.task, queue, is_known=row.task in app.tasks, **kind)

    for row in health.sample_waiting(session, with_arguments=with_arguments):
        yield work(row, is_run=True)
    for row in health.sample_due(session, with_arguments=with_arguments):
        yield work(row, is_run=False, is_soon=row.next_run_at <= now + SOON)


def shown(unserved: Iterable[Unserved], *, limit: int) -> str:
    """Return the first names with their numbers, as a problem shows them."""
    listed = list(unserved)
    names = [
        f"{each.name!r} (waiting runs: {each.runs}, schedules: {each.schedules})"
        for each in listed[:limit]
    ]
    more = [f"and {len(listed) - limit} more"] if len(listed) > limit else []
    return ", ".join([*names, *more])
