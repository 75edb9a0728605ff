"""Search for a field with durations on each surface of the package, and print where it is.

``python -m tests.support.field_surfaces NAME DATABASE DOCS`` prints JSON, surface -> found.
test_field_table.py runs it with copies of the package whose table of fields is edited.
"""

import json
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import Dynbeat, InvalidArgumentError
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.beat import config_entries
from celery_dynbeat.cli import dynbeat as group
from tests.support.applications import MINUTELY, application
from tests.support.editor_form import OWNER, edit_url, open_form, save
from tests.support.flower_pages import Pages, flower_pages

VALUE = timedelta(minutes=2)


class Surfaces:
    """The surfaces of one application for the field ``name``."""

    def __init__(self, name: str, dynbeat: Dynbeat, pages: Pages, docs: Path) -> None:
        self.name, self.dynbeat, self.pages, self.docs = name, dynbeat, pages, docs
        self.mine = dynbeat.schedules.for_owner(OWNER)
        self.option = f"--{name.replace('_', '-')}"

    def run(self, *arguments: str) -> str:
        """Return the output of a command, or of its error."""
        context = CLIContext(app=self.dynbeat.app, no_color=True, workdir=None)
        return CliRunner().invoke(group, arguments, obj=context).output

    def make(self, schedule: str) -> None:
        """Create a schedule whose column has VALUE, by SQL."""
        self.mine.create(schedule, task="t", trigger=MINUTELY)
        with self.dynbeat.context.database.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE dynbeat_schedule SET {self.name} = 120 WHERE name = '{schedule}'"
            )

    def value(self, schedule: str) -> Any:
        """Return the value of the field of a schedule."""
        return getattr(self.mine.get(schedule), self.name)

    def accepted(self, call: Callable[..., Any], *arguments: Any, **given: Any) -> bool:
        """Return whether a call accepts the field, and refuses a value of it by its name."""
        try:
            call(*arguments, **given, **{self.name: VALUE})
        except InvalidArgumentError as error:
            return "there is no such field" not in str(error)
        try:
            call(*arguments, **given, **{self.name: -1})
        except InvalidArgumentError as error:
            return error.field == self.name
        return False

    def create(self) -> bool:
        """Set it with ``create``."""
        is_accepted = self.accepted(self.mine.create, "created", task="t", trigger=MINUTELY)
        return is_accepted and self.value("created") == VALUE

    def upsert(self) -> bool:
        """Set it with ``upsert``."""
        self.mine.create("upserted", task="t", trigger=MINUTELY)
        is_accepted = self.accepted(self.mine.upsert, "upserted", task="t", trigger=MINUTELY)
        return is_accepted and self.value("upserted") == VALUE

    def update(self) -> bool:
        """Set it with ``update``."""
        self.mine.create("updated", task="t", trigger=MINUTELY)
        return self.accepted(self.mine.update, "updated") and self.value("updated") == VALUE

    def create_many(self) -> bool:
        """Set it with ``create_many``."""

        def call(name: str, **given: Any) -> None:
            new: Any = {"name": name, "task": "t", "trigger": MINUTELY, **given}
            self.mine.create_many([new])

        return self.accepted(call, "one of many") and self.value("one of many") == VALUE

    def audit(self) -> bool:
        """Search the audit of a deletion."""
        self.make("audited")
        self.mine.delete("audited")
        return (self.mine.changes("audited")[0].before or {}).get(self.name) == VALUE.seconds

    def beat_schedule(self) -> bool:
        """Set it in an entry of ``beat_schedule``."""
        fields = config_entries.convert(
            self.dynbeat.context, {"task": "t", "schedule": 60, self.name: 120}
        )
        return isinstance(fields, dict) and fields[self.name] == VALUE.seconds

    def add_option(self) -> bool:
        """Set it with the option of ``dynbeat add``, whose help has its sentence."""
        done = self.run(
            "add", "added", "--owner", OWNER, "--task", "t", "--trigger", "PT1M", self.option, "2m"
        )
        shown = " ".join(self.run("add", "--help").split())
        is_described = self.name in FIELDS and FIELDS[self.name].help in shown
        return "added" in done and is_described and self.value("added") == VALUE

    def update_option(self) -> bool:
        """Set it with the option of ``dynbeat update``, and clear it."""
        self.mine.create("changed", task="t", trigger=MINUTELY)
        self.run("update", "changed", "--owner", OWNER, self.option, "2m")
        before = self.value("changed")
        self.run("update", "changed", "--owner", OWNER, "--clear", self.name)
        return (before, self.value("changed")) == (VALUE, None)

    def show(self) -> bool:
        """Search the output of ``dynbeat show``."""
        self.make("shown")
        return f"\n{self.name}\t120\n" in self.run("show", "shown", "--owner", OWNER)

    def export(self) -> bool:
        """Search the file of ``dynbeat export``."""
        self.make("exported")
        return f"\n  {self.name}: 120.0\n" in self.run("export", "--owner", OWNER)

    def apply(self) -> bool:
        """Set it in a file of ``dynbeat apply``."""
        schedule = {"name": "applied", "task": "t", "trigger": "PT1M", self.name: 120}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"schedules": [schedule]}, file)
            file.flush()
            done = self.run("apply", file.name, "--owner", OWNER)
        return "1 created" in done and self.value("applied") == VALUE

    def form(self) -> bool:
        """Save it with the form of Flower, which has its sentence."""
        self.make("formed")
        form = open_form(self.pages, "formed")
        if form.values.get(self.name) != "2m":
            return False
        answer = save(self.pages, form, **{self.name: "1m"})
        page = self.pages.get(edit_url("formed")).text
        return (
            answer.status == 303
            and self.value("formed") == VALUE / 2
            and FIELDS[self.name].help in page
        )

    def page(self) -> bool:
        """Search the page of a schedule."""
        self.make("paged")
        text = self.pages.get(f"/dynbeat/schedule?owner={OWNER}&name=paged").text
        return f"<dt>{self.name}</dt><dd>2 min</dd>" in text

    def table_in_docs(self) -> bool:
        """Search the table in the docs."""
        table = runpy.run_path(str(self.docs / "generate_fields.py"))["table"]()
        return f"\n| `{self.name}` | a duration | " in table


def found(name: str, database: Path, docs: Path) -> Mapping[str, bool]:
    """Return on which surfaces the field is."""
    surfaces = [each for each in vars(Surfaces) if not each.startswith("_")]
    helpers = {"run", "make", "value", "accepted"}
    with _served(f"sqlite:///{database}") as (dynbeat, pages):
        all_of = Surfaces(name, dynbeat, pages, docs)
        return {each: getattr(all_of, each)() for each in surfaces if each not in helpers}


@contextmanager
def _served(url: str) -> Iterator[tuple[Dynbeat, Pages]]:
    with application(url) as dynbeat:
        dynbeat.context.prepare()
        with flower_pages(dynbeat, basic_auth=["alice:secret"]) as pages:
            pages.user, pages.password = "alice", "secret"
            yield dynbeat, pages


def main(arguments: Sequence[str]) -> None:
    """Print the surfaces."""
    name, database, docs = arguments
    print(json.dumps(found(name, Path(database), Path(docs))))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
