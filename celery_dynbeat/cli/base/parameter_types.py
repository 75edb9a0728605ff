"""The types of options. An invalid value is a usage error that names the value, rule and fix."""

import json
from datetime import timedelta
from typing import Any

import click

from celery_dynbeat.api.typed_text import (
    TypedInstant,
    parse_duration,
    parse_instant,
    parse_retry,
    parse_window,
)
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.text import shorten

#: Python refuses to convert very long texts.
_MAX_DIGITS = 20


class _Type(click.ParamType[Any]):
    """A type whose ``parse`` raises ValueError with the rule."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def parse(self, text: str) -> Any:
        """Return the value of ``text``."""
        raise NotImplementedError


class Duration(_Type):
    """Seconds, or a number with a unit."""

    name = "DURATION"

    def parse(self, text: str) -> timedelta:
        """Return the duration. Raises ValueError."""
        return parse_duration(text)


class Window(_Type):
    """A duration, or a share of the interval."""

    name = "WINDOW"

    def parse(self, text: str) -> timedelta | str:
        """Return the window. Raises ValueError."""
        return parse_window(text)


class Instant(_Type):
    """A date and time, or a duration from now (``direction`` 1) or before now (-1)."""

    name = "TIME"

    def __init__(self, direction: int) -> None:
        self.direction = direction

    def parse(self, text: str) -> TypedInstant:
        """Return the instant. Raises ValueError."""
        return parse_instant(text, direction=self.direction)


class Json(_Type):
    """A JSON array (``list``) or object (``dict``)."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.name = "JSON"

    def parse(self, text: str) -> Any:
        """Return the value. Raises ValueError."""
        wanted, example = ("array", '[1, "a"]') if self.kind is list else ("object", '{"key": 1}')
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"{shorten(text)} is not JSON ({error}); write an {wanted} in quotes of the shell,"
                f" such as '{example}'"
            ) from None
        if not isinstance(value, self.kind):
            raise ValueError(f"{shorten(text)} is not a JSON {wanted}, such as '{example}'")  # noqa: TRY004
        return value


class RetryPolicy(_Type):
    """A retry policy: a number of retries, or the arguments of ``Retry``."""

    name = "RETRY"

    def parse(self, text: str) -> Retry:
        """Return the policy. Raises ValueError."""
        return parse_retry(text)


class RunId(_Type):
    """The id of a run."""

    name = "RUN_ID"

    def parse(self, text: str) -> str:
        """Return the id. Raises ValueError."""
        if is_run_id(text):
            return text
        raise ValueError(f"{shorten(text)} is not the id of a run; `dynbeat runs` shows the ids")


class BatchId(_Type):
    """The id of a batch of runs."""

    name = "BATCH_ID"

    def parse(self, text: str) -> str:
        """Return the id. Raises ValueError."""
        if is_run_id(text):
            return text
        rule = "is not the id of a batch; `dynbeat backfill` and `rerun` print it"
        raise ValueError(f"{shorten(text)} {rule}")


class Number(_Type):
    """A number between two bounds; ``whole`` refuses fractions."""

    name = "NUMBER"

    def __init__(
        self, *, least: float, most: float, whole: bool = True, above: bool = False
    ) -> None:
        self.least, self.most, self.whole, self.above = least, most, whole, above

    def parse(self, text: str) -> float:
        """Return the number. Raises ValueError."""
        rule = "a whole number" if self.whole else "a number"
        bound = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = float("nan")
        fits = self.least < value if self.above else self.least <= value
        if fits and value <= self.most:
            return value
        raise ValueError(f"{shorten(text)}: give {rule} {bound}, and at most {self.most:,.0f}")
