"""Write foreign schedules, one transaction for each batch.

A schedule is created, or compared with the row of an earlier import:

    no row                                   -> create
    a row without the tag of the import      -> refuse: another schedule has the name
    another definition in the source         -> update
    the source has run it since              -> advance: its fire times until then are done
    the source would not run it again        -> pause the row of an earlier import, else skip it
    everything is the same                   -> keep

A second import therefore only adds the progress that the old scheduler has made in the meantime.
The progress of the two schedulers is never mixed. The scheduler with the later last run counts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from celery.utils.imports import import_from_cwd, symbol_by_name
from sqlalchemy.orm import Session

from celery_dynbeat.api import audit, checks, edits, limits, owner_clock, timing
from celery_dynbeat.api.audit import is_same
from celery_dynbeat.api.edits import Definition, RowEdit, SourceProgress
from celery_dynbeat.api.owner_clock import OwnerClock
from celery_dynbeat.api.timing import ScheduleColumns
from celery_dynbeat.common.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidTriggerError,
    LimitError,
)
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import shorten
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.importing.foreign import (
    Converted,
    ForeignEntry,
    ImportOutcome,
    ImportResult,
    Note,
)
from celery_dynbeat.planning import calendar_names
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import schedules
from celery_dynbeat.store.schedules import imports
from celery_dynbeat.triggers import Trigger, parse_trigger

#: The columns that the source defines. The others are policies and progress.
_DEFINITION = (
    *("task", "args", "kwargs", "options", "trigger_kind", "trigger_spec", "timezone"),
    *("inherits_timezone", "start_at", "end_at", "max_runs", "expires_after", "description"),
)
#: Schedules after which the database counts its rows for the first time.
_FIRST_STATISTICS = 1_000
#: The largest value of the column run_count.
_MAX_RUN_COUNT = 2**63 - 1
#: The start of the reason of a pause that an import made, and that an import may end.
DISABLED_PREFIX = "disabled in "

#: Returns the owner of an entry.
OwnerOf = Callable[[ForeignEntry], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An entry with its owner, and its row of an earlier import or another schedule, or None."""

    entry: ForeignEntry
    owner: str
    row: Schedule | None
    clock: OwnerClock
    now: datetime

    def result(
        self, outcome: ImportOutcome, *, trigger: str = "", reason: str = ""
    ) -> ImportResult:
        """Return a result for the entry."""
        return ImportResult(self.entry, self.owner, outcome, trigger, reason)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The row that an entry would become, its trigger, and notes on it."""

    row: ScheduleColumns
    trigger: Trigger
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Importer:
    """Writes the schedules of one source. ``package`` names its scheduler."""

    context: Context
    package: str
    owner_of: OwnerOf
    dry_run: bool = True
    _seen: set[tuple[str, str]] = field(default_factory=set)
    #: The schedules that a dry run would have created so far, by owner, for the quota.
    _planned: Counter[str] = field(default_factory=Counter)

    @property
    def tag(self) -> str:
        """The tag of each imported schedule."""
        return f"import:{self.package}"

    def write(self, batch: Sequence[ForeignEntry]) -> Sequence[ImportResult]:
        """Return the result of each schedule. A dry run writes nothing."""
        transact = self.context.read_many if self.dry_run else self.context.write
        results = transact(None, lambda session: self._batch(session, batch))
        before = len(self._seen)
        self._seen.update((each.owner, each.entry.name) for each in results)
        if not self.dry_run and _has_doubled(before, len(self._seen)):
            self.context.write(None, imports.refresh_statistics)
        return results

    def left_over(self) -> Iterator[tuple[str, str]]:
        """Yield owner and name of earlier imported schedules that no batch had."""
        after: imports.Key | None = None
        while True:
            page = self.context.read_many(
                None, partial(imports.tagged_page, tag=self.tag, after=after)
            )
            yield from (key for key in page.keys if key not in self._seen)
            after = page.last_key
            if after is None:
                return

    def _batch(self, session: Session, batch: Sequence[ForeignEntry]) -> Sequence[ImportResult]:
        owned, refused = self._owned(batch)
        owners = {owner for owner, _ in owned}
        if self.dry_run:
            clocks = owner_clock.read_many(self.context, session, owners)
        else:
            clocks = owner_clock.lock_many(self.context, session, owners, zoned=owners)
        rows = imports.named(session, set(owned), lock=not self.dry_run)
        # After the locks, for which this transaction may have waited.
        now = self.context.clock.now()
        results: dict[tuple[str, str], ImportResult] = {}
        created: list[ScheduleColumns] = []
        for key, entry in owned.items():
            candidate = Candidate(
                entry=entry, owner=key[0], row=rows.get(key), clock=clocks[key[0]], now=now
            )
            results[key], new = self._one(session, candidate)
            created += [new] if new is not None else []
        kept, over_quota = self._within_quota(session, created)
        for key, result in results.items():
            if result.outcome is ImportOutcome.CREATE and key[0] in over_quota:
                reason = over_quota[key[0]]
                results[key] = replace(result, outcome=ImportOutcome.REFUSE, reason=reason)
        if kept and not self.dry_run:
            used = owner_clock.calendars_of(clocks)
            edits.insert(self.context, session, kept, calendars=used, now=now)
        return [*results.values(), *refused]

    def _owned(
        self, batch: Sequence[ForeignEntry]
    ) -> tuple[Mapping[tuple[str, str], ForeignEntry], Sequence[ImportResult]]:
        """Return the entries by owner and name, and the results of those that are left out.

        Databases reject a query with a null character, a lone surrogate or a long owner. One such
        schedule must not fail the batch.
        """
        owned: dict[tuple[str, str], ForeignEntry] = {}
        left_out = []
        for entry in batch:
            if self.context.beat_schedule.get(entry.name):
                # The other scheduler has copied the entry.
                reason = "beat keeps this entry of beat_schedule as a schedule itself"
                left_out.append(ImportResult(entry, "", ImportOutcome.SKIP, reason=reason))
                continue
            owner, reason = self.owner_of(entry), ""
            try:
                checks.check_owner(owner)
                checks.check_name("name", entry.name)
            except InvalidArgumentError as error:
                reason = str(error)
            if (owner, entry.name) in owned or (owner, entry.name) in self._seen:
                reason = "the source has two schedules of this name for one owner"
            if reason:
                left_out.append(ImportResult(entry, owner, ImportOutcome.REFUSE, reason=reason))
            else:
                owned[owner, entry.name] = entry
        return owned, left_out

    def _one(
        self, session: Session, candidate: Candidate
    ) -> tuple[ImportResult, ScheduleColumns | None]:
        """Return the result, and the row to insert. Update the row if the source differs."""
        entry, row, converted = candidate.entry, candidate.row, candidate.entry.converted
        if row is not None and not self._is_imported(row):
            return candidate.result(ImportOutcome.REFUSE, reason=clash(row)), None
        if converted is None:
            return self._not_imported(session, candidate), None
        try:
            wanted = self._wanted(candidate, converted)
        except InvalidArgumentError as error:
            return candidate.result(ImportOutcome.REFUSE, reason=str(error)), None
        if wanted.notes:
            entry = replace(entry, notes=(*entry.notes, *wanted.notes))
            candidate = replace(candidate, entry=entry)
        words = _words(wanted.trigger)
        if row is None:
            reason = "" if wanted.row.enabled else f"paused: {wanted.row.paused_reason}"
            return candidate.result(ImportOutcome.CREATE, trigger=words, reason=reason), wanted.row
        outcome, reason = self._change(session, row, wanted, converted, now=candidate.now)
        return candidate.result(outcome, trigger=words, reason=reason), None

    def _is_imported(self, row: Schedule) -> bool:
        return not row.managed_by and self.tag in (row.tags or ())

    def _wanted(self, candidate: Candidate, converted: Converted) -> Wanted:
        """Return the row that the schedule would become, checked as in ``create()``.

        A disabled schedule may exceed a limit, with a note, because it does not run.
        """
        progress = converted.progress
        _check_run_count(progress.run_count)
        if candidate.row is not None:
            # With this progress, the schedule has a fire time if its definition allows one.
            progress = SourceProgress(after=progress.after, anchor_at=progress.anchor_at)
        given = {**converted.fields, "tags": [self.tag]}
        if not converted.enabled:
            given["enabled"] = False
        definition = Definition(
            owner=candidate.owner,
            name=candidate.entry.name,
            task=converted.task,
            # No trigger of another scheduler has calendars. The clock has that of quiet days.
            trigger=converted.trigger,
            fields=given,
            progress=progress,
        )
        new_row = partial(edits.new_row, self.context, clock=candidate.clock, now=candidate.now)
        notes: tuple[Note, ...] = ()
        try:
            new = new_row(definition)
        except InvalidArgumentError as error:
            if converted.enabled:
                raise
            new = new_row(replace(definition, is_limited=False))
            notes = (Note("limit", f"stays paused: {error}"),)
        if not converted.enabled:
            new.paused_reason = self._disabled
        trigger = parse_trigger(new.trigger_kind, new.trigger_spec, timezone=new.timezone)
        return Wanted(new, trigger, notes)

    @property
    def _disabled(self) -> str:
        return f"{DISABLED_PREFIX}{self.package}"

    def _not_imported(self, session: Session, candidate: Candidate) -> ImportResult:
        entry, row = candidate.entry, candidate.row
        if entry.refused is not None:
            return candidate.result(ImportOutcome.REFUSE, reason=entry.refused)
        reason = entry.ended or ""
        if row is None or not row.enabled or row.finished_at is not None:
            return candidate.result(ImportOutcome.SKIP, reason=reason)
        if not self.dry_run:
            self._pause(session, row, reason=f"{self.package}: {reason}", now=candidate.now)
        return candidate.result(ImportOutcome.PAUSE, reason=reason)

    def _pause(self, session: Session, row: Schedule, *, reason: str, now: datetime) -> None:
        with audit.recording(self.context, session, row, Action.PAUSE, now=now, reason=reason):
            schedules.pause(session, row, reason=reason, now=now)

    def _changed(self, row: Schedule, wanted: Wanted) -> Sequence[str]:
        """Return the columns of the definition that differ from the source."""
        return [
            name
            for name in _DEFINITION
            if not is_same(getattr(row, name), getattr(wanted.row, name))
        ]

    def _change(
        self,
        session: Session,
        row: Schedule,
        wanted: Wanted,
        converted: Converted,
        *,
        now: datetime,
    ) -> tuple[ImportOutcome, str]:
        changed = self._changed(row, wanted)
        progress = converted.progress
        pauses = row.enabled and not converted.enabled
        resumes = converted.enabled and row.paused_reason == self._disabled
        names = [*changed, *(["enabled"] if pauses or resumes else [])]
        if not (names or _is_ahead(progress, row)):
            return ImportOutcome.KEEP, ""
        if not self.dry_run:
            values = {name: getattr(wanted.row, name) for name in changed}
            if resumes:
                values |= {"enabled": True, "paused_reason": None, "paused_until": None}
            self._update(session, row, values, wanted.trigger, progress, now=now)
            if pauses:
                self._pause(session, row, reason=self._disabled, now=now)
        if names:
            return ImportOutcome.UPDATE, f"changes {', '.join(names)}"
        return ImportOutcome.ADVANCE, f"has run at {progress.last_run_at}"

    def _update(
        self,
        session: Session,
        row: Schedule,
        values: Mapping[str, Any],
        trigger: Trigger,
        progress: SourceProgress,
        *,
        now: datetime,
    ) -> None:
        was_linked = bool(calendar_names([row]))
        with audit.recording(self.context, session, row, Action.UPDATE, now=now):
            for name, value in values.items():
                setattr(row, name, value)
            # The fire times until then are done, here or in the source.
            done = [each for each in (progress.after, row.last_run_at) if each is not None]
            if _is_ahead(progress, row):
                row.last_run_at = progress.last_run_at
                row.run_count = max(row.run_count, progress.run_count)
                row.anchor_at = progress.anchor_at
            row.error = None
            calendars = owner_clock.existing_calendars(session, calendar_names([row]))
            try:
                timing.plan_continued(
                    self.context,
                    row,
                    trigger,
                    after=max(done, default=now),
                    calendars=calendars,
                    now=now,
                )
            except InvalidTriggerError:
                raise
            except InvalidArgumentError:
                # It has no further fire time.
                row.next_fire_at = row.next_run_at = row.held_at = None
                row.finished_at = now
            if was_linked or calendars:
                owner_clock.link(session, [row], calendars, is_new=False)
            RowEdit(self.context, session, row, now=now).touch()

    def _within_quota(
        self, session: Session, rows: Sequence[ScheduleColumns]
    ) -> tuple[Sequence[ScheduleColumns], Mapping[str, str]]:
        """Return the rows of owners within their quota, and why other owners are refused."""
        refused: dict[str, str] = {}
        while True:
            rows = [row for row in rows if row.owner not in refused]
            wanted = Counter(row.owner for row in rows)
            # A dry run has not inserted the rows of earlier batches.
            planned = self._planned if self.dry_run else None
            try:
                limits.check_quota(self.context, session, wanted, planned=planned)
            except LimitError as error:
                refused[error.owner] = str(error)
                continue
            if self.dry_run:
                self._planned.update(wanted)
            return rows, refused


def owner_function(path: str | None, *, default: str) -> OwnerOf:
    """Return the function that gives the owner of an entry.

    ``path`` names a function such as ``proj.owners:of_row``. It takes the row of the source as a
    mapping, and returns the owner, or None for ``default``. Raises ConfigurationError.
    """
    if path is None:
        return lambda _entry: default
    try:
        # `celery -A` does the same, because the console script does not search the working
        # directory.
        of_row: Any = symbol_by_name(path, imp=import_from_cwd)
    except (ImportError, AttributeError, ValueError) as error:
        message = f"--owner-from {path}: {error}; write it like proj.owners:of_row"
        raise ConfigurationError(message) from error
    if not callable(of_row):
        raise ConfigurationError(f"--owner-from {path}: is not a function")

    def owner_of(entry: ForeignEntry) -> str:
        try:
            owner = of_row(entry.row)
        # The application's function can raise any error.
        except Exception as error:
            rule = f"raised {shorten(error)} for {entry.name!r}"
            raise InvalidArgumentError(f"--owner-from {path} {rule}", field="owner") from error
        if owner is None:
            return default
        if not isinstance(owner, str):
            rule = f"returned {shorten(owner)} for {entry.name!r}: it must return a string or None"
            raise InvalidArgumentError(f"--owner-from {path} {rule}", field="owner")
        return owner

    return owner_of


def _check_run_count(count: object) -> None:
    """Raise InvalidArgumentError unless the database can store the number of runs."""
    if not isinstance(count, int) or not 0 <= count <= _MAX_RUN_COUNT:
        rule = f"must be an integer from 0 to {_MAX_RUN_COUNT:,}: correct it in the source"
        raise checks.invalid("run_count", count, rule)


def _has_doubled(before: int, after: int) -> bool:
    """Return whether the number of schedules passed 1,000, 2,000, 4,000 and so on."""
    return (after // _FIRST_STATISTICS).bit_length() > (before // _FIRST_STATISTICS).bit_length()


@lru_cache(maxsize=8192)
def _words(trigger: Trigger) -> str:
    return trigger.describe()


def clash(row: Schedule) -> str:
    """Return why the schedule with this name does not come from the import."""
    if row.managed_by:
        return "it follows an entry of beat_schedule"
    return (
        "a schedule of this name exists that this import did not create: delete or rename one of"
        " the two, or choose another --owner"
    )


def _is_ahead(progress: SourceProgress, row: Schedule) -> bool:
    """Return whether the source has run the schedule after its last run here."""
    if progress.last_run_at is None:
        return False
    return row.last_run_at is None or progress.last_run_at > row.last_run_at
