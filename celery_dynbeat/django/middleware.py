"""The user of a request as the actor of its calls."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from celery_dynbeat.api.audit import acting

#: Requests that change nothing, which need not read the user.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MAX_ACTOR = 255


def acting_user(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Name the user of a request as the actor of each call in it, such as of a cascade.

    A middleware, after ``AuthenticationMiddleware``.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.method in _SAFE:
            return get_response(request)
        with acting(actor=actor_of(request)):
            return get_response(request)

    return middleware


def actor_of(request: HttpRequest) -> str:
    """Return the name of the user; "" before a login."""
    return str(request.user.get_username())[:MAX_ACTOR]
