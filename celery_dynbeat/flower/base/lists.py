"""Links between the pages of a list, and its active filters. PURE.

A page starts after a cursor, so a list has no page numbers. The way back is in the URL: ``after``
is the cursor of this page. Each ``back`` is the cursor of an earlier page, the oldest first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from celery_dynbeat.api.filters import Key

SIZES = (25, 50, 100)
#: The maximum number of earlier pages in a URL, and of their characters. A proxy can refuse a URL
#: of 8,000 characters.
MAX_BACK = 20
MAX_LENGTH = 4_000
#: The cursor of the first page in ``back``.
_FIRST = ""
#: A URL can repeat an argument. Each link contains all others.
MAX_CHIPS = 20
#: The arguments that a link to another list does not keep, because they are the place in this list.
_PLACE: Mapping[str, None] = {"q": None, "after": None, "back": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlace:
    """The position of a page in a list, from the arguments of its URL."""

    after: str | None
    back: Sequence[str]
    size: int

    @classmethod
    def of(cls, *, after: str, back: Sequence[str], size: str) -> "PagePlace":
        """Return the place; an unknown size means the smallest."""
        return cls(
            after=after or None,
            back=tuple(back) if after else (),
            size=next((each for each in SIZES if str(each) == size), SIZES[0]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """The links below a list. A link is None if there is no such page."""

    first: str | None
    previous: str | None
    next: str | None
    #: The links that show more or fewer rows. That of the present size is None.
    sizes: Sequence[tuple[int, str | None]]


def paging(place: PagePlace, *, cursor: str | None, here: Callable[..., str]) -> Paging:
    """Return the links of a page that ends with ``cursor``. ``here`` gives its URL changed."""
    return Paging(
        first=None if place.after is None else here(after=None, back=None),
        previous=_previous(place, here),
        next=None if cursor is None else _next(place, cursor, here),
        sizes=[
            (size, None if size == place.size else here(size=size, after=None, back=None))
            for size in SIZES
        ],
    )


def _next(place: PagePlace, cursor: str, here: Callable[..., str]) -> str:
    back = [*place.back, place.after or _FIRST][-MAX_BACK:]
    while sum(map(len, back)) > MAX_LENGTH:
        back.pop(0)
    return here(after=cursor, back=back)


def _previous(place: PagePlace, here: Callable[..., str]) -> str | None:
    # Of a list that was followed for long, the oldest cursors are gone.
    if not place.back:
        return None
    return here(after=place.back[-1] or None, back=list(place.back[:-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An active filter. ``href`` is the list without it."""

    label: str
    value: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """The active filters. ``clear_all`` is the list without filters, None with fewer than two."""

    chips: Sequence[Chip]
    clear_all: str | None


def active_filters(
    given: Mapping[str, Sequence[str]],
    keys: Sequence[Key],
    *,
    here: Callable[..., str],
    time_text: Callable[[str], str],
) -> Chips:
    """Return the filters among the arguments ``given``, at most MAX_CHIPS.

    ``here`` returns the URL of the list with other arguments, ``time_text`` an instant for people.
    """
    found = list(islice(_chips(given, keys, here, time_text), MAX_CHIPS))
    names = {name: None for each in keys for name in (each.name, each.end) if name}
    is_several = len(found) > 1
    return Chips(chips=found, clear_all=here(**_PLACE, **names) if is_several else None)


def _chips(
    given: Mapping[str, Sequence[str]],
    keys: Sequence[Key],
    here: Callable[..., str],
    time_text: Callable[[str], str],
) -> Iterator[Chip]:
    for each in keys:
        values = [
            value
            for value in dict.fromkeys(given.get(each.name, ()))
            if value or each.can_be_empty or any(given.get(each.end, ()))
        ]
        removed = dict.fromkeys(filter(None, (each.end, each.dependent)))
        for value in values:
            left = [other for other in given[each.name] if other != value]
            parts = [*value.split("/"), *given.get(each.end, ())] if each.is_instant else [value]
            shown = [time_text(part) if each.is_instant else part for part in parts]
            yield Chip(
                label=each.label or each.name,
                value=" to ".join(shown) or "(application)",
                href=here(**_PLACE, **removed, **{each.name: left or None}),
            )
