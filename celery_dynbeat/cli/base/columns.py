"""The columns of a list, declared once for the table, the piped output and the help."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column that shows the attribute ``name`` of each item, or the result of ``get`` for it.

    A table gives the column at least ``width`` characters. It leaves ``optional`` columns out if
    they do not fit, the last one first. ``style`` returns the style of rich for a value. ``words``
    maps texts to the words that a table shows instead.
    """

    name: str
    get: Callable[[Any], Any] | None = None
    width: int = 8
    style: Callable[[Any], str] | None = None
    is_time: bool = False
    optional: bool = False
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")

    def value(self, item: Any) -> Any:
        """Return the value of ``item``."""
        return getattr(item, self.name) if self.get is None else self.get(item)


def time_column(
    name: str, get: Callable[[Any], Any] | None = None, *, optional: bool = False
) -> Column:
    """Return a column of instants."""
    return Column(name, get, width=19, is_time=True, optional=optional)


def _owner(item: Any) -> str:
    return EVERYTHING if item.owner is None else str(item.owner)


#: Piped output shows this for all owners, which are None in the API.
EVERYTHING = "*"


def owner_column() -> Column:
    """Return the column of owners. "" is the application itself."""
    words = {"": "(application)", EVERYTHING: "(everything)"}
    return Column("owner", _owner, width=13, words=words)


_STATE_STYLES = {
    "succeeded": "green",
    "active": "green",
    "running": "cyan",
    "sent": "cyan",
    "retrying": "yellow",
    "skipped": "yellow",
    "paused": "yellow",
    "held": "yellow",
    "overdue": "red",
    "failing": "red",
    "quarantined": "red",
    "failed": "red",
    "lost": "red",
}


def state_style(value: Any) -> str:
    """Return the colour of a state or status."""
    return _STATE_STYLES.get(str(value), "")
