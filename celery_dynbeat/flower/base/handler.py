"""The base of all handlers: login, headers, database calls, and errors of the API as statuses."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import urlencode

from flower.views import BaseHandler
from sqlalchemy.exc import SQLAlchemyError
from tornado.web import HTTPError, authenticated

from celery_dynbeat.api import Dynbeat, OwnerSchedules, Schedules
from celery_dynbeat.common.errors import (
    ConfigurationError,
    ConflictError,
    DispatchError,
    DynbeatError,
    InvalidArgumentError,
    NotFoundError,
)
from celery_dynbeat.flower.base.access import why_read_only, why_wrong_host
from celery_dynbeat.flower.base.database_calls import DatabaseCalls

_UNAVAILABLE = (ConfigurationError, DispatchError)
T = TypeVar("T")
#: Characters of the arguments of a URL. Tornado's loop parses them.
MAX_QUERY = 16_000
#: The same for a link on a page of another site, such as a chat.
MAX_LINKED_QUERY = 2_000
logger = logging.getLogger(__name__)
#: The style sheet of Bootstrap contains images as data: URLs.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)


class ActionTimeoutError(TimeoutError):
    """An action did not end in time. Its thread continues, so it may still be carried out."""


@dataclass(frozen=True, slots=True)
class PageError:
    """The HTTP status and the sentence that a page shows for an error."""

    status: HTTPStatus
    text: str


def page_error(error: BaseException | None) -> PageError | None:
    """Return the status and sentence for an error of the API, or None for any other error.

    The error of a driver can contain a host or a statement. Only the log shows it.
    """
    if isinstance(error, DynbeatError):
        return PageError(_status(error), str(error))
    if isinstance(error, ActionTimeoutError):
        text = "The database did not answer in time. Check whether the action took effect."
        return PageError(HTTPStatus.SERVICE_UNAVAILABLE, text)
    if isinstance(error, TimeoutError):
        text = "The database did not answer in time. Try again, or narrow the filter."
        return PageError(HTTPStatus.SERVICE_UNAVAILABLE, text)
    if isinstance(error, SQLAlchemyError):
        text = "The database cannot be used. The log of Flower contains the error."
        return PageError(HTTPStatus.SERVICE_UNAVAILABLE, text)
    return None


def _status(error: DynbeatError) -> HTTPStatus:
    if isinstance(error, NotFoundError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, ConflictError):
        return HTTPStatus.CONFLICT
    is_unavailable = isinstance(error, _UNAVAILABLE)
    return HTTPStatus.SERVICE_UNAVAILABLE if is_unavailable else HTTPStatus.BAD_REQUEST


STATIC = Path(__file__).parent.parent / "static"
#: The element <dynbeat-rule>, which the pages of Django also have.
SHARED_STATIC = STATIC.parents[1] / "django" / "static" / "dynbeat"


@cache
def static_version(name: str) -> str:
    """Return a text that changes with the file, for the cache of the browser."""
    own, shared = STATIC / name, SHARED_STATIC / name
    return sha256((own if own.exists() else shared).read_bytes()).hexdigest()[:12]


class PagesApplication(Protocol):
    """The attributes of Flower's application that the handlers need."""

    options: Any
    #: The events that Flower received from the workers.
    events: Any
    database_calls: DatabaseCalls
    #: The value of ``-A`` on the command line.
    application_name: str | None

    @property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the Celery application."""


class DynbeatHandler(BaseHandler):
    """A handler behind the login of Flower. Each request is checked, before its method runs."""

    application: PagesApplication

    #: The headers of each response.
    _HEADERS: ClassVar = {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        # The pages show the data of users. No cache keeps them.
        "Cache-Control": "no-store",
    }

    def set_default_headers(self) -> None:
        """Set our headers, but not Flower's headers that let other sites read a page."""
        for name, value in self._HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Redirect to the login of Flower, or answer 401 or 403, without a login.

        Answers 400 for a URL that no page of ours has, and 403 for one that another site loads.
        Answers 403 for a Host that is not one of this Flower.
        """
        request = self.request
        wrong_host = why_wrong_host(request.host, request.protocol, self.application.options)
        if wrong_host is not None:
            self.set_status(HTTPStatus.FORBIDDEN)
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(wrong_host)
            return
        _require_login(self)
        if self._finished:
            return
        if len(self.request.query) > MAX_QUERY:
            msg = f"The arguments of the URL have more than {MAX_QUERY:,} characters."
            raise InvalidArgumentError(msg, field="url")
        if self.request.method in {"GET", "HEAD"} and self._is_loaded_by_other_site():
            raise HTTPError(HTTPStatus.FORBIDDEN, reason="Cross-site request")

    def _is_loaded_by_other_site(self) -> bool:
        """Return whether another site loads the URL.

        A person who follows a short link is not another site.
        """
        headers = self.request.headers
        if headers.get("Sec-Fetch-Site", "none") in {"none", "same-origin"}:
            return False
        is_link = headers.get("Sec-Fetch-Dest") == "document"
        return not is_link or len(self.request.query) > MAX_LINKED_QUERY

    def options(self, *_: Any, **__: Any) -> None:
        """Answer 405, because other sites do not need these pages."""
        self.send_error(405)

    @property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the Celery application."""
        return self.application.dynbeat

    @property
    def schedules(self) -> Schedules:
        """The calls across owners."""
        return self.dynbeat.schedules

    def for_owner(self, owner: str) -> OwnerSchedules:
        """Return the calls of an owner."""
        return self.schedules.for_owner(owner)

    def calls_of(self, owner: str | None) -> OwnerSchedules | Schedules:
        """Return the calls of an owner. None means all owners."""
        return self.schedules if owner is None else self.for_owner(owner)

    @property
    def why_read_only(self) -> str | None:
        """The reason why this Flower changes no schedules, or None if it may."""
        return why_read_only(self.application.options)

    @property
    def hides_arguments(self) -> bool:
        """Whether the pages hide the arguments of tasks."""
        return bool(self.application.options.dynbeat_hide_arguments)

    async def call(self, call: Callable[[], T]) -> T:
        """Return ``call()``, which reads or writes the database, from a thread."""
        return await self.application.database_calls.run(call)

    def link(self, route: str, *path: str, **query: object) -> str:
        """Return the URL of a page of ours, with the arguments that are not None."""
        given = {key: value for key, value in query.items() if value is not None}
        url = self.reverse_url(route, *path)
        return f"{url}?{urlencode(given, doseq=True)}" if given else url

    def static_file(self, name: str) -> str:
        """Return the URL of a static file of ours. It changes with the file."""
        url = self.reverse_url("dynbeat_static", name)
        return f"{url}?v={static_version(name)}"

    def argument(self, name: str, default: str = "") -> str:
        """Return an argument of the URL as it was given: neither stripped nor escaped."""
        value = self.get_query_argument(name, default, strip=False)
        return default if value is None else value

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Render an error of the API as a page with its text, and other errors as Flower does."""
        error = page_error(_error_of(kwargs))
        if error is None:
            super().write_error(status_code, **kwargs)
            return
        self.set_status(error.status)
        self.write_page_error(error)

    def write_page_error(self, error: PageError) -> None:
        """Write the response for an error of the API."""
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish(error.text)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log an expected error in one line. The text of a driver's error has no password."""
        if page_error(value) is None:
            super().log_exception(typ, value, tb)
        elif isinstance(value, SQLAlchemyError):
            cause = getattr(value, "orig", None) or value
            logger.warning("%s: database error %s", self.request.path, type(cause).__name__)
        else:
            logger.info("%s: %s", self.request.path, value)


@authenticated
def _require_login(handler: DynbeatHandler) -> None:
    """Return if the request has a login, or if Flower requires none."""


def _error_of(kwargs: dict[str, Any]) -> BaseException | None:
    exc_info = kwargs.get("exc_info")
    return exc_info[1] if exc_info else None
