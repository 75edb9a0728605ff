"""The base of the actions.

An action is a POST request that changes something and redirects to a page.

GET  page with a form     the form has the XSRF token of the viewer
POST action               403 in read-only mode, without login, or without the token
needs a confirmation    200: a page with the number of affected rows, and the same form
confirmed               303: back to the page, which shows a message
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TypeVar

from tornado.web import HTTPError, RequestHandler

from celery_dynbeat.api.audit import acting
from celery_dynbeat.flower.base.access import actor_of
from celery_dynbeat.flower.base.handler import ActionTimeoutError, PageError
from celery_dynbeat.flower.base.page import Message, PageHandler, leave_message
from celery_dynbeat.flower.base.zones import given_instant

T = TypeVar("T")

#: Fields of a form that the confirmation does not repeat.
_OWN_FIELDS = frozenset({"_xsrf", "confirmed", "reason", "until", "until_at"})
#: The choices of ``until`` -> after how many hours the effect ends.
HOURS = {"1 h": 1, "4 h": 4, "24 h": 24}
#: Digits of a number in a form: as many as in a row id.
_MAX_DIGITS = 19
#: Parts of a URL with which a browser leaves the folder of our pages.
_ESCAPES = re.compile(r"\\|/(\.|%2e){1,2}([/?#]|$)", re.IGNORECASE)


class ActionHandler(PageHandler):
    """An action. A subclass defines ``post``, and calls the API with ``change`` and ``acting``."""

    def prepare(self) -> None:
        """Answer 403 without login or token, in read-only mode, and for other sites."""
        super().prepare()
        if self._finished:
            return
        if self.why_read_only is not None:
            raise HTTPError(HTTPStatus.FORBIDDEN, reason="Read-only mode")
        if self.request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise HTTPError(HTTPStatus.FORBIDDEN, reason="Cross-site request")
        # Flower checks the token only for OAuth. Without this check, any site could post with basic
        # auth.
        RequestHandler.check_xsrf_cookie(self)

    def check_xsrf_cookie(self) -> None:
        """Do nothing: ``prepare`` checks the token for all kinds of login."""

    def field(self, name: str, default: str = "") -> str:
        """Return a field of the form as it was given."""
        given = self.fields(name)
        return given[-1] if given else default

    def fields(self, name: str) -> Sequence[str]:
        """Return all values of a field of the form."""
        # get_body_arguments() replaces control characters by spaces.
        given = self.request.body_arguments.get(name, [])
        return [self.decode_argument(value, name) for value in given]

    def has(self, name: str) -> bool:
        """Return whether the form has a field."""
        return name in self.request.body_arguments

    @property
    def reason(self) -> str:
        """The reason for the audit."""
        return self.field("reason").strip()

    @cached_property
    def until(self) -> datetime | None:
        """The end given in the confirmation, or None for no end. Raises InvalidArgumentError.

        A time without an offset is in the zone of the page.
        """
        hours, typed = HOURS.get(self.field("until")), self.field("until_at")
        now = self.dynbeat.context.clock.now()
        if hours is not None:
            return now + timedelta(hours=hours)
        return given_instant("until", typed, zone=self.zone.common, now=now) if typed else None

    @property
    def version(self) -> int | None:
        """The version of the schedule that the viewer saw.

        It is None if the form has no version or several schedules. Answers 400 for no number.
        """
        given = self.field("version")
        if not given or len(set(self.fields("schedule"))) > 1:
            return None
        if not (given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS):
            raise HTTPError(HTTPStatus.BAD_REQUEST, reason="version is not a number")
        return int(given)

    async def change(self, call: Callable[[], T]) -> T:
        """Return ``call()``, which writes, from a thread. Raises ActionTimeoutError."""
        try:
            return await self.call(call)
        except TimeoutError as error:
            raise ActionTimeoutError from error

    def acting(self) -> AbstractContextManager[None]:
        """Return a block whose edits are recorded with the person and the reason of the form."""
        header = self.request.headers.get("Authorization", "")
        actor = actor_of(self.current_user, header, self.application.options)
        return acting(actor=actor, reason=self.reason)

    @property
    def given_fields(self) -> Sequence[tuple[str, str]]:
        """The fields that a confirmation repeats."""
        names = [name for name in self.request.body_arguments if name not in _OWN_FIELDS]
        given = [(name, value) for name in names for value in self.fields(name)]
        # The button puts it into the URL, which the confirmation does not repeat.
        return [*given, *([("all", "yes")] if self.argument("all") == "yes" else [])]

    def here(self, **changes: object) -> str:
        """Return the page of the form, because an action has no page."""
        del changes
        return self.back

    @property
    def back(self) -> str:
        """The page to return to, which is the page that the form names if it is one of ours."""
        given, ours = self.field("next"), self.reverse_url("dynbeat_schedules")
        root = ours.removesuffix("schedules")
        is_ours = given.startswith(root) and not _ESCAPES.search(given)
        return given if is_ours and given.isprintable() else ours

    def write_page_error(self, error: PageError) -> None:
        """Show the error on the page of the form if there is a form, or else as a page."""
        if error.status != HTTPStatus.SERVICE_UNAVAILABLE and self.field("next"):
            leave_message(self, Message(error.text, "danger"))
            self.clear_header("Content-Type")
            self.set_status(HTTPStatus.SEE_OTHER)
            self.set_header("Location", self.back)
            self.finish()
            return
        super().write_page_error(error)
