"""``dynbeat explain``: why a schedule ran, or did not run."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.cells import plain
from celery_dynbeat.cli.base.columns import Column, state_style, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import name_argument, owner_option
from celery_dynbeat.cli.base.parameter_types import Instant, Number
from celery_dynbeat.common.text import escape

if TYPE_CHECKING:
    from celery_dynbeat.api.results.explanation import Explanation

_RUNS = (
    time_column("fire_time", lambda each: each.run.scheduled_for),
    Column("status", lambda each: each.run.status, width=9, style=state_style),
    Column("origin", lambda each: each.run.origin),
    Column("what_happened", lambda each: each.text, width=30),
)
_NEXT = (time_column("fire_time", lambda each: each.at), Column("note", width=30))
_NODES = (
    Column("kind", width=6),
    Column("name", width=12),
    Column("state"),
    time_column("seen_at"),
    Column("error", width=20),
)


@command(
    "explain",
    examples=("explain digest", "explain digest --owner user:42 --at 09:00"),
    exit_statuses="0: success, even if the schedule does not run. 1: the schedule was not found,"
    " or the database reported an error. 2: the command line is invalid.",
)
@name_argument
@owner_option
@click.option(
    "--at",
    type=Instant(-1),
    help="Explain the fire time at this time, such as 09:00 (the last one), or 2h (ago).",
)
@click.option(
    "--count",
    type=Number(least=1, most=100),
    default=5,
    show_default=True,
    help="How many last fire times and next fire times to show.",
)
def explain_schedule(
    invocation: Invocation, *, name: str, at: TypedInstant | None, count: int
) -> None:
    """Explain why a schedule ran or did not run.

    The first line states the cause, and the second line states the fix. The output then lists the
    last fire times with their results, the next fire times, the beats, and the workers that
    consume the queue. With --json, the cause is a fixed code, such as "no_worker_for_queue".

    With --at, the first line is about the fire time in that minute. It comes from the history and
    the audit: who paused, held, skipped or edited the schedule, and why.
    """
    found = invocation.mine.explain(name, at=invocation.instant(at), count=count)
    output = invocation.output
    if output.as_json:
        output.done("", found.to_dict())
        return
    output.line(found.sentence)
    if output.on_terminal:
        _show_tables(invocation, found)
    else:
        for line in _plain_lines(found):
            output.line_of(line)


def _show_tables(invocation: Invocation, found: "Explanation") -> None:
    schedule, output = found.schedule, invocation.output
    if found.fix:
        output.line(f"Fix: {found.fix}")
    zone = invocation.zone.key
    meaning = "(damaged)" if schedule.trigger is None else schedule.trigger.describe(zone)
    output.line("")
    output.line(f"{schedule.name}: {meaning}; task {schedule.task}; queue {found.queue or '?'}")
    sections: Sequence[tuple[str, Any, Sequence[Any]]] = (
        ("Last fire times", _RUNS, found.runs),
        ("Next fire times", _NEXT, found.next),
        ("Beats, and workers of the queue", _NODES, list(_nodes(found))),
    )
    for title, columns, items in sections:
        output.line("")
        output.line(title if items else f"{title}: none")
        if items:
            invocation.show(columns, items)


class _Node:
    """A row of the table of nodes."""

    def __init__(self, kind: str, info: Any) -> None:
        self.kind, self.name, self.state = kind, info.name, info.state
        self.seen_at, self.error = info.seen_at, info.error


def _nodes(found: "Explanation") -> Iterator[_Node]:
    yield from (_Node("beat", each) for each in found.beats)
    yield from (_Node("worker", each) for each in found.workers)


def _plain_lines(found: "Explanation") -> Iterator[Sequence[str]]:
    """Yield rows of cells; the first cell names the kind of row."""
    if found.fix:
        yield "fix", escape(found.fix)
    yield "queue", escape(found.queue or "")
    for each in found.runs:
        yield "last", plain(each.run.scheduled_for), each.run.status, escape(each.text)
    for fire_time in found.next:
        yield "next", plain(fire_time.at), escape(fire_time.note or "")
    for node in _nodes(found):
        yield (
            node.kind,
            escape(node.name),
            node.state,
            plain(node.seen_at),
            escape(node.error or ""),
        )
