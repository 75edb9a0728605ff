"""Tables that fit the terminal, and progress bars. The only module that imports rich.

A table that would be too narrow to read shows each item as a block of lines instead, like the
expanded format of psql.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from celery_dynbeat.cli.base.cells import Column, encodable, readable

#: Blanks between two columns.
GAP = 2
_UTC = ZoneInfo("UTC")


class _Cells(NamedTuple):
    """A column of the table, with the text of each row."""

    title: str
    width: int
    texts: Sequence[Text]
    is_optional: bool

    @property
    def longest(self) -> int:
        """The width that shows each value on one line."""
        lines = [*self.title.split("\n"), *(text.plain for text in self.texts)]
        return max(cell_len(line) for line in lines)

    @property
    def needed(self) -> int:
        """The least width at which the column can be read."""
        return min(self.longest, max(self.width, *map(len, self.title.split("\n"))))


def console(*, no_color: bool, stderr: bool = False) -> Console:
    """Return a console that prints texts literally: they may contain markup of end users."""
    return Console(
        markup=False, highlight=False, emoji=False, no_color=no_color or None, stderr=stderr
    )


@contextmanager
def bar(title: str) -> Iterator[Callable[..., None]]:
    """Yield a function that updates a bar on stderr. The bar disappears at the end of the block."""
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console(no_color=False, stderr=True),
        transient=True,
    )
    with shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total=None: shown.update(task, completed=done, total=total)


def show(
    columns: Sequence[Column], items: Sequence[Any], *, zone: ZoneInfo, no_color: bool
) -> None:
    """Print a table, or one block of lines for each item if the terminal is too narrow."""
    out = console(no_color=no_color)
    full = list(_cells(columns, items, zone))
    for cells in _without_optional(full):
        if _fits(cells, out.width):
            out.print(_table(cells, out.width))
            return
    _print_blocks(out, full, len(items))


def _without_optional(columns: Sequence[_Cells]) -> Iterator[Sequence[_Cells]]:
    """Yield the columns, without times in UTC, and then without more and more optional ones."""
    yield columns
    left = [column for column in columns if not column.title.startswith("UTC")]
    yield left
    for column in reversed([column for column in left if column.is_optional]):
        left = [each for each in left if each is not column]
        yield left


def show_record(values: Iterable[tuple[str, str]], *, no_color: bool) -> None:
    """Print one line for each value, after its name."""
    out = console(no_color=no_color)
    out.print(_grid((name.replace("_", " "), Text(encodable(text))) for name, text in values))


def _cells(columns: Sequence[Column], items: Sequence[Any], zone: ZoneInfo) -> Iterator[_Cells]:
    for column in columns:
        values = [column.value(item) for item in items]
        title = f"{column.title}\n{zone.key}" if column.is_time else column.title
        if column.optional and not any(readable(value, zone) for value in values):
            continue
        texts = [_text(column, value, zone) for value in values]
        yield _Cells(title, column.width, texts, column.optional)
        if column.is_time and zone.key != "UTC":
            texts = [_text(column, value, _UTC) for value in values]
            yield _Cells(f"UTC\n{column.title}", column.width, texts, column.optional)


def _text(column: Column, value: Any, zone: ZoneInfo) -> Text:
    text = readable(value, zone)
    text = encodable(column.words.get(text, text))
    return Text(text, style=column.style(value) if column.style else "")


def _fits(columns: Sequence[_Cells], width: int) -> bool:
    return sum(column.needed + GAP for column in columns) - GAP <= width


def _table(columns: Sequence[_Cells], width: int) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, column_width in zip(columns, _widths(columns, width), strict=True):
        table.add_column(Text(column.title), overflow="fold", width=column_width)
    for row in zip(*(column.texts for column in columns), strict=True):
        table.add_row(*row)
    return table


def _widths(columns: Sequence[_Cells], width: int) -> Sequence[int]:
    """Return the width of each column. rich would shrink columns below the width that they need."""
    widths = [column.needed for column in columns]
    spare = width - sum(widths) - GAP * (len(columns) - 1)
    while spare > 0:
        short = [n for n, column in enumerate(columns) if widths[n] < column.longest][:spare]
        if not short:
            break
        for number in short:
            widths[number] += 1
        spare -= len(short)
    return widths


def _print_blocks(out: Console, columns: Sequence[_Cells], count: int) -> None:
    for row in range(count):
        if row:
            out.print()
        cells = ((column.title.replace("\n", ", "), column.texts[row]) for column in columns)
        out.print(_grid((title, text) for title, text in cells if text))


def _grid(values: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    before = None
    for name, text in values:
        grid.add_row(Text("" if name == before else name), text)
        before = name
    return grid
