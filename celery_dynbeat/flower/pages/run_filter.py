"""The filter of the page "Runs", from its URL or from a form. PURE.

?owner=&name=&task=&origin=&batch=&worker=&text=&status=failed&status=lost&since=24h
?since=2026-11-22T09:00&until=...     without an offset in the zone of the page
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.states import RERUNNABLE, Status
from celery_dynbeat.common.text import shorten
from celery_dynbeat.flower.base.instants import given_instant

#: The quick choices of the page: durations back from now.
SPANS = ("1h", "24h", "7d")
#: Keys of the search box.
KEYS = ("name", "owner", "task", "origin", "batch", "worker", "text")
#: Keys that the bulk actions do not have.
_ONLY_OF_LISTS = ("worker", "text")
#: Statuses that cancel_runs() cancels.
CANCELLABLE = frozenset({"pending", "sent", "retrying"})
_UNSUCCESSFUL = ("failed", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """The filter of the runs that a page shows.

    None and () mean any; ``name`` is a schedule of ``owner``. ``worker`` is exact, and ``text`` is
    a part of the owner or of the name.
    """

    owner: str | None
    name: str | None
    task: str | None
    origin: str | None
    batch: str | None
    worker: str | None
    text: str | None
    statuses: Sequence[str]
    since: datetime | None
    until: datetime | None

    @property
    def search(self) -> Mapping[str, str | None]:
        """The values of the search box."""
        return {key: getattr(self, key) for key in KEYS}

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments of a call of ``owner``, or of one across owners without it."""
        return {
            # Only the calls of an owner have it.
            **({} if self.name is None else {"name": self.name}),
            "task": self.task,
            "origin": self.origin,
            "batch_id": self.batch,
            "status": self.statuses or None,
            "since": self.since,
            "until": self.until,
            **changes,
        }

    def why_no_rerun(self) -> str | None:
        """Return why not all runs of the filter can run again, or None if they can."""
        if self._only_of_lists:
            return f"A rerun of all runs cannot filter by {self._only_of_lists}."
        if self.since is None:
            return "Choose a period, for example 24 h."
        if self.origin is not None or self.batch is not None:
            return "A rerun of all runs cannot filter by origin or batch."
        if not self.rerun_statuses:
            return "Only ended runs can be rerun."
        return None

    def why_no_cancel(self) -> str | None:
        """Return why no run of the filter can be cancelled, or None if some can."""
        if self._only_of_lists:
            return f"A cancellation of all runs cannot filter by {self._only_of_lists}."
        if self.statuses and not CANCELLABLE.intersection(self.statuses):
            return "Only pending, sent and retrying runs can be cancelled."
        return None

    @property
    def _only_of_lists(self) -> str:
        given = [key for key in _ONLY_OF_LISTS if getattr(self, key) is not None]
        return " and ".join(given)

    @property
    def rerun_statuses(self) -> Sequence[str]:
        """The statuses that run again: the statuses in the filter, by default failed and lost."""
        if not self.statuses:
            return _UNSUCCESSFUL
        return [each for each in self.statuses if each in RERUNNABLE]

    @property
    def cancel_statuses(self) -> Sequence[str]:
        """The statuses that are cancelled."""
        chosen = self.statuses or sorted(CANCELLABLE)
        return [each for each in chosen if each in CANCELLABLE]


def run_filter(
    *,
    argument: Callable[[str], str | None],
    statuses: Sequence[str],
    zone: ZoneInfo,
    now: datetime,
) -> RunFilter:
    """Return the filter. ``argument`` returns None for an argument that is not given.

    Raises InvalidScheduleError with the argument, its rule and the fix.
    """

    def instant(field: str) -> datetime | None:
        given = argument(field)
        return given_instant(field, given, zone=zone, now=now) if given else None

    owner, name = argument("owner"), argument("name") or None
    if name is not None and owner is None:
        rule = 'a schedule has an owner: add owner:..., or owner:"" for the application'
        raise InvalidScheduleError(f"name = {shorten(name)}: {rule}", field="name")
    return RunFilter(
        owner=owner,
        name=name,
        task=argument("task") or None,
        origin=argument("origin") or None,
        batch=argument("batch") or None,
        worker=argument("worker") or None,
        text=argument("text") or None,
        statuses=[_status(each) for each in dict.fromkeys(statuses) if each],
        since=instant("since"),
        until=instant("until"),
    )


def _status(given: str) -> str:
    if given not in tuple(Status):
        rule = f"must be one of {', '.join(Status)}"
        raise InvalidScheduleError(f"status = {shorten(given)}: {rule}", field="status")
    return given
