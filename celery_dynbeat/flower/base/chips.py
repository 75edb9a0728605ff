"""The active filters of a list, each with a link that removes it. PURE."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

#: A URL can repeat an argument. Each link contains all others.
MAX_CHIPS = 20
#: The arguments that a link to another list does not keep, because they are the place in this list.
_PLACE: Mapping[str, None] = {"q": None, "after": None, "back": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """An argument of a URL that filters a list.

    ``end`` is the argument with the end of the span that this argument begins. One chip shows both.
    ``dependent`` has no meaning without this filter.
    """

    name: str
    label: str = ""
    end: str = ""
    dependent: str = ""
    #: Whether an empty value is also a filter. For example, the owner "" is the application.
    can_be_empty: bool = False
    is_time: bool = False


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
    filters: Sequence[Filter],
    *,
    here: Callable[..., str],
    time_text: Callable[[str], str],
) -> Chips:
    """Return the filters among the arguments ``given``, at most MAX_CHIPS.

    ``here`` returns the URL of the list with other arguments, ``time_text`` an instant for people.
    """
    found = list(islice(_chips(given, filters, here, time_text), MAX_CHIPS))
    names = {name: None for each in filters for name in (each.name, each.end) if name}
    is_several = len(found) > 1
    return Chips(chips=found, clear_all=here(**_PLACE, **names) if is_several else None)


def _chips(
    given: Mapping[str, Sequence[str]],
    filters: Sequence[Filter],
    here: Callable[..., str],
    time_text: Callable[[str], str],
) -> Iterator[Chip]:
    for each in filters:
        values = [
            value
            for value in dict.fromkeys(given.get(each.name, ()))
            if value or each.can_be_empty or any(given.get(each.end, ()))
        ]
        removed = dict.fromkeys(filter(None, (each.end, each.dependent)))
        for value in values:
            left = [other for other in given[each.name] if other != value]
            parts = [*value.split("/"), *given.get(each.end, ())] if each.is_time else [value]
            shown = [time_text(part) if each.is_time else part for part in parts]
            yield Chip(
                label=each.label or each.name,
                value=" to ".join(shown) or "(application)",
                href=here(**_PLACE, **removed, **{each.name: left or None}),
            )
