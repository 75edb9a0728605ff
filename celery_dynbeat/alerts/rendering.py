"""Render the title and the body of a message with Jinja2. Runs in the process that delivers.

A folder of the operator may replace ``title.txt.j2`` and ``body.txt.j2``. A template gets

- ``content``: severity and groups, see ``content.Content``,
- ``prefix``: the application's name in brackets, or nothing,
- ``verb(group)`` and ``sentence(group, example)``: what happened, in words,
- the filter ``shown``: a name or an error that cannot change the layout of the message.

Names and errors come from end users. ``shown`` makes control characters visible, and breaks
mentions (``@channel``) and markup, so that no service notifies people or shows a link.
"""

import re
from datetime import timedelta
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from celery_dynbeat.alerts.content import DETAIL_LENGTH, Content, Example, Group
from celery_dynbeat.common.alert_kinds import AlertKind, Unsent
from celery_dynbeat.common.durations import format_duration
from celery_dynbeat.common.printable import escape

TEMPLATES = Path(__file__).parent / "templates"
TITLE_LENGTH = 200
#: Between @ and the word, so that no service reads a mention. Also after < of <!channel>.
WORD_JOINER = "\u2060"

_VERBS = {
    AlertKind.FAILED: "failed",
    AlertKind.LOST: "lost a run",
    AlertKind.LATE: "started late",
    AlertKind.SLOW: "ran slowly",
    AlertKind.SILENT: "did not run",
    AlertKind.FREQUENT: "ran too often",
    AlertKind.QUARANTINED: "cannot run",
    AlertKind.PAUSED: "was paused",
}


def render(
    content: Content, *, application: str | None = None, folder: str | None = None
) -> tuple[str, str]:
    """Return title and body. Raises an error of Jinja2 for a template that is at fault."""
    environment = _environment(folder)
    names = {
        "content": content,
        "prefix": f"[{shown(application)}] " if application else "",
        "verb": verb,
        "sentence": sentence,
    }
    title = environment.get_template("title.txt.j2").render(names)
    body = environment.get_template("body.txt.j2").render(names)
    return " ".join(title.split())[:TITLE_LENGTH], body.strip()


def _environment(folder: str | None) -> Environment:
    folders = [FileSystemLoader(folder)] if folder else []
    # Plain text: Apprise converts it for services that need HTML, and escapes it then.
    environment = SandboxedEnvironment(
        loader=ChoiceLoader([*folders, FileSystemLoader(TEMPLATES)]),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=False,
    )
    environment.filters["shown"] = shown
    return environment


def shown(text: str) -> str:
    """Return a text of a user that cannot break the layout, mention people or become markup."""
    line = escape(" ".join(text.split()))
    line = re.sub(r"([@<*_`~\[])", rf"\1{WORD_JOINER}", line)
    # Some services make a link of each URL.
    line = line.replace("://", f":{WORD_JOINER}//")
    return line if len(line) <= DETAIL_LENGTH else f"{line[: DETAIL_LENGTH - 3]}..."


def verb(group: Group) -> str:
    """Return what the schedules of a group did."""
    return "recovered" if group.change is Unsent.RECOVERED else _VERBS[group.kind]


def sentence(group: Group, example: Example) -> str:
    """Return since when an alert is open, and how bad it is."""
    if group.change is Unsent.RECOVERED:
        return f"{_VERBS[group.kind]} since {example.since}, recovered at {example.ended}"
    how_bad = _how_bad(group.kind, example)
    times = f", {example.facts:,} times" if example.facts > 1 else ""
    # A quarantine lasts. The others are events.
    when = "since" if group.kind is AlertKind.QUARANTINED else "at"
    return f"{_VERBS[group.kind]}{how_bad} {when} {example.since}{times}"


def _how_bad(kind: AlertKind, example: Example) -> str:
    if example.value is None:
        return ""
    if kind is AlertKind.FREQUENT:
        return f" ({example.value:,.0f} runs)"
    words: dict[AlertKind, str] = {AlertKind.LATE: "by", AlertKind.SLOW: "for"}
    if kind in words:
        return f" {words[kind]} {_duration(example.value)}"
    return f" for {_duration(example.value)}" if kind is AlertKind.SILENT else ""


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
