"""Write the progress of imported schedules back to django-celery-beat.

    it ran here, or its fire times were skipped  -> advance: the other scheduler counts from there
    it was paused, finished or deleted here      -> pause: the other scheduler must not run it
    all imported schedules are deleted here      -> skip: that is the last step of the way back
    it was resumed here                          -> update: the other scheduler runs it again
    the other scheduler has the same next run    -> keep
    it was not imported, or ran there since      -> skip

Definitions are not written. A schedule that was edited on one side is reported with its fields. A
second call writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from sqlalchemy.orm import Session

from celery_dynbeat.api.columns import ScheduleColumns
from celery_dynbeat.api.edit.owner_zone import OwnerClock
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.importing.found import Found
from celery_dynbeat.importing.results import Outcome, Result
from celery_dynbeat.importing.sql.source import DjangoSource, Progress
from celery_dynbeat.importing.writing import Importer, clash
from celery_dynbeat.store.schedules import change_pages
from celery_dynbeat.triggers import Cron, Every, Once, RRule, parse_trigger

#: The resolution of a crontab.
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class WriteBack(Importer):
    """Writes the progress back to ``target``. The schedules here are only read."""

    target: DjangoSource | None = None
    _progress: dict[tuple[str, str], Progress] = field(default_factory=dict)

    def write(self, batch: Sequence[Found]) -> Sequence[Result]:
        """Return the result of each schedule. If ``target`` is None, nothing is written."""
        # Read before the transaction, because a call holds one connection.
        _ = self._has_imported
        results = super().write(batch)
        keys = [(each.owner, each.found.name) for each in results]
        given = [
            (each.found, self._progress.pop(key))
            for each, key in zip(results, keys, strict=True)
            if key in self._progress
        ]
        if self.target is None or not given:
            return results
        changed = self.target.write_back(given, now=self.context.clock.now())
        return [_conflict(each) if each.found.name in changed else each for each in results]

    def _one(
        self,
        session: Session,
        found: Found,
        owner: str,
        row: Schedule | None,
        clock: OwnerClock,
        *,
        now: datetime,
    ) -> tuple[Result, ScheduleColumns | None]:
        found = replace(found, notes=())
        if row is None:
            return self._missing(session, found, owner), None
        if not self._is_imported(row):
            return Result(found, owner, Outcome.SKIP, reason=clash(row)), None
        if row.enabled and row.finished_at is None:
            return self._active(found, owner, row, clock, now=now), None
        why = "finished here" if row.finished_at else f"paused here: {row.paused_reason or ''}"
        return self._stopped(found, owner, why, row), None

    @cached_property
    def _has_imported(self) -> bool:
        return next(self.left_over(), None) is not None

    def _missing(self, session: Session, found: Found, owner: str) -> Result:
        matching = change_pages.ChangeFilter(owner=owner, name=found.name)
        if change_pages.page(session, matching=matching, after=None, limit=1):
            if not self._has_imported:
                reason = f"all schedules with the tag {self.tag} are deleted here"
                return Result(found, owner, Outcome.SKIP, reason=reason)
            return self._stopped(found, owner, "deleted here", None)
        reason = found.refused or found.ended or "it was not imported for this owner"
        return Result(found, owner, Outcome.SKIP, reason=reason)

    def _stopped(self, found: Found, owner: str, why: str, row: Schedule | None) -> Result:
        if not _is_enabled(found):
            return Result(found, owner, Outcome.KEEP)
        self._progress[owner, found.name] = Progress(
            enabled=False,
            last_run_at=None if row is None else row.last_run_at,
            run_count=_run_count(found, row),
        )
        return Result(found, owner, Outcome.PAUSE, "disabled", why)

    def _active(
        self, found: Found, owner: str, row: Schedule, clock: OwnerClock, *, now: datetime
    ) -> Result:
        if found.converted is None:
            reason = found.refused or found.ended or ""
            return Result(found, owner, Outcome.SKIP, reason=reason)
        try:
            wanted = self._wanted(found, owner, found.converted, clock, row, now=now)
            counted_from = _counted_from(row, now)
        except (InvalidScheduleError, InvalidTriggerError) as error:
            return Result(found, owner, Outcome.SKIP, reason=str(error))
        differs = self._changed(row, wanted)
        reason = f"differs in {', '.join(differs)}: not written" if differs else ""
        unchanged = Result(found, owner, Outcome.SKIP if differs else Outcome.KEEP, reason=reason)
        there, is_enabled = found.converted.progress.last_run_at, _is_enabled(found)
        # If there is no last run, a scheduler may count from its start, and earlier fire times are
        # lost.
        is_same = there is not None and (
            there == counted_from or wanted.row.next_fire_at == row.next_fire_at
        )
        if is_enabled and (counted_from is None or is_same):
            return unchanged
        here = max((each for each in (counted_from, row.last_run_at) if each), default=None)
        if there is not None and here is not None and there > here:
            reason = f"{self.package} has run it at {there}, after its last run here"
            return Result(found, owner, Outcome.SKIP, reason=reason)
        self._progress[owner, found.name] = Progress(
            enabled=True,
            last_run_at=counted_from,
            run_count=_run_count(found, row),
        )
        outcome = Outcome.ADVANCE if is_enabled else Outcome.UPDATE
        words = "enabled"
        if counted_from is not None:
            words += f", counts from {counted_from:%Y-%m-%d %H:%M:%S} UTC"
        return Result(found, owner, outcome, words, reason)


def _is_enabled(found: Found) -> bool:
    return bool(found.row["enabled"])


def _run_count(found: Found, row: Schedule | None) -> int:
    if found.row.get("one_off"):
        # A one-off that has a run is finished in the other scheduler. The scheduler sets 0 when it
        # disables a one-off.
        return 0
    return max(found.row.get("total_run_count") or 0, 0 if row is None else row.run_count)


def _counted_from(row: Schedule, now: datetime) -> datetime | None:
    """Return the instant from which the other scheduler counts to the next fire time here.

    It follows the last fire time that was sent or skipped here. Raises InvalidTriggerError.
    """
    trigger = parse_trigger(row.trigger_kind, row.trigger_spec, timezone=row.timezone)
    last, following = row.last_run_at, row.next_fire_at
    if following is None or isinstance(trigger, Once):
        return last
    if isinstance(trigger, Every) and trigger.interval is not None:
        return following - trigger.interval
    # The instant of a solar event differs by seconds between schedulers, so count from well after
    # the last event.
    is_exact = isinstance(trigger, Cron | RRule)
    if last is not None and is_exact and trigger.next_after(last) == following:
        return last
    return min(now, following - _MINUTE)


def _conflict(result: Result) -> Result:
    reason = "it has changed in the other scheduler in the meantime: repeat the command"
    return replace(result, outcome=Outcome.SKIP, trigger="", reason=reason)
