"""The base of the pages: what surrounds the content of each."""

from functools import cached_property
from http import HTTPStatus
from typing import Any, ClassVar

from tornado.escape import xhtml_escape

from celery_dynbeat.flower.base import fragments, messages
from celery_dynbeat.flower.base.errors import PageError
from celery_dynbeat.flower.base.handler import DynbeatHandler
from celery_dynbeat.flower.base.zones import CHOICE_COOKIE, VIEWER_COOKIE, ViewZone, view_zone
from celery_dynbeat.monitoring.statistics.banners import Banners, banners


class PageHandler(DynbeatHandler):
    """A page: navigation, banners, the strip of the overview, and the content.

    A subclass reads its values with ``call`` and passes them to ``render_page``.
    """

    #: The item of the navigation bar: "schedules", "runs", "timeline", "nodes".
    tab: ClassVar[str] = ""
    #: The name of the route of this page, if it is not that of the item.
    route: ClassVar[str] = ""

    @cached_property
    def zone(self) -> ViewZone:
        """The time zone of the page. A list asks for it once for each row."""
        return view_zone(
            argument=self.argument("zone"),
            choice=self.get_cookie(CHOICE_COOKIE, "") or "",
            viewer=(self.get_cookie(VIEWER_COOKIE, "") or "").replace("%2F", "/"),
        )

    def here(self, **changes: object) -> str:
        """Return the URL of this page with other arguments. None removes an argument."""
        query: dict[str, object] = {
            name: [value.decode(errors="replace") for value in values]
            for name, values in self.request.query_arguments.items()
        }
        kept = {name: value for name, value in {**query, **changes}.items() if value is not None}
        return self.link(self.route or f"dynbeat_{self.tab}", *self.path_args, **kept)

    @staticmethod
    def attribute(value: str) -> str:
        """Return a value for an attribute of HTML that a form sends back unchanged.

        ``show``, which templates apply, replaces control characters.
        """
        return xhtml_escape(value)

    async def render_page(self, template: str, **values: Any) -> None:
        """Render a template of ours with the banners of every page."""
        shown = await self.call(lambda: banners(self.dynbeat.context))
        self._render(template, banners=shown, **values)

    def _render(self, template: str, *, banners: Banners | None, **values: Any) -> None:
        self.render(
            template,
            tab=self.tab,
            page=self,
            ui=fragments,
            zone=self.zone,
            banners=banners,
            message=messages.take(self),
            why_read_only=self.why_read_only,
            **values,
        )

    def write_page_error(self, error: PageError) -> None:
        """Render the error as a page. It has no banners: the database may be the problem."""
        is_down = error.status == HTTPStatus.SERVICE_UNAVAILABLE
        self._render("error_page.html", banners=None, error=error, is_down=is_down)
