"""Read the pages of a list of the API, one after the other."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar


class Page(Protocol):
    """A page of the API."""

    @property
    def items(self) -> tuple[Any, ...]:
        """The items of the page."""

    @property
    def cursor(self) -> str | None:
        """The next page, or None if there is none."""


P = TypeVar("P", bound=Page)


def pages(fetch: Callable[[str | None], P], *, after: str | None = None) -> Iterator[P]:
    """Yield the page behind the cursor ``after``, and the pages that follow it.

    ``fetch`` returns the page behind a cursor; None means the first page.
    """
    page = fetch(after)
    yield page
    while page.cursor is not None:
        page = fetch(page.cursor)
        yield page
