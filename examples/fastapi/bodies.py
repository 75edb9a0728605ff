"""The bodies of the requests and of the answers of the JSON API."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, StringConstraints
from pydantic_core import PydanticCustomError
from rules import Rule


def _path_segment(name: str) -> str:
    # The name is a part of paths, where "." and ".." have a special meaning.
    if "/" in name or not name.strip("."):
        raise PydanticCustomError("name", "must not contain / and must not consist of dots")
    return name


Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=80),
    AfterValidator(_path_segment),
]
Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class NewReminder(BaseModel):
    """A reminder or a report, and when it is due."""

    name: Name
    kind: Literal["reminder", "report"] = "reminder"
    text: Text
    rule: Rule


class PreviewedRule(BaseModel):
    """A rule that the user has not saved yet."""

    name: str = ""
    rule: Rule


class ChosenZone(BaseModel):
    """The time zone of a user."""

    timezone: Annotated[str, StringConstraints(max_length=80)]


class ShownSchedule(BaseModel):
    """When a reminder is due."""

    name: str
    rule: str
    state: str
    next: datetime | None


class ShownReminder(ShownSchedule):
    """A reminder with its text. Both are empty for a schedule without a reminder."""

    kind: str
    text: str


class ShownFireTime(BaseModel):
    """A fire time, also in the zone of the user, and a note at a change of the clock."""

    fire_at: datetime
    local: datetime
    note: str | None


class ShownWarning(BaseModel):
    """A property of the rule that the user may not expect."""

    code: str
    message: str


class ShownPreview(BaseModel):
    """A rule in words, and its next fire times."""

    description: str
    timezone: str
    fire_times: list[ShownFireTime]
    warnings: list[ShownWarning]


class ShownRun(BaseModel):
    """A run of a reminder."""

    id: str
    fire_at: datetime
    status: str
    origin: str
    finished_at: datetime | None
    error: str | None


class Errors(BaseModel):
    """A message for each invalid field of the form. "form" stands for the whole form."""

    errors: dict[str, str]
