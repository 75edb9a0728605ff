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
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TypeVar

from tornado.web import HTTPError, RequestHandler

from celery_dynbeat.api.acting import acting
from celery_dynbeat.flower.base import messages
from celery_dynbeat.flower.base.access import actor_of
from celery_dynbeat.flower.base.errors import ActionTimeoutError, PageError
from celery_dynbeat.flower.base.instants import given_instant
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.base.page import PageHandler

T = TypeVar("T")

#: Fields of a form that the confirmation does not repeat.
_OWN_FIELDS = frozenset({"_xsrf", "confirmed", "reason", "until", "until_at"})
#: The choices of ``until`` -> after how many hours the effect ends.
HOURS = {"1 h": 1, "4 h": 4, "24 h": 24}
#: Digits of a number in a form: as many as in a row id.
_MAX_DIGITS = 19
#: Parts of a URL with which a browser leaves the folder of our pages.
_ESCAPES = re.compile(r"\\|/(\.|%2e){1,2}([/?#]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The confirmation before an action: a question with the number of affected rows."""

    question: str
    #: The label of the button.
    button: str
    details: Sequence[str] = ()
    #: The other effects of the action, in one or two sentences.
    effect: str = ""
    #: Whether the button is red.
    is_destructive: bool = True
    #: Whether the form asks for the end of the effect, in the fields ``until`` and ``until_at``.
    #: The name of the choice without an end, such as "released". If it is "", the form does not
    #: ask.
    no_end: str = ""
    #: Whether the form asks, in the field ``now``, if runs wait for the end of quiet hours.
    asks_now: bool = False


class ActionHandler(PageHandler):
    """An action. A subclass defines ``act``, and ``confirmation`` if it must ask first.

    Both run in a thread.
    """

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

    def confirmation(self) -> Confirmation | None:
        """Return what to ask first, None to act at once."""
        return None

    def act(self) -> Message:
        """Change something and return the message for the next page."""
        raise NotImplementedError

    def field(self, name: str, default: str = "") -> str:
        """Return a field of the form as it was given."""
        given = self.fields(name)
        return given[-1] if given else default

    def fields(self, name: str) -> Sequence[str]:
        """Return all values of a field of the form."""
        # get_body_arguments() replaces control characters by spaces.
        given = self.request.body_arguments.get(name, [])
        return [self.decode_argument(value, name) for value in given]

    def number(self, name: str) -> int:
        """Return a field of the form that has a number. Answers 400 for anything else."""
        return _number(self.field(name), name)

    def numbers(self, name: str) -> Sequence[int]:
        """Return the different values of a field that has numbers. Answers 400 for others."""
        return [_number(each, name) for each in dict.fromkeys(self.fields(name))]

    @cached_property
    def until(self) -> datetime | None:
        """The end given in the confirmation, or None for no end. Raises InvalidScheduleError.

        A time without an offset is in the zone of the page.
        """
        hours, typed = HOURS.get(self.field("until")), self.field("until_at")
        now = self.dynbeat.context.clock.now()
        if hours is not None:
            return now + timedelta(hours=hours)
        return given_instant("until", typed, zone=self.zone.common, now=now) if typed else None

    @property
    def version(self) -> int | None:
        """The version of the schedule that the viewer saw, or None if the form has no version."""
        return self.number("version") if self.field("version") else None

    async def post(self, *_: str) -> None:
        """Ask for a confirmation, or act and redirect."""
        if not self.field("confirmed"):
            question = await self.call(self.confirmation)
            if question is not None:
                await self.render_page(
                    "confirm.html",
                    question=question,
                    hours=list(HOURS),
                    given=self._given(),
                    back=self.back,
                )
                return
        messages.leave(self, await self.change(self._acting))
        self.redirect(self.back, status=HTTPStatus.SEE_OTHER)

    async def change(self, call: Callable[[], T]) -> T:
        """Return ``call()``, which writes, from a thread. Raises ActionTimeoutError."""
        try:
            return await self.call(call)
        except TimeoutError as error:
            raise ActionTimeoutError from error

    def _acting(self) -> Message:
        with self.acting():
            return self.act()

    def acting(self) -> AbstractContextManager[None]:
        """Return a block whose edits are recorded with the person and the reason of the form."""
        header = self.request.headers.get("Authorization", "")
        actor = actor_of(self.current_user, header, self.application.options)
        return acting(actor=actor, reason=self.field("reason").strip())

    def _given(self) -> Sequence[tuple[str, str]]:
        names = [name for name in self.request.body_arguments if name not in _OWN_FIELDS]
        return [(name, value) for name in names for value in self.fields(name)]

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
            messages.leave(self, Message(error.text, "danger"))
            self.clear_header("Content-Type")
            self.set_status(HTTPStatus.SEE_OTHER)
            self.set_header("Location", self.back)
            self.finish()
            return
        super().write_page_error(error)


def _number(given: str, name: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS):
        raise HTTPError(HTTPStatus.BAD_REQUEST, reason=f"{name} is not a number")
    return int(given)
