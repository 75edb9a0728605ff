"""One page of a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from celery_dynbeat.client.views.base import Info
from celery_dynbeat.client.views.change import ChangeInfo
from celery_dynbeat.client.views.request import RequestInfo
from celery_dynbeat.client.views.run import RunInfo
from celery_dynbeat.client.views.schedule import ScheduleInfo

T = TypeVar("T", bound=Info)


@dataclass(frozen=True, slots=True, eq=False)
class ItemPage(Info, Sequence[T], Generic[T]):
    """One page of a list. Pass ``cursor`` as ``after`` to get the next page.

    ``cursor`` is None if this is the last page. A page equals a list of the same items.
    """

    items: tuple[T, ...]
    cursor: str | None

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return list(self.items) == other
        if isinstance(other, ItemPage):
            return (self.items, self.cursor) == (other.items, other.cursor)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.items, self.cursor))


class Page(ItemPage[ScheduleInfo]):
    """One page of schedules."""

    __slots__ = ()


class ChangePage(ItemPage[ChangeInfo]):
    """One page of changes."""

    __slots__ = ()


class RequestPage(ItemPage[RequestInfo]):
    """One page of requests."""

    __slots__ = ()


class RunPage(ItemPage[RunInfo]):
    """One page of runs."""

    __slots__ = ()
