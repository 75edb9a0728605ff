"""The output of a command, in one of three forms.

- ``--json``: one object, or one object per line for a list (JSON lines).
- On a terminal: tables of rich that fit its width.
- Otherwise, plain lines for programs: values separated by TAB, without titles, colours or cuts.

rich is imported only for a terminal.
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.cli.base.cells import both_times, plain, readable
from celery_dynbeat.cli.base.columns import Column
from celery_dynbeat.cli.base.encoding import encodable
from celery_dynbeat.common.text import escape, with_application

UTC = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Output:
    """Prints to stdout; ``note`` prints to stderr."""

    as_json: bool = False
    no_color: bool = False
    #: The value of ``-A``, or None if another program calls the command.
    application: str | None = None

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads the output."""
        return not self.as_json and sys.stdout.isatty()

    def done(self, text: str, result: Mapping[str, Any]) -> None:
        """Print the result of an edit: a sentence, or the object with ``--json``."""
        self.line(json.dumps(result) if self.as_json else text)

    def named(self, text: str) -> str:
        """Return the text with this application in the commands that it names."""
        return with_application(text, self.application)

    def line(self, text: str) -> None:
        """Print one line."""
        click.echo(encodable(escape(self.named(text))))

    def note(self, text: str) -> None:
        """Print a hint for a person to stderr. stdout stays readable for programs."""
        click.echo(encodable(escape(self.named(text))), err=True)

    def items(
        self,
        columns: Sequence[Column],
        items: Iterable[Any],
        *,
        zone: ZoneInfo,
        hidden: Collection[str] = (),
    ) -> None:
        """Print one row for each item. A table does not show the ``hidden`` columns."""
        if self.as_json:
            self._lines(escape(json.dumps(item.to_dict())) for item in items)
        elif self.on_terminal:
            # A late import: rich takes 0.1 s.
            from celery_dynbeat.cli.base import tables  # noqa: PLC0415

            shown = [column for column in columns if column.name not in hidden]
            rows = list(items)
            if not rows:
                self.note("none")
                return
            tables.show(shown, rows, zone=zone, no_color=self.no_color)
        else:
            self._lines("\t".join(plain(each.value(item)) for each in columns) for item in items)

    def record(
        self,
        values: Mapping[str, Any],
        *,
        zone: ZoneInfo,
        now: datetime,
        as_dict: Mapping[str, Any],
    ) -> None:
        """Print one line for each value, after its name; ``as_dict`` with ``--json``.

        A list of instants has one line for each of them.
        """
        if self.as_json:
            self.line(json.dumps(as_dict))
        elif self.on_terminal:
            from celery_dynbeat.cli.base import tables  # noqa: PLC0415

            shown = [(name, _in_words(value, zone, now)) for name, value in _flat(values)]
            tables.show_record(shown, no_color=self.no_color)
        else:
            for name, value in _flat(values):
                self.line_of((name, plain(value)))

    def _lines(self, lines: Iterable[str]) -> None:
        """Print the lines of a page, which are escaped already, in one write."""
        text = "\n".join(lines)
        if text:
            click.echo(encodable(text))

    def line_of(self, cells: Iterable[str]) -> None:
        """Print cells that are escaped already, separated by TAB."""
        click.echo(encodable(self.named("\t".join(cells))))


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], datetime):
            yield from ((name, each) for each in value)
        else:
            yield name, value


def _in_words(value: Any, zone: ZoneInfo, now: datetime) -> str:
    if isinstance(value, datetime):
        return both_times(value, zone, now=now)
    return readable(value, zone)
