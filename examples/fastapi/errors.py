"""Errors as JSON: ``{"errors": {field: message}}``, so that the form shows each at its field."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from login import TooManyError
from starlette.exceptions import HTTPException

from celery_dynbeat import (
    ConflictError,
    InvalidArgumentError,
    LimitError,
    NotFoundError,
    ScheduleExistsError,
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


async def _invalid_argument(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidArgumentError)
    # The parts of a rule are the fields of its error, and its text explains them.
    field = "rule" if error.code == "rule" else str(error.field)
    field = _ARGUMENTS.get(field, field)
    return refusal(422, field if field in _FIELDS else FORM, error)


async def _too_many(_: Request, error: Exception) -> JSONResponse:
    del error
    return refusal(429, FORM, "You did this too often. Wait a minute.")


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, (ConflictError, LimitError, NotFoundError))
    is_of_form = isinstance(error, ConflictError) and not isinstance(error, ScheduleExistsError)
    field = FORM if is_of_form else "name"
    status = 404 if isinstance(error, NotFoundError) else 409
    return refusal(status, field, error.user_message)


def add_error_handlers(api: FastAPI) -> None:
    """Return each error of the package as JSON. The transaction of the request rolls back."""
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(RequestValidationError, _invalid_request)
    api.add_exception_handler(TooManyError, _too_many)
    api.add_exception_handler(InvalidArgumentError, _invalid_argument)
    for refused in (ConflictError, LimitError, NotFoundError):
        api.add_exception_handler(refused, _refused)
