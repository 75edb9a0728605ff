"""The types of options. An invalid value is a usage error that names the value, rule and fix."""

from datetime import timedelta
from typing import Any

import click

from celery_dynbeat.api.fields import Field
from celery_dynbeat.api.typed_text import TypedInstant, parse_duration, parse_instant
from celery_dynbeat.common.run_ids import is_run_id
from celery_dynbeat.common.text import shorten


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


class Instant(_Type):
    """A date and time, or a duration from now (``direction`` 1) or before now (-1)."""

    name = "TIME"

    def __init__(self, direction: int) -> None:
        self.direction = direction

    def parse(self, text: str) -> TypedInstant:
        """Return the instant. Raises ValueError."""
        return parse_instant(text, direction=self.direction)


class FieldText(_Type):
    """The value of a field of a schedule."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.name = field.type.metavar

    def parse(self, text: str) -> Any:
        """Return the value. Raises ValueError."""
        value = self.field.type.parse(text)
        # The zone and the clock of the owner resolve an instant.
        if not isinstance(value, TypedInstant):
            self.field.check(value)
        return value


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
