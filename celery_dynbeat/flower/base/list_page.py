"""The base of the pages Schedules and Runs: a list with a search box, chips and pages."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from celery_dynbeat.api.filters import parse_search, search_text, url_keys
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.flower.base.page import PageHandler


class ListPage(PageHandler):
    """A list that is filtered by the keys of ``kind``, in the URL and in a search box.

    A subclass defines ``kind``, ``template``, ``kept``, ``read`` and ``unread``.
    """

    #: The class of the filter.
    kind: ClassVar[type]
    template: ClassVar[str]
    #: The arguments that a search keeps.
    kept: ClassVar[Sequence[str]]

    def __init_subclass__(cls) -> None:
        """Read the keys of the filter from the URL."""
        cls.chip_keys = url_keys(cls.kind)
        names = {key.name for key in cls.chip_keys}
        cls.arguments = frozenset({"q", "size", "after", "back", *names, *cls.kept})

    async def get(self) -> None:
        """Render a page of the list. A text of the search box becomes arguments of the URL."""
        text, error = self.argument("q"), ""
        try:
            if "q" in self.request.query_arguments:
                self.redirect(self.first_page(**parse_search(self.kind, text)))
                return
            values = await self.read()
        except InvalidArgumentError as invalid:
            values, error = self.unread(invalid), str(invalid)
        searched = text or search_text(self.kind, self.given)
        await self.render_page(self.template, search_text=searched, error=error, **values)

    async def read(self) -> Mapping[str, Any]:
        """Return the values of the template."""
        raise NotImplementedError

    def unread(self, error: InvalidArgumentError) -> Mapping[str, Any]:
        """Return the values without a list, for an error below the search box, or raise it."""
        raise NotImplementedError

    def first_page(self, **changes: object) -> str:
        """Return the URL of the first page of the list with other arguments."""
        return self.here(q=None, after=None, back=None, **changes)
