"""The handler that the pages and the actions of the form share. It reads; it never writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_dynbeat.api import ScheduleInfo
from celery_dynbeat.common.errors import (
    DynbeatError,
    InvalidScheduleError,
    InvalidTriggerError,
    ScheduleNotFoundError,
)
from celery_dynbeat.common.settings import zone_names
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.zones import UTC, known_zone
from celery_dynbeat.flower.editor import fields, picker
from celery_dynbeat.flower.editor.form import EditorForm
from celery_dynbeat.flower.editor.parsing import EMPTY, Parsed, Parsing, texts_of
from celery_dynbeat.flower.editor.preview import (
    COUNT,
    PreviewView,
    preview_of,
    stored_preview,
)
from celery_dynbeat.insights.statistics import suggestions
from celery_dynbeat.triggers import Trigger

#: Owners that the form of a new schedule suggests.
MAX_OWNERS = 100
#: Names of tasks that the form suggests.
MAX_TASKS = 200
#: The arguments of ``preview`` that are fields of the form.
TIMING_FIELDS = ("window", "start_at", "end_at", "max_runs", "catch_up", "overlap")


class EditorHandler(PageHandler):
    """A handler that renders the form. The methods that read the database run in a thread."""

    tab = "schedules"

    def stored_form(self, owner: str, name: str) -> EditorForm:
        """Return the form of a stored schedule. Raises ScheduleNotFoundError."""
        info = self.for_owner(owner).get(name)
        return self._form(owner, name, info=info)

    def new_form(self, owner: str, name: str) -> EditorForm:
        """Return the form of a new schedule."""
        return self._form(owner, name, info=None)

    def _form(self, owner: str, name: str, *, info: ScheduleInfo | None) -> EditorForm:
        owner_zone = self._owner_zone(owner)
        zone = known_zone(owner_zone) or UTC
        trigger, stored = None, dict[str, str]()
        if info is not None:
            trigger = info.given_trigger
            stored = texts_of(info, zone=zone, hides_arguments=self.hides_arguments)
        return EditorForm(
            owner=owner,
            name=name,
            info=info,
            owner_zone=owner_zone,
            version=0 if info is None else info.version,
            texts=stored or EMPTY,
            stored=stored,
            settings=self.dynbeat.context.settings,
            owners=self._owners() if info is None else (),
            tasks=self._tasks(),
            picked=picker.picked_of(trigger, owner_zone=zone),
        )

    def parsing(self, owner_zone: str) -> Parsing:
        """Return the fields that the texts of a form mean."""
        context = self.dynbeat.context
        limit = context.settings.max_payload_bytes
        return Parsing(known_zone(owner_zone) or UTC, limit, context.clock.now)

    def _owner_zone(self, owner: str) -> str:
        try:
            return self.for_owner(owner).timezone()
        except InvalidScheduleError:
            # An owner that is typed at the moment.
            return self.dynbeat.context.settings.timezone

    def _owners(self) -> Sequence[str]:
        return suggestions.owners(self.dynbeat.context, prefix="", limit=MAX_OWNERS)

    def _tasks(self) -> Sequence[str]:
        return suggestions.tasks(self.dynbeat.context, prefix="", limit=MAX_TASKS)

    def with_preview(self, form: EditorForm, parsed: Parsed) -> EditorForm:
        """Return the form with the preview of its rule, or with the error at its field."""
        changes, info = parsed.changes, form.info
        trigger: Trigger | None = changes.get("trigger")
        if trigger is None and info is not None:
            trigger = info.given_trigger
        if any(name in form.errors for name in ("rule", *TIMING_FIELDS)):
            return replace(form, no_preview="Correct the marked field to see the next fire times.")
        if trigger is None:
            return replace(form, no_preview=_why_no_trigger(info))
        try:
            return replace(form, preview=self._preview(form, trigger, changes))
        except (InvalidScheduleError, InvalidTriggerError) as error:
            errors = {**form.errors, fields.field_of(error) or "rule": str(error)}
            return replace(form, errors=errors, no_preview="This schedule cannot be saved.")

    def _preview(
        self, form: EditorForm, trigger: Trigger, changes: Mapping[str, Any]
    ) -> PreviewView:
        info = form.info
        timing: dict[str, Any] = {
            name: changes[name] if name in changes else getattr(info, name, None)
            for name in TIMING_FIELDS
        }
        if "retry" not in form.errors:
            timing["retry"] = changes.get("retry", getattr(info, "retry", None))
        mine = self.for_owner(_valid_owner(form))
        if info is not None and not {"trigger", *TIMING_FIELDS} & changes.keys():
            return self._stored_preview(form, info, trigger, timing)
        remaining = _remaining_runs(info, timing["max_runs"])
        name = form.name if "name" not in form.errors and form.name else None
        timing["max_runs"] = remaining or None
        shown = mine.preview(trigger, name, COUNT, **timing)
        view = preview_of(shown, viewer=self.zone.viewer)
        if remaining != 0:
            return view
        run_count = getattr(info, "run_count", 0)
        empty = f"The schedule already has {run_count} runs, so max runs ends it."
        return replace(view, rows=(), empty=empty)

    def _stored_preview(
        self, form: EditorForm, info: ScheduleInfo, trigger: Trigger, timing: Mapping[str, Any]
    ) -> PreviewView:
        mine = self.for_owner(form.owner)
        fire_times = mine.upcoming(form.name, count=COUNT, with_skipped=True)
        try:
            warnings = [*map(str, mine.preview(trigger, form.name, 1, **timing).warnings)]
        except DynbeatError:
            # A schedule that create() would refuse, such as a one-off that has passed.
            warnings = []
        return stored_preview(
            info,
            info.trigger or trigger,
            fire_times,
            owner_zone=form.owner_zone,
            warnings=warnings,
            viewer=self.zone.viewer,
        )

    async def render_form(self, form: EditorForm) -> None:
        """Render the page of the form."""
        names = {"form": form, "fields": fields, "picker": picker, "zones": sorted(zone_names())}
        now = await self.call(self.dynbeat.context.clock.now)
        await self.render_page("editor.html", now=now, **names)


def _valid_owner(form: EditorForm) -> str:
    return "" if "owner" in form.errors else form.owner


def _why_no_trigger(info: ScheduleInfo | None) -> str:
    if info is None:
        return "Pick or write a rule to see when the schedule fires."
    return f"The stored rule cannot be read ({info.error}). It is kept unless you edit it."


def _remaining_runs(info: ScheduleInfo | None, max_runs: int | None) -> int | None:
    """Return how many runs are left, or None for no limit."""
    if max_runs is None or info is None:
        return max_runs
    return max(0, max_runs - info.run_count)


def gone(error: ScheduleNotFoundError) -> str:
    """Return the error of a form whose schedule was deleted in the meantime."""
    return f"The schedule {error.name!r} was deleted in the meantime. Saving creates it again."
