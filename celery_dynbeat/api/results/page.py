"""One page of a list, and the number of its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from celery_dynbeat.api.results import cursors
from celery_dynbeat.api.results.base import Info

T = TypeVar("T", bound=Info)

#: Items of a page of any list.
PAGE_SIZE = 100


@dataclass(frozen=True, slots=True, eq=False)
class Page(Info, Sequence[T], Generic[T]):
    """One page of a list. Pass ``cursor`` as ``after`` to get the next page.

    ``cursor`` is an opaque text, or None if this is the last page. A page equals a list of the same
    items.
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
        if isinstance(other, Page):
            return (self.items, self.cursor) == (other.items, other.cursor)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.items, self.cursor))


def page_of(
    rows: Sequence[Any],
    *,
    limit: int,
    order: str,
    info: Callable[[Any], T],
    key: Callable[[T], Sequence[Any]],
) -> Page[T]:
    """Return a page of the first ``limit`` rows. One more row means that there is a next page.

    ``key`` returns the key of an item in the list's ``order``, for the cursor.
    """
    items = tuple(map(info, rows[:limit]))
    is_last = len(rows) <= limit
    return Page(items, None if is_last else cursors.encode(order, key(items[-1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedCount(Info):
    """A number of schedules or runs. If ``exact`` is false, it is a lower bound.

    Its text is ``"123"``, or ``"10,000+"`` if it is not exact.
    """

    count: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.count:,}" if self.exact else f"{self.count:,}+"
