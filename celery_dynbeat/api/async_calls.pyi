# `make docs` writes this stub from the synchronous calls.
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Self, Unpack
from zoneinfo import ZoneInfo

from celery_dynbeat.api.calls import Progress
from celery_dynbeat.api.fields import Changes, Fields, NewFields, TaskLike, TriggerLike
from celery_dynbeat.api.filters import ChangeKeywords, OwnerFilter, RunKeywords, ScheduleKeywords
from celery_dynbeat.api.many import NewSchedule
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.results import (
    AlertInfo,
    BatchInfo,
    BulkResult,
    CalendarInfo,
    ChangeInfo,
    Explanation,
    FireTime,
    ForecastInfo,
    HoldInfo,
    Page,
    Preview,
    QuietHoursInfo,
    RunInfo,
    ScheduleInfo,
    Usage,
)
from celery_dynbeat.common.filters import StatusFilter
from celery_dynbeat.common.infos import BoundedCount
from celery_dynbeat.common.quiet_rule import QuietHours
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.process.async_context import AnyAsyncSession, AsyncContext

class _AsyncCalls:
    def bound(
        self,
        *,
        session: AnyAsyncSession | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Self: ...

class AsyncSharedCalls(_AsyncCalls):
    async def alerts(
        self, *, only_open: bool = True, limit: int = 100, after: str | None = None
    ) -> Page[AlertInfo]: ...
    async def cancel_run(self, run_id: str) -> RunInfo: ...
    async def cancel_runs(
        self, name: str | None = None, *, limit: int = 10000, **matching: Unpack[RunKeywords]
    ) -> int: ...
    async def changes(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
        **matching: Unpack[ChangeKeywords],
    ) -> Page[ChangeInfo]: ...
    async def count(self, **matching: Unpack[ScheduleKeywords]) -> BoundedCount: ...
    async def count_runs(
        self, name: str | None = None, **matching: Unpack[RunKeywords]
    ) -> BoundedCount: ...
    async def create_many(self, many: Iterable[NewSchedule]) -> Sequence[ScheduleInfo]: ...
    async def delete_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult: ...
    async def explain(
        self,
        name: str,
        *,
        at: datetime | None = None,
        count: int = 5,
        **matching: Unpack[OwnerFilter],
    ) -> Explanation: ...
    async def forecast(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        per: str = "minute",
        queue: str | None = None,
        **matching: Unpack[OwnerFilter],
    ) -> ForecastInfo: ...
    async def get_batch(self, batch_id: str) -> BatchInfo: ...
    async def get_run(self, run_id: str) -> RunInfo: ...
    async def hold(
        self, *, until: datetime | None = None, reason: str | None = None
    ) -> HoldInfo: ...
    async def holds(self, *, limit: int = 100, after: str | None = None) -> Page[HoldInfo]: ...
    async def list(
        self,
        *,
        order: str | None = None,
        limit: int = 100,
        after: str | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> Page[ScheduleInfo]: ...
    async def pause_many(
        self,
        *,
        until: datetime | timedelta | None = None,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        reason: str | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult: ...
    async def release(self) -> HoldInfo | None: ...
    async def rerun(self, run_id: str, *, now: bool = False) -> RunInfo: ...
    async def rerun_many(
        self,
        *,
        owner: str | None = None,
        since: datetime,
        until: datetime | None = None,
        ended_before: datetime | None = None,
        status: StatusFilter = ...,
        name: str | None = None,
        task: str | None = None,
        per_minute: int = 100,
        now: bool = False,
    ) -> BatchInfo: ...
    async def resume_many(
        self,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult: ...
    async def runs(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
        **matching: Unpack[RunKeywords],
    ) -> Page[RunInfo]: ...
    async def update_many(
        self,
        changes: Changes,
        *,
        expected: int | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **matching: Unpack[ScheduleKeywords],
    ) -> BulkResult: ...
    async def usage(self, owner: str | None = None) -> Usage: ...

class AsyncOwnerSchedules(AsyncSharedCalls):
    owner: str
    def __init__(self, context: AsyncContext, calls: OwnerSchedules) -> None: ...
    async def backfill(
        self,
        name: str,
        *,
        since: datetime,
        until: datetime,
        per_minute: int = 100,
        now: bool = False,
    ) -> BatchInfo: ...
    async def clear_quiet_hours(self) -> int: ...
    async def create(
        self, name: str, *, task: TaskLike, trigger: TriggerLike, **given: Unpack[NewFields]
    ) -> ScheduleInfo: ...
    async def delete(self, name: str, *, expected_version: int | None = None) -> None: ...
    def export(self) -> AsyncIterator[dict[str, Any]]: ...
    async def get(self, name: str) -> ScheduleInfo: ...
    async def pause(
        self,
        name: str,
        *,
        until: datetime | timedelta | None = None,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo: ...
    async def preview(
        self,
        trigger: TriggerLike,
        name: str | None = None,
        count: int = 5,
        *,
        window: timedelta | float | str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        max_runs: int | None = None,
        catch_up: str | None = None,
        overlap: str | None = None,
        retry: Retry | Mapping[str, Any] | None = None,
    ) -> Preview: ...
    async def quiet_hours(self) -> Sequence[QuietHoursInfo]: ...
    async def rename(
        self, name: str, new_name: str, *, expected_version: int | None = None
    ) -> ScheduleInfo: ...
    async def resume(self, name: str, *, expected_version: int | None = None) -> ScheduleInfo: ...
    async def run_now(self, name: str) -> RunInfo: ...
    async def set_quiet_hours(
        self, windows: Iterable[QuietHours | str] = (), *, calendar: str | None = None
    ) -> int: ...
    async def set_timezone(self, zone: str | ZoneInfo | None) -> int: ...
    async def skip(
        self,
        name: str,
        fire_at: datetime,
        *,
        expected_version: int | None = None,
        reason: str | None = None,
    ) -> ScheduleInfo: ...
    async def timezone(self) -> str: ...
    async def unskip(
        self, name: str, fire_at: datetime, *, expected_version: int | None = None
    ) -> ScheduleInfo: ...
    async def upcoming(
        self, name: str, *, count: int = 5, with_skipped: bool = False
    ) -> Sequence[FireTime]: ...
    async def update(
        self, name: str, *, expected_version: int | None = None, **changes: Unpack[Changes]
    ) -> ScheduleInfo: ...
    async def upsert(
        self, name: str, *, task: TaskLike, trigger: TriggerLike, **given: Unpack[Fields]
    ) -> ScheduleInfo: ...

class AsyncSchedules(AsyncSharedCalls):
    def __init__(self, context: AsyncContext) -> None: ...
    def for_owner(
        self,
        owner: str,
        *,
        session: AnyAsyncSession | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> AsyncOwnerSchedules: ...
    async def delete_owner(
        self, owner: str, *, erase_history: bool = False, progress: Progress | None = None
    ) -> int: ...

class AsyncCalendars(_AsyncCalls):
    def __init__(self, context: AsyncContext) -> None: ...
    async def delete(self, name: str) -> None: ...
    async def get(self, name: str) -> CalendarInfo: ...
    async def list(self, *, limit: int = 100, after: str | None = None) -> Page[CalendarInfo]: ...
    async def upsert(
        self,
        name: str,
        *,
        dates: Mapping[date, str] | Iterable[date],
        weekend: Iterable[str] | None = None,
        allow_empty: bool = False,
    ) -> CalendarInfo: ...
