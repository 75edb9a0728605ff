"""The user of a request as the actor of its calls."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

from celery_dynbeat.api.audit import acting
from celery_dynbeat.api.checks import check_name
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.text import NAME_LENGTH

#: Requests that change nothing, which need not read the user.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@sync_and_async_middleware
def acting_user(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Name the user of a request as the actor of each call in it, such as of a cascade.

    A middleware, after ``AuthenticationMiddleware``. It reads no user for GET, HEAD, OPTIONS and
    TRACE.
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
    """Return the name of the user; "" before a login. Raises ImproperlyConfigured."""
    if not hasattr(request, "user"):
        raise ImproperlyConfigured(
            "the request has no user: in MIDDLEWARE, write celery_dynbeat.django.middleware"
            ".acting_user after AuthenticationMiddleware"
        )
    # The name can be NULL, such as an optional email address.
    name = str(request.user.get_username() or "")[:NAME_LENGTH]
    try:
        return check_name("actor", name, empty=True)
    except InvalidArgumentError:
        # No name of a user may fail each request of this user, or look like another user's name.
        return repr(name)[:NAME_LENGTH].rstrip()
