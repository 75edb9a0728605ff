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

from celery_dynbeat.api.timing import ScheduleColumns
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.filters import ChangeFilter
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.importing.foreign import (
    Converted,
    ForeignEntry,
    ImportOutcome,
    ImportResult,
)
from celery_dynbeat.importing.tables import ForeignProgress, TableSource
from celery_dynbeat.importing.writing import Candidate, Importer, clash
from celery_dynbeat.store import changes
from celery_dynbeat.triggers import Cron, Every, Once, RRule, parse_trigger

#: The resolution of a crontab.
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class WriteBack(Importer):
    """Writes the progress back to ``target``. The schedules here are only read."""

    target: TableSource | None = None
    _progress: dict[tuple[str, str], ForeignProgress] = field(default_factory=dict)

    def write(self, batch: Sequence[ForeignEntry]) -> Sequence[ImportResult]:
        """Return the result of each schedule. If ``target`` is None, nothing is written."""
        # Read before the transaction, because a call holds one connection.
        _ = self._has_imported
        results = super().write(batch)
        given = [
            (each.entry, self._progress.pop(key))
            for each in results
            if (key := (each.owner, each.entry.name)) in self._progress
        ]
        if self.target is None or not given:
            return results
        changed = self.target.write_back(given, now=self.context.clock.now())
        return [_conflict(each) if each.entry.name in changed else each for each in results]

    def _one(
        self, session: Session, candidate: Candidate
    ) -> tuple[ImportResult, ScheduleColumns | None]:
        candidate = replace(candidate, entry=replace(candidate.entry, notes=()))
        return self._result(session, candidate), None

    def _result(self, session: Session, candidate: Candidate) -> ImportResult:
        entry, row = candidate.entry, candidate.row
        reason = entry.refused or entry.ended or "it was not imported for this owner"
        if row is None:
            matching = ChangeFilter(owner=candidate.owner, name=entry.name)
            was_deleted = changes.page(session, matching=matching, after=None, limit=1)
            if was_deleted and self._has_imported:
                return self._stopped(candidate, "deleted here")
            if was_deleted:
                reason = f"all schedules with the tag {self.tag} are deleted here"
            return candidate.result(ImportOutcome.SKIP, reason=reason)
        if not self._is_imported(row):
            return candidate.result(ImportOutcome.SKIP, reason=clash(row))
        if row.finished_at or not row.enabled:
            why = "finished here" if row.finished_at else f"paused here: {row.paused_reason or ''}"
            return self._stopped(candidate, why)
        if entry.converted is None:
            return candidate.result(ImportOutcome.SKIP, reason=reason)
        return self._active(candidate, row, entry.converted)

    @cached_property
    def _has_imported(self) -> bool:
        return next(self.left_over(), None) is not None

    def _stopped(self, candidate: Candidate, why: str) -> ImportResult:
        row = candidate.row
        if not candidate.entry.row["enabled"]:
            return candidate.result(ImportOutcome.KEEP)
        last_run_at = None if row is None else row.last_run_at
        self._note_progress(candidate, enabled=False, last_run_at=last_run_at)
        return candidate.result(ImportOutcome.PAUSE, trigger="disabled", reason=why)

    def _active(self, candidate: Candidate, row: Schedule, converted: Converted) -> ImportResult:
        try:
            wanted = self._wanted(candidate, converted)
            counted_from = _counted_from(row, candidate.now)
        except InvalidArgumentError as error:
            return candidate.result(ImportOutcome.SKIP, reason=str(error))
        differs = self._changed(row, wanted)
        reason = f"differs in {', '.join(differs)}: not written" if differs else ""
        there, is_enabled = converted.progress.last_run_at, bool(candidate.entry.row["enabled"])
        # If there is no last run, a scheduler may count from its start, and earlier fire times are
        # lost.
        is_same = there is not None and (
            there == counted_from or wanted.row.next_fire_at == row.next_fire_at
        )
        if is_enabled and (counted_from is None or is_same):
            outcome = ImportOutcome.SKIP if differs else ImportOutcome.KEEP
            return candidate.result(outcome, reason=reason)
        here = max((each for each in (counted_from, row.last_run_at) if each), default=None)
        if there is not None and here is not None and there > here:
            reason = f"{self.package} has run it at {there}, after its last run here"
            return candidate.result(ImportOutcome.SKIP, reason=reason)
        self._note_progress(candidate, enabled=True, last_run_at=counted_from)
        outcome = ImportOutcome.ADVANCE if is_enabled else ImportOutcome.UPDATE
        words = "enabled"
        if counted_from is not None:
            words += f", counts from {counted_from:%Y-%m-%d %H:%M:%S} UTC"
        return candidate.result(outcome, trigger=words, reason=reason)

    def _note_progress(
        self, candidate: Candidate, *, enabled: bool, last_run_at: datetime | None
    ) -> None:
        entry, row = candidate.entry, candidate.row
        run_count = max(entry.row.get("total_run_count") or 0, 0 if row is None else row.run_count)
        self._progress[candidate.owner, entry.name] = ForeignProgress(
            enabled=enabled,
            last_run_at=last_run_at,
            # A one-off that has a run is finished in the other scheduler. The scheduler sets 0 when
            # it disables a one-off.
            run_count=0 if entry.row.get("one_off") else run_count,
        )


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


def _conflict(result: ImportResult) -> ImportResult:
    reason = "it has changed in the other scheduler in the meantime: repeat the command"
    return replace(result, outcome=ImportOutcome.SKIP, trigger="", reason=reason)
