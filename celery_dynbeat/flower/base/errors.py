"""Errors of the API as HTTP statuses and texts for the page."""

from dataclasses import dataclass
from http import HTTPStatus

from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.common.errors import (
    ConfigurationError,
    DispatchError,
    DynbeatError,
    ScheduleExistsError,
    ScheduleHeldError,
    SchemaError,
    StaleScheduleError,
)

_CONFLICTS = (ScheduleExistsError, ScheduleHeldError, StaleScheduleError)
_UNAVAILABLE = (ConfigurationError, DispatchError, SchemaError)


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
    if isinstance(error, LookupError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, _CONFLICTS):
        return HTTPStatus.CONFLICT
    is_unavailable = isinstance(error, _UNAVAILABLE)
    return HTTPStatus.SERVICE_UNAVAILABLE if is_unavailable else HTTPStatus.BAD_REQUEST
