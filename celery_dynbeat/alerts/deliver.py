"""Render one message and deliver it: ``python -m celery_dynbeat.alerts.deliver``.

Standard input is a ``Task`` as JSON. The URLs are not arguments, because other users of the machine
can read arguments. Standard output is a JSON object in each line. The first object has ``title``
and ``body``, or ``error`` if the message cannot be rendered. Each further object is written as soon
as a URL has a result. It has the number of the URL as ``url``, and ``error``. ``error`` is null if
the URL accepted the message. Otherwise it is a text with the reason that does not contain the URL.
A URL that does not answer therefore does not hide the result of another URL.

Jinja2 renders title and body. A folder of the operator may replace ``title.txt.j2`` and
``body.txt.j2``. A template gets

- ``content``: severity and groups, see ``content.Content``,
- ``prefix``: the application's name in brackets, or nothing,
- ``subject(group)``, ``verb(group)`` and ``sentence(group, example)``: what happened, in words,
- ``links(example)``: the pages of Flower and the command that explains the schedule,
- the filter ``shown``: a name or an error that cannot change the layout of the message.

Names and errors come from end users. ``shown`` makes control characters visible, and breaks
mentions (``@channel``) and markup, so that no service notifies people or shows a link.
"""

import json
import logging
import os
import queue
import re
import shlex
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

from celery_dynbeat.alerts.content import DETAIL_LENGTH, Content, Example, Group, Progress
from celery_dynbeat.alerts.notice_content import (
    MAX_SHOWN,
    NoticeContent,
    as_kwargs,
    summary,
)
from celery_dynbeat.alerts.notice_content import sentence as notice_sentence
from celery_dynbeat.alerts.notice_content import verb as notice_verb
from celery_dynbeat.common.alert_kinds import NODE_KINDS, AlertKind, Severity, Unsent
from celery_dynbeat.common.text import counted, cut, escape, format_duration

#: Apprise's types of notifications.
_TYPES = {Severity.ERROR: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}
#: The number that this process adds to the niceness of beat.
NICENESS = 10
#: Shorter parts of an URL are ordinary words, such as "com".
_SECRET_LENGTH = 5
_ERROR_LENGTH = 300
#: Apprise's class for json:// and jsons://, and the key of our fields in its payload.
JSON_SERVICE, FIELDS = "NotifyJSON", "alert"
#: Seconds that a URL gets in addition to the time limit of Apprise.
MARGIN = 2.0
NOT_UNDERSTOOD = "Apprise does not understand this URL, or a package that it needs is missing"
TIMED_OUT = "no answer in time"


def main() -> None:
    """Do the task of standard input, and end without waiting for servers that do not answer."""
    # Runs come before messages, on a machine that has no time for both.
    os.nice(NICENESS)
    task = json.load(sys.stdin)
    # No record is printed, because records of Apprise and urllib3 contain URLs.
    logging.getLogger().addHandler(logging.NullHandler())
    # The output of a plug-in must not become part of the answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in _perform(task):
            answer.write(f"{json.dumps(line)}\n")
            answer.flush()
    os._exit(0)


def _perform(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stored = task["content"]
    content: Content | NoticeContent
    try:
        if "notices" in stored:
            content = NoticeContent.from_json(stored)
            title, body = render_notices(content, folder=task["templates"])
            fields: dict[str, Any] = {"notices": [as_kwargs(each) for each in content.notices]}
        else:
            content = Content.from_json(stored)
            links_to = {"application": task["application"], "flower_url": task["flower_url"]}
            title, body = render(content, folder=task["templates"], **links_to)
            fields = structured(content, **links_to)
    # A template of the operator can raise any exception.
    except Exception as error:  # noqa: BLE001
        yield {"error": f"{type(error).__name__}: {error}"}
        return
    services = [_service(url) for url in task["urls"]]
    yield {"title": title, "body": body}
    send = partial(
        _send,
        fields=fields,
        title=title,
        body=body,
        notify_type=_TYPES[content.severity],
        timeout=task["timeout"],
    )
    results: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    for number, service in enumerate(services):
        # The thread is a daemon thread, because a plug-in may ignore the time limit of Apprise.
        deliver = partial(send, service, task["urls"][number])
        Thread(target=_put, args=(results, number, deliver), daemon=True).start()
    left = set(range(len(task["urls"])))
    deadline = time.monotonic() + task["timeout"] + MARGIN
    while left:
        try:
            number, result = results.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            yield from ({"url": number, "error": TIMED_OUT} for number in left)
            return
        left.discard(number)
        yield {"url": number, "error": result}


def _put(results: "queue.SimpleQueue[Any]", number: int, send: Callable[[], str | None]) -> None:
    try:
        results.put((number, send()))
    # A plug-in can raise any exception, and its text can contain the URL.
    except BaseException as error:  # noqa: BLE001
        results.put((number, type(error).__name__))


def _service(url: str) -> Any:
    """Return Apprise's object for a URL; the error as a text if there is none."""
    try:
        # Only here: the import takes 0.3 s.
        import apprise  # noqa: PLC0415

        return apprise.Apprise.instantiate(url) or NOT_UNDERSTOOD
    except ModuleNotFoundError:
        raise
    # As above.
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def _send(service: Any, url: str, *, fields: dict[str, Any], **message: Any) -> str | None:
    if isinstance(service, str):
        return service
    import apprise  # noqa: PLC0415

    if type(service).__name__ == JSON_SERVICE:
        service.payload_extras[FIELDS] = fields
    sender = apprise.Apprise()
    sender.add(service)
    outcome = sender.notify(
        body_format=apprise.NotifyFormat.TEXT, log_level=logging.WARNING, **message
    )
    return _error(next(iter(outcome.results)), url)


def structured(
    content: Content, *, application: str | None, flower_url: str | None
) -> dict[str, Any]:
    """Return the data of a JSON webhook except the text: kinds, counts, schedules, runs, URLs."""
    fields = content.to_json()
    for group, shown in zip(fields["groups"], content.groups, strict=True):
        for cause, each in zip(group["causes"], shown.causes, strict=True):
            cause["error"] = each.error
            for example in cause["examples"]:
                example["urls"] = links(
                    Example(**example), application=application, flower_url=flower_url
                )
    return {"application": application, "total": content.total, **fields}


def _error(result: Any, url: str) -> str | None:
    if result:
        return None
    from apprise.result import AppriseResultStatus  # noqa: PLC0415

    if result.status == AppriseResultStatus.TIMEOUT:
        return TIMED_OUT
    logged = [str(entry.message) for entry in result.logs()]
    return without_secrets(" ".join(logged) or "refused", url)[:_ERROR_LENGTH]


def without_secrets(text: str, url: str) -> str:
    """Return ``text`` without any part of the URL that may be a password or a token."""
    parts = {each for form in (url, unquote(url)) for each in re.split(r"[/:@?&=,#+\s]", form)}
    secrets = {part for part in parts if len(part) >= _SECRET_LENGTH} | _passwords(url)
    for part in sorted(secrets, key=len, reverse=True):
        text = re.sub(re.escape(part), "***", text, flags=re.IGNORECASE)
    return text


def _passwords(url: str) -> set[str]:
    """Return user, password and values of the query, of any length, and their Basic form."""
    try:
        split = urlsplit(url)
        user, password = unquote(split.username or ""), unquote(split.password or "")
    except ValueError:
        return set()
    basic = b64encode(f"{user}:{password}".encode()).decode()
    values = {value for _, value in parse_qsl(split.query)}
    return {user, password, basic.rstrip("="), *values} - {""}


TEMPLATES = Path(__file__).parent / "templates"
TITLE_LENGTH = 200
#: Behind a character that begins a mention or markup, so that no service reads it as such.
WORD_JOINER = "\u2060"
#: Not inside a word, such as an e-mail address or send_mail. Only <, a mention of all people and a
#: link of Markdown may also begin there.
_MARKUP = re.compile(
    r"((?<!\w)[@*_`~]|<|\](?=\()|@(?=everyone|here|channel|all\b)|:(?=//))", re.IGNORECASE
)

#: The verbs for one schedule, and for several schedules.
_OPENED = {
    AlertKind.FAILED: ("failed", "failed"),
    AlertKind.LOST: ("lost a run", "lost a run"),
    AlertKind.LATE: ("is late", "are late"),
    AlertKind.SLOW: ("ran slowly", "ran slowly"),
    AlertKind.SILENT: ("did not run", "did not run"),
    AlertKind.FREQUENT: ("ran too often", "ran too often"),
    AlertKind.QUARANTINED: ("cannot run", "cannot run"),
    AlertKind.PAUSED: ("was paused", "were paused"),
    AlertKind.BEATS_MISSING: ("beats are missing", "beats are missing"),
    AlertKind.WORKERS_MISSING: ("workers are missing", "workers are missing"),
    AlertKind.CLOCKS_DIFFER: ("clocks differ", "clocks differ"),
}
_RECOVERED = {
    AlertKind.FAILED: ("no longer fails", "no longer fail"),
    AlertKind.LOST: ("no longer loses runs", "no longer lose runs"),
    AlertKind.LATE: ("is no longer late", "are no longer late"),
    AlertKind.SLOW: ("is no longer slow", "are no longer slow"),
    AlertKind.SILENT: ("is no longer silent", "are no longer silent"),
    AlertKind.FREQUENT: ("no longer runs too often", "no longer run too often"),
    AlertKind.QUARANTINED: ("is no longer quarantined", "are no longer quarantined"),
    AlertKind.PAUSED: ("is no longer paused", "are no longer paused"),
    AlertKind.BEATS_MISSING: ("beats are no longer missing", "beats are no longer missing"),
    AlertKind.WORKERS_MISSING: ("workers are no longer missing", "workers are no longer missing"),
    AlertKind.CLOCKS_DIFFER: ("clocks no longer differ", "clocks no longer differ"),
}
#: The verb for a schedule that has recovered from another alert.
_STILL = {
    AlertKind.FAILED: "fails",
    AlertKind.LOST: "has a lost run",
    AlertKind.LATE: "is late",
    AlertKind.SLOW: "is slow",
    AlertKind.SILENT: "is silent",
    AlertKind.FREQUENT: "runs too often",
    AlertKind.QUARANTINED: "is quarantined",
    AlertKind.PAUSED: "is paused",
}
_LATE = {
    Progress.NOT_SENT: "is not sent yet, late",
    Progress.SENT: "is sent and not started yet, late",
    Progress.SENT_LATE: "was sent late",
    Progress.STARTED: "started late",
}


def render(
    content: Content,
    *,
    application: str | None = None,
    folder: str | None = None,
    flower_url: str | None = None,
) -> tuple[str, str]:
    """Return title and body. Raises an error of Jinja2 for a template that is at fault."""
    environment = _environment(folder)
    names = {
        "content": content,
        "prefix": f"[{shown(application)}] " if application else "",
        "subject": subject,
        "verb": verb,
        "sentence": sentence,
        "links": partial(links, application=application, flower_url=flower_url),
    }
    title = environment.get_template("title.txt.j2").render(names)
    body = environment.get_template("body.txt.j2").render(names)
    return " ".join(title.split())[:TITLE_LENGTH], body.strip()


def render_notices(content: NoticeContent, *, folder: str | None = None) -> tuple[str, str]:
    """Return title and body of the notices to an owner."""
    environment = _environment(folder)
    names = {
        "notices": content.notices,
        "most": MAX_SHOWN,
        "summary": summary(content.notices),
        "verb": notice_verb,
        "sentence": notice_sentence,
    }
    title = environment.get_template("owner_title.txt.j2").render(names)
    body = environment.get_template("owner_body.txt.j2").render(names)
    return " ".join(title.split())[:TITLE_LENGTH], body.strip()


def _environment(folder: str | None) -> Environment:
    folders = [FileSystemLoader(folder)] if folder else []
    # Plain text: Apprise converts it for services that need HTML, and then escapes it.
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
    line = _MARKUP.sub(rf"\1{WORD_JOINER}", escape(" ".join(text.split())))
    return cut(line, DETAIL_LENGTH)


def is_about_nodes(group: Group) -> bool:
    """Return whether the alerts are about beats or workers."""
    return group.kind in NODE_KINDS


def subject(group: Group) -> str:
    """Return which schedules a group is about, with a space; nothing for beats and workers."""
    if is_about_nodes(group):
        return ""
    return f"{counted(group.count, 'schedule')} "


def verb(group: Group) -> str:
    """Return the verb of a group's schedules, and whether they have other open alerts."""
    words = _RECOVERED if group.state is Unsent.RECOVERED else _OPENED
    text = words[group.kind][group.count != 1]
    if not group.still_open:
        return text
    if group.count == 1 and group.examples:
        return f"{text}, but still {_still(group.examples[0])}"
    return f"{text} ({group.still_open:,} of them with other open alerts)"


def _still(example: Example) -> str:
    return " and ".join(_STILL[AlertKind(kind)] for kind in example.still)


def sentence(group: Group, example: Example) -> str:
    """Return since when an alert is open, and how bad it is."""
    times = f", {example.facts:,} times" if example.facts > 1 else ""
    if group.state is Unsent.RECOVERED:
        text = _RECOVERED[group.kind][0]
        still = f"; it still {_still(example)}" if example.still else ""
        return f"{text} since {example.ended}; alert since {example.since}{times}{still}"
    ended = f", until {example.ended}" if example.ended else ""
    text = _OPENED[group.kind][0]
    if group.kind is AlertKind.LATE:
        text = _LATE[Progress(example.progress or Progress.STARTED)]
    # A quarantine lasts. The others are events.
    lasts = group.kind is AlertKind.QUARANTINED or is_about_nodes(group)
    when = "since" if lasts else "at"
    return f"{text}{_how_bad(group.kind, example)} {when} {example.since}{times}{ended}"


def links(
    example: Example, *, application: str | None, flower_url: str | None
) -> dict[str, str | None]:
    """Return the URLs of ``schedule`` and ``run`` in Flower, and the command ``explain``.

    None means not known. An alert about beats and workers has the page of the nodes, and
    ``status``.
    """
    pages = None if flower_url is None else f"{flower_url}/dynbeat"
    dynbeat = f"celery -A {shlex.quote(application or 'your_app')} dynbeat"
    if not example.name:
        nodes = None if pages is None else f"{pages}/nodes"
        return {"schedule": nodes, "run": None, "explain": f"{dynbeat} status"}
    owner = f" --owner={shlex.quote(example.owner)}" if example.owner else ""
    named = urlencode({"owner": example.owner, "name": example.name})
    run = None if pages is None or example.run_id is None else f"{pages}/run/{example.run_id}"
    return {
        "schedule": None if pages is None else f"{pages}/schedule?{named}",
        "run": run,
        "explain": f"{dynbeat} explain{owner} -- {shlex.quote(example.name)}",
    }


def _how_bad(kind: AlertKind, example: Example) -> str:
    if example.value is None:
        return ""
    if kind is AlertKind.FREQUENT:
        return f" ({example.value:,.0f} runs)"
    if kind in NODE_KINDS:
        return ""
    words: dict[AlertKind, str] = {AlertKind.LATE: "by", AlertKind.SLOW: "for"}
    if kind in words:
        return f" {words[kind]} {_duration(example.value)}"
    return f" for {_duration(example.value)}" if kind is AlertKind.SILENT else ""


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


if __name__ == "__main__":
    main()
