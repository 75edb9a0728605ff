"""Errors as JSON: ``{"errors": {field: message}}``, so that the form shows each at its field."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from celery_dynbeat import (
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
    ScheduleNotFoundError,
)

#: Arguments of the API that are one field of the form.
_FIELDS = {"name": "name", "kwargs": "text", "args": "text"}


def _answer(status: int, field: str, message: object) -> JSONResponse:
    return JSONResponse({"errors": {field: str(message)}}, status)


async def _invalid_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = {}
    for each in error.errors():
        # ("body", "rule", "every", "minutes") belongs to the field "rule".
        location = [str(part) for part in each["loc"] if part != "body"]
        what = " ".join(location[2:])
        errors[location[0] if location else "form"] = f"{what} {each['msg']}".strip()
    return JSONResponse({"errors": errors}, 422)


async def _invalid_trigger(_: Request, error: Exception) -> JSONResponse:
    return _answer(422, "rule", error)


async def _invalid_schedule(_: Request, error: Exception) -> JSONResponse:
    return _answer(422, _FIELDS.get(getattr(error, "field", None) or "", "rule"), error)


# The messages of these errors name owners and calls of the API: they are for programmers.
async def _exists(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScheduleExistsError)
    return _answer(409, "name", f"You have {error.name!r} already. Choose another name.")


async def _limit(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OwnerLimitError)
    return _answer(409, "name", f"You have {error.limit} already. Delete one first.")


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ScheduleNotFoundError)
    return _answer(404, "name", f"You have no {error.name!r}.")


def add_error_handlers(api: FastAPI) -> None:
    """Return each error of the package as JSON. The transaction of the request rolls back."""
    api.add_exception_handler(RequestValidationError, _invalid_request)
    api.add_exception_handler(InvalidTriggerError, _invalid_trigger)
    api.add_exception_handler(InvalidScheduleError, _invalid_schedule)
    api.add_exception_handler(ScheduleExistsError, _exists)
    api.add_exception_handler(OwnerLimitError, _limit)
    api.add_exception_handler(ScheduleNotFoundError, _not_found)
