"""Errors as JSON: ``{"errors": {field: message}}``, so that the form shows each at its field."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from login import TooManyError
from starlette.exceptions import HTTPException

from celery_dynbeat import (
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)

FORM = "form"
#: The fields that show errors. Other errors are shown below the form.
_FIELDS = {"name", "text", "rule", "timezone"}
#: Arguments of the API that have another name in the form.
_ARGUMENTS = {"kwargs": "text", "args": "text", "trigger": "rule", "zone": "timezone"}


def refusal(status: int, field: str, message: object) -> JSONResponse:
    """Return the answer for an error in one field."""
    return JSONResponse({"errors": {field: str(message)}}, status)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, FORM, error.detail)


async def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = {}
    for each in error.errors():
        # ("body", "rule", "every", "minutes") belongs to the field "rule".
        field, *parts = [*map(str, each["loc"][1:]), FORM]
        what = " ".join(parts[1:-1])
        errors[field if field in _FIELDS else FORM] = f"{what} {each['msg']}".strip()
    return JSONResponse({"errors": errors}, 422)


async def _invalid_trigger(_: Request, error: Exception) -> JSONResponse:
    return refusal(422, "rule", error)


async def _invalid_schedule(_: Request, error: Exception) -> JSONResponse:
    argument = str(getattr(error, "field", None))
    field = _ARGUMENTS.get(argument, argument)
    return refusal(422, field if field in _FIELDS else FORM, error)


async def _too_many(_: Request, error: Exception) -> JSONResponse:
    del error
    return refusal(429, FORM, "You did this too often. Wait a minute.")


# The messages of these errors name owners and calls of the API: they are for programmers.
async def _exists(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScheduleExistsError)
    return refusal(409, "name", f"You have {error.name!r} already. Choose another name.")


async def _limit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OwnerLimitError)
    return refusal(409, "name", f"You have {error.limit} already. Delete one first.")


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScheduleNotFoundError)
    return refusal(404, "name", f"You have no {error.name!r}.")


def add_error_handlers(api: FastAPI) -> None:
    """Return each error of the package as JSON. The transaction of the request rolls back."""
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(RequestValidationError, _invalid_request)
    api.add_exception_handler(TooManyError, _too_many)
    api.add_exception_handler(InvalidTriggerError, _invalid_trigger)
    api.add_exception_handler(InvalidScheduleError, _invalid_schedule)
    api.add_exception_handler(ScheduleExistsError, _exists)
    api.add_exception_handler(OwnerLimitError, _limit)
    api.add_exception_handler(ScheduleNotFoundError, _not_found)
