"""The user of a request as the actor of its calls."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

from celery_dynbeat.api.audit import acting

#: Requests that change nothing, which need not read the user.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MAX_ACTOR = 255


@sync_and_async_middleware
def acting_user(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Name the user of a request as the actor of each call in it, such as of a cascade.

    A middleware, after ``AuthenticationMiddleware``.
    """

    def middleware(request: HttpRequest) -> Any:
        if request.method in _SAFE:
            return get_response(request)
        with acting(actor=actor_of(request)):
            return get_response(request)

    async def async_middleware(request: HttpRequest) -> Any:
        if request.method in _SAFE:
            return await get_response(request)
        # Reading the user can be a query.
        with acting(actor=await sync_to_async(actor_of)(request)):
            return await get_response(request)

    return async_middleware if iscoroutinefunction(get_response) else middleware


def actor_of(request: HttpRequest) -> str:
    """Return the name of the user; "" before a login."""
    return str(request.user.get_username())[:MAX_ACTOR]
