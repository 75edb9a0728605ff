"""The base of the pages and the lists, what surrounds their content, and the message of an action.

A signed cookie keeps the message until a page shows it once.

A page of a list starts after a cursor, so a list has no page numbers. The way back is in the URL:
``after`` is the cursor of this page. Each ``back`` is the cursor of an earlier page, the oldest
first.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from inspect import getmembers, isfunction
from itertools import islice
from typing import Any, ClassVar

from flower.utils import template as flower_template
from tornado.escape import xhtml_escape
from tornado.web import RequestHandler

from celery_dynbeat.api.filters import MAX_SEARCH, Key, parse_search, search_text, url_keys
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import escape, with_application
from celery_dynbeat.flower.base import fragments
from celery_dynbeat.flower.base.database_calls import MAX_PAGES
from celery_dynbeat.flower.base.fragments import hint_html
from celery_dynbeat.flower.base.handler import DynbeatHandler, PageError
from celery_dynbeat.flower.base.zones import CHOICE_COOKIE, VIEWER_COOKIE, ViewZone, view_zone
from celery_dynbeat.flower.templates import show
from celery_dynbeat.insights.installation import banners

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


COOKIE = "dynbeat_message"
#: Browsers drop a cookie of more than 4,096 bytes. JSON can double a text; base64 adds a third.
_MAX_BYTES = 1_400
_CUT = " ..."
#: The arguments of each page.
_OF_EACH_PAGE = frozenset({"zone"})
#: Arguments with several values. Of others, the last value counts.
_LISTS = frozenset({"back", "status"})
#: The longest value of an argument, in characters. Each row of a list repeats ``zone`` and
#: ``size``, also unknown ones. With another invalid argument, a list has no rows.
MAX_VALUE = MAX_SEARCH
_MAX_VALUES = {"zone": 64, "size": 8}
#: The arguments with separate rules: a search, and cursors.
_UNBOUNDED = frozenset({"q", "after", "back"})
#: The values that Flower's ``render`` passes to its templates.
_HELPERS = dict(getmembers(flower_template, isfunction))


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence for the person who changed something. ``kind`` names a kind of Bootstrap alert."""

    text: str
    kind: str = "success"


def leave_message(handler: RequestHandler, message: Message) -> None:
    """Show the message on the next page."""
    value = json.dumps(
        asdict(replace(message, text=_cut(escape(message.text)))), ensure_ascii=False
    )
    handler.set_signed_cookie(COOKIE, value, expires_days=None, httponly=True, samesite="Lax")


def take_message(handler: RequestHandler) -> Message | None:
    """Return the message of the last action, once. None if there is none."""
    value = handler.get_signed_cookie(COOKIE, max_age_days=1)
    if value is None:
        return None
    handler.clear_cookie(COOKIE)
    return Message(**json.loads(value))


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MAX_BYTES:
        return text
    # A character can have several bytes, so the last character may be incomplete.
    return encoded[:_MAX_BYTES].decode(errors="ignore") + _CUT


class PageHandler(DynbeatHandler):
    """A page: navigation, banners, the strip of the overview, and the content.

    A subclass reads its values with ``call`` and passes them to ``render_page``.
    """

    #: The item of the navigation bar: "schedules", "runs", "timeline", "alerts", "nodes".
    tab: ClassVar[str] = ""
    #: The name of the route of this page, if it differs from the route of the item.
    route: ClassVar[str] = ""
    #: The arguments that the page reads. Its links repeat them, and no others.
    arguments: ClassVar[frozenset[str]] = frozenset()
    #: The keys of the arguments that filter the list, in the order of their chips.
    chip_keys: ClassVar[Sequence[Key]] = ()

    #: Whether the page is one of MAX_PAGES.
    is_counted: ClassVar[bool] = True
    _is_in_progress = False

    def prepare(self) -> None:
        """Answer 400 for an argument that is too long, and 503 for one page too many."""
        super().prepare()
        if self._finished:
            return
        if self.is_counted:
            self._begin()
        if not self._finished:
            self._check_arguments()

    def _begin(self) -> None:
        calls = self.application.database_calls
        # A hold must be possible while everyone reloads the pages.
        if self.request.method == "GET" and calls.pages_in_progress >= MAX_PAGES:
            self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
            self.set_header("Retry-After", "2")
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish("Too many pages are loading. Try again.")
            return
        calls.pages_in_progress += 1
        self._is_in_progress = True

    def on_finish(self) -> None:
        """Let the next page load."""
        if self._is_in_progress:
            self.application.database_calls.pages_in_progress -= 1
            self._is_in_progress = False
        super().on_finish()

    def _check_arguments(self) -> None:
        for name, values in self.given.items():
            longest = _MAX_VALUES.get(name, MAX_VALUE)
            if name not in _UNBOUNDED and any(len(value) > longest for value in values):
                msg = f"{name} has more than {longest:,} characters."
                raise InvalidArgumentError(msg, field=name)

    @cached_property
    def given(self) -> Mapping[str, Sequence[str]]:
        """The arguments of the URL that the page knows."""
        query = self.request.query_arguments
        known = self.arguments | _OF_EACH_PAGE
        return {
            name: [
                each.decode(errors="replace")
                for each in (values if name in _LISTS else values[-1:])
            ]
            for name, values in query.items()
            if name in known
        }

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
        kept = {**self.given, **changes}
        return self.link(self.route or f"dynbeat_{self.tab}", *self.path_args, **kept)

    @property
    def place(self) -> PagePlace:
        """The position of this page in its list."""
        return PagePlace.of(
            after=self.argument("after"),
            back=self.get_query_arguments("back", strip=False),
            size=self.argument("size"),
        )

    def paging(self, cursor: str | None) -> Paging:
        """Return the links below a list that ends with ``cursor``."""
        return paging(self.place, cursor=cursor, here=self.here)

    @property
    def active_filters(self) -> Chips:
        """The filters of this URL, for ``chips.html``."""
        return active_filters(self.given, self.chip_keys, here=self.here, time_text=self._time_text)

    def _time_text(self, given: str) -> str:
        """Return an instant of the URL in the zone of the page, other text as it is."""
        zone = self.zone.common
        try:
            at = datetime.fromisoformat(given.replace(" ", "+"))
            return fragments.local_time(at if at.tzinfo else at.replace(tzinfo=zone), zone)
        except (ValueError, OverflowError):
            return given

    def owner_link(self, owner: str) -> str:
        """Return an owner with a link to its page."""
        url = xhtml_escape(self.link("dynbeat_owner", owner=owner))
        return f'<a class="db-quiet" href="{url}">{show(owner or "(application)")}</a>'

    def named(self, text: str) -> str:
        """Return a hint as HTML, with this application in the commands that it names.

        The name of a button or a page stands in place of a command that the pages can do.
        """
        return hint_html(with_application(text, self.application.application_name))

    @staticmethod
    def attribute(value: str) -> str:
        """Return a value for an attribute of HTML that a form sends back unchanged.

        ``show``, which templates apply, replaces control characters.
        """
        return xhtml_escape(value)

    def get_template_namespace(self) -> dict[str, Any]:
        """Return the names for our templates and for Flower's templates."""
        names: dict[str, Any] = super().get_template_namespace()
        return {**names, **_HELPERS, "url_prefix": self.application.options.url_prefix}

    async def render_fragment(self, template: str, **values: Any) -> None:
        """Render one of our templates in a thread, because many rows would delay other requests."""
        self.finish(await self.call(lambda: self.render_string(template, page=self, **values)))

    async def render_page(self, template: str, **values: Any) -> None:
        """Render a page of ours, with the banners of every page, in a thread."""
        surroundings = self._surroundings()

        def rendered() -> bytes:
            shown = banners(self.dynbeat.context)
            html: bytes = self.render_string(template, banners=shown, **surroundings, **values)
            return html

        self.finish(await self.call(rendered))

    def _surroundings(self) -> Mapping[str, Any]:
        """Return the values that all pages show. It reads and sets cookies."""
        # Scripts send the token back.
        _ = self.xsrf_token
        return {
            "tab": self.tab,
            "page": self,
            "ui": fragments,
            "zone": self.zone,
            "message": take_message(self),
            "why_read_only": self.why_read_only,
        }

    def write_page_error(self, error: PageError) -> None:
        """Render the error as a page.

        It has no banners, because the database may be the problem.
        """
        is_down = error.status == HTTPStatus.SERVICE_UNAVAILABLE
        shown = {"banners": None, "error": error, "is_down": is_down}
        self.finish(self.render_string("error_page.html", **self._surroundings(), **shown))


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
