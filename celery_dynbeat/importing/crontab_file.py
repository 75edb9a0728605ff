"""The lines of a crontab file as a source. The rules come from crontab(5) of Debian's cron.

A line has no name. The schedule is named after the start of its command, with a number if several
lines have the same name. An edit of the time of a line therefore updates its schedule.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.importing.conversion import changes_clocks, clock_note
from celery_dynbeat.importing.found import Converted, Found, Inexpressible, Note, SourceError
from celery_dynbeat.triggers import Cron

PAGE_SIZE = 500
_NAME_LENGTH = 200
_FIELDS = 5
# Of a line without spaces at its ends. Two repetitions that compete for the same spaces would take
# time with the square of their number.
_ENVIRONMENT = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([A-Za-z_]\w*))\s*=\s*(.*)""")
_QUOTED = re.compile(r"""(["'])(.*)\1""")
#: A percent sign that is not escaped begins the standard input of the command.
_INPUT = re.compile(r"(?<!\\)%")
_ENVIRONMENT_NOTE = Note(
    "environment", "the variables above the line are the argument `environment` of the task"
)


def decoded_lines(content: bytes) -> Iterator[str]:
    """Yield the lines of a file in UTF-8, also with a BOM and with CRLF. Raises SourceError.

    The whole file is decoded before the first line is yielded, so nothing is imported from a file
    in another encoding.
    """
    if b"\x00" in content:
        where = f"a NUL byte in line {_line_of(content, content.index(0))}"
        raise _not_utf8(where, example="iconv -f UTF-16 -t UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{content[error.start]:02x} in line {_line_of(content, error.start)}"
        raise _not_utf8(where, example="iconv -f ISO-8859-1 -t UTF-8") from error
    yield from io.StringIO(text, newline=None)


def _line_of(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _not_utf8(where: str, *, example: str) -> SourceError:
    return SourceError(f"the crontab is not UTF-8 ({where}): convert it, such as with {example}")


@dataclass(frozen=True)
class CrontabSource:
    """The lines of a crontab.

    ``task`` receives the command as its argument; without it each line is refused. If ``system`` is
    true, the sixth field is a user, as in /etc/crontab. Lines without CRON_TZ use ``timezone``.
    None means the owner's time zone.
    """

    lines: Iterable[str]
    task: str | None
    system: bool = False
    timezone: str | None = None
    package: str = field(default="crontab", init=False)

    def count(self) -> int | None:
        """Return None, because the file is read once."""

    def pages(self) -> Iterator[list[Found]]:
        """Yield the schedules, a page at a time. Raises SourceError."""
        page, names = list[Found](), Counter[str]()
        try:
            for found in self._found():
                names[found.name] += 1
                number = names[found.name]
                page.append(
                    replace(found, name=f"{found.name} ({number})") if number > 1 else found
                )
                if len(page) == PAGE_SIZE:
                    yield page
                    page = []
        except OSError as error:
            raise SourceError(f"the crontab cannot be read: {error}") from error
        if page:
            yield page

    def _found(self) -> Iterator[Found]:
        environment: dict[str, str] = {}
        for number, line in enumerate(self.lines, start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _ENVIRONMENT.fullmatch(text)
            if match is not None:
                name = next(group for group in match.groups()[:3] if group is not None)
                quoted = _QUOTED.fullmatch(match[4])
                environment[name] = quoted[2] if quoted else match[4]
                continue
            yield self._line(number, text, environment)

    def _line(self, number: int, text: str, environment: Mapping[str, str]) -> Found:
        row = {"line": number, "text": text, "environment": dict(environment)}
        try:
            line = _split(text, system=self.system)
        except Inexpressible as reason:
            return Found(name=_name(text), described=text, row=row, refused=str(reason))
        row |= {"name": _name(line.command), "command": line.command, "user": line.user}
        found = Found(name=_name(line.command), described=line.when, row=row)
        try:
            converted, notes = self._converted(line, environment)
        except Inexpressible as reason:
            return replace(found, refused=str(reason))
        return replace(found, converted=converted, notes=notes)

    def _converted(
        self, line: "_Line", environment: Mapping[str, str]
    ) -> tuple[Converted, tuple[Note, ...]]:
        if self.task is None:
            msg = "a command is not a task: pass --task with a task that receives the command"
            raise Inexpressible(msg)
        timezone = environment.get("CRON_TZ", self.timezone)
        trigger = _trigger(line.when, timezone)
        command = _command(line.command)
        kept = {name: value for name, value in environment.items() if name != "CRON_TZ"}
        kwargs: dict[str, Any] = {"environment": kept} if kept else {}
        if line.user is not None:
            kwargs["user"] = line.user
        notes = [_ENVIRONMENT_NOTE] if kept else []
        if timezone is None:
            rule = "the line is in the time zone of the owner; cron used the time zone of its host"
            notes.append(Note("time zone", f"{rule} (--timezone)"))
        elif changes_clocks(timezone):
            notes.append(clock_note(trigger, before="cron"))
        fields = {"args": [command], "kwargs": kwargs}
        return Converted(task=self.task, trigger=trigger, fields=fields), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Line:
    when: str
    user: str | None
    command: str


def _split(text: str, *, system: bool) -> _Line:
    fields = 1 if text.startswith("@") else _FIELDS
    words = text.split(None, fields + int(system))
    if len(words) <= fields + int(system):
        what = "a time, a user and a command" if system else "a time and a command"
        raise Inexpressible(f"a line must have {what}")
    user = words[fields] if system else None
    return _Line(" ".join(words[:fields]), user, words[-1])


def _trigger(when: str, timezone: str | None) -> Cron:
    if when.lower() == "@reboot":
        raise Inexpressible("@reboot: beat does not know when a machine starts")
    try:
        return Cron(when, timezone=timezone)
    except InvalidTriggerError as error:
        raise Inexpressible(str(error)) from error


def _command(text: str) -> str:
    if _INPUT.search(text):
        raise Inexpressible(
            "a % begins the standard input of the command: write the input into the command"
        )
    return text.replace("\\%", "%")


def _name(command: str) -> str:
    printable = "".join(each if each.isprintable() else " " for each in command)
    return " ".join(printable.split())[:_NAME_LENGTH].strip() or "(empty)"
