"""Pages of the rows of a group of owners, read by the index of each owner.

No index has the rows of all owners of a group in the order of a list. A list therefore has parts.
The first part contains the first MAX_OWNERS owners that have rows, by name, and each further part
contains the following owners. Within a part the rows of its owners are merged in the order of the
list. A page ends with its part at the latest, and can be shorter than its limit.

Owners can get their first rows between two pages. A part that has begun keeps its first and last
name, so it then reads more than MAX_OWNERS owners. No page repeats or misses a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery_dynbeat.common.errors import InvalidScheduleError

#: Owners of one part. A page reads the first rows of each of them.
MAX_OWNERS = 50
#: Owners of a part that has begun. Only the cursor of a group that grew fast meets this limit.
MAX_RESUMED_OWNERS = 1_000
Key: TypeAlias = tuple[Any, ...]
#: Returns up to a number of owners above an owner that have rows, by name.
Owners: TypeAlias = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Place:
    """The start of a page: after ``key``, in the part with owners above ``after`` up to ``last``.

    ``key=None`` is the start of a part, whose owners are not known yet.
    """

    after: str
    last: str = ""
    key: Key | None = None

    @property
    def parts(self) -> Key:
        """The parts of a cursor."""
        return (self.after,) if self.key is None else (self.after, self.last, *self.key)

    @classmethod
    def of(cls, parts: Key) -> "Place":
        """Return the place that a cursor names."""
        after, *rest = parts
        return cls(after, rest[0], tuple(rest[1:])) if rest else cls(after)


@dataclass(frozen=True, slots=True)
class OwnerRows:
    """The first rows of one owner, and the key after which there can be more rows, or None.

    Each row has the columns of the key.
    """

    rows: Sequence[Any]
    end: Key | None


#: Returns the rows of an owner after a key, if it is one of a number of owners.
Read: TypeAlias = Callable[[str, Key | None, int], OwnerRows]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of a page, and the start of the next page, or None if this is the last page."""

    rows: Sequence[Any]
    last: Place | None


def page(
    *,
    owners: Owners,
    read: Read,
    key_of: Callable[[Any], Key],
    descending: bool,
    place: Place | None,
    limit: int,
) -> GroupRows:
    """Return up to ``limit`` rows of the part at ``place``, in the order of their keys.

    Raises InvalidScheduleError if the part of the place has more than MAX_RESUMED_OWNERS owners.
    """
    place = place or Place("")
    found = owners(place.after, MAX_OWNERS + 1)
    if place.key is None:
        part = found[:MAX_OWNERS]
        last = part[-1] if part else place.last
    else:
        found, last = _resumed(owners, found, place), place.last
        # Owners above the last one belong to the next part.
        part = [owner for owner in found if owner <= last]
    of_owners = [read(owner, place.key, len(part)) for owner in part]
    rows = sorted((row for each in of_owners for row in each.rows), key=key_of, reverse=descending)
    ends = [each.end for each in of_owners if each.end is not None]
    end = None
    if ends:
        # After the first end, rows of its owner are missing.
        end = max(ends) if descending else min(ends)
        rows = [row for row in rows if _is_until(key_of(row), end, descending=descending)]
    if len(rows) > limit:
        rows = rows[:limit]
        end = key_of(rows[-1])
    if end is not None:
        return GroupRows(rows, Place(place.after, last, end))
    is_last = not found or found[-1] <= last
    return GroupRows(rows, None if is_last else Place(last))


def _resumed(owners: Owners, found: Sequence[str], place: Place) -> Sequence[str]:
    """Return all owners of a part that has begun. ``found`` are the first ones of them."""
    resumed = block = list(found)
    while len(block) > MAX_OWNERS and block[-1] <= place.last:
        if len(resumed) > MAX_RESUMED_OWNERS:
            msg = (
                f"after: the rest of the list has more than {MAX_RESUMED_OWNERS:,} owners, because"
                " it grew after the previous page; list the group again from the first page"
            )
            raise InvalidScheduleError(msg, field="after")
        block = list(owners(block[-1], MAX_OWNERS + 1))
        resumed = [*resumed, *block]
    return resumed


def _is_until(key: Key, end: Key, *, descending: bool) -> bool:
    return key >= end if descending else key <= end
