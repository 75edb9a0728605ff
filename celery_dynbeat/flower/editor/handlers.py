"""The pages with the form of a schedule, its actions, and its preview while someone types.

GET new, edit  200: the form; 403 if nothing can be changed
POST save      303: saved; back to the page of the schedule
               409: someone else saved first; the form with both versions
               422: the form with the error at each field
               200: the form with a preview, if the button was "Preview"
POST preview   200: the preview as JSON, for the script of the form; it writes nothing
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from tornado.web import HTTPError

from celery_dynbeat.api.results import FireTime, PreviewWarning, ScheduleInfo
from celery_dynbeat.api.texts import Parsed, Parsing, changes_since, lines, parse
from celery_dynbeat.common.errors import (
    ConflictError,
    DynbeatError,
    InvalidArgumentError,
    LimitError,
    NotFoundError,
)
from celery_dynbeat.flower.base import fragments
from celery_dynbeat.flower.base.action import ActionHandler
from celery_dynbeat.flower.base.handler import PageError
from celery_dynbeat.flower.base.page import Message, PageHandler, leave_message
from celery_dynbeat.flower.base.zones import UTC, known_zone
from celery_dynbeat.flower.editor import form as editor
from celery_dynbeat.flower.editor.form import (
    EMPTY,
    EditorForm,
    PreviewView,
    check_names,
    conflict_of,
    field_of,
    texts_of,
)
from celery_dynbeat.insights import lists
from celery_dynbeat.triggers import Trigger
from celery_dynbeat.triggers.zones import same_clock

#: Fire times that the preview shows.
COUNT = 5


#: Owners that the form of a new schedule suggests.
MAX_OWNERS = 100
#: Names of tasks that the form suggests.
MAX_TASKS = 200
#: The arguments of ``preview`` that are fields of the form.
TIMING_FIELDS = ("window", "start_at", "end_at", "max_runs", "catch_up", "overlap")
#: Bytes of a form: at least these, and _ENCODED times the arguments that a task may have. A form
#: has them twice, and encodes one byte as up to six.
MAX_FORM_BYTES = 1_000_000
_ENCODED = 12


class EditorHandler(PageHandler):
    """A handler that renders the form. The methods that read the database run in a thread."""

    tab = "schedules"

    def form_of(self, owner: str, name: str, *, is_new: bool) -> EditorForm:
        """Return the form of a stored or a new schedule. Raises NotFoundError for a stored one."""
        info = None if is_new else self.for_owner(owner).get(name)
        context, owner_zone = self.dynbeat.context, self._owner_zone(owner)
        zone = known_zone(owner_zone) or UTC
        stored = dict[str, str]()
        if info is not None:
            stored = texts_of(info, zone=zone, hides_arguments=self.hides_arguments)
        return EditorForm(
            owner=owner,
            name=name,
            info=info,
            owner_zone=owner_zone,
            version=0 if info is None else info.version,
            texts=stored or EMPTY,
            stored=stored,
            settings=context.settings,
            owners=lists.owners(context, limit=MAX_OWNERS) if info is None else (),
            tasks=lists.tasks(context, prefix="", limit=MAX_TASKS),
        )

    def parsing(self, owner_zone: str) -> Parsing:
        """Return the fields that the texts of a form mean."""
        context = self.dynbeat.context
        limit = context.settings.max_payload_bytes
        return Parsing(known_zone(owner_zone) or UTC, limit, context.clock.now)

    def _owner_zone(self, owner: str) -> str:
        try:
            return self.for_owner(owner).timezone()
        except InvalidArgumentError:
            # An owner that is typed at the moment.
            return self.dynbeat.context.settings.timezone

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
        except InvalidArgumentError as error:
            errors = {**form.errors, field_of(error) or "rule": str(error)}
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
        if info is not None and not {"trigger", *TIMING_FIELDS} & changes.keys():
            return self._stored_preview(form, info, trigger, timing)
        remaining = _remaining_runs(info, timing["max_runs"])
        name = form.name if "name" not in form.errors and form.name else None
        timing["max_runs"] = remaining or None
        mine = self.for_owner("" if "owner" in form.errors else form.owner)
        shown = mine.preview(trigger, name, COUNT, **timing)
        fire_times, empty = shown.fire_times, "It never fires."
        if info is not None and remaining == 0:
            fire_times = ()
            empty = f"The schedule already has {info.run_count} runs, so max runs ends it."
        return self._view(shown.trigger, shown.timezone, fire_times, shown.warnings, empty=empty)

    def _stored_preview(
        self, form: EditorForm, info: ScheduleInfo, trigger: Trigger, timing: Mapping[str, Any]
    ) -> PreviewView:
        """Return the preview of a rule that was not edited, with the real next fire times."""
        mine = self.for_owner(form.owner)
        fire_times = mine.upcoming(form.name, count=COUNT, with_skipped=True)
        try:
            warnings = mine.preview(trigger, form.name, 1, **timing).warnings
        except DynbeatError:
            # A schedule that create() would refuse, such as a one-off that has passed.
            warnings = []
        empty = f"The schedule is {info.state}: it has no next fire time."
        shown = info.trigger or trigger
        return self._view(shown, form.owner_zone, fire_times, warnings, empty=empty)

    def _view(
        self,
        trigger: Trigger,
        owner_zone: str,
        fire_times: Sequence[FireTime],
        warnings: Sequence[PreviewWarning],
        *,
        empty: str,
    ) -> PreviewView:
        zone, viewer = known_zone(trigger.timezone or owner_zone) or UTC, self.zone.viewer
        return PreviewView(
            sentence=trigger.describe(owner_zone),
            zone=zone,
            viewer_zone=None if same_clock(viewer, zone) else viewer,
            fire_times=fire_times,
            warnings=[*map(str, warnings)],
            empty=empty,
        )

    async def render_form(self, form: EditorForm) -> None:
        """Render the page of the form."""
        now = await self.call(self.dynbeat.context.clock.now)
        await self.render_page("editor.html", now=now, form=form, editor=editor)


def _why_no_trigger(info: ScheduleInfo | None) -> str:
    if info is None:
        return "Choose or write a rule to see when the schedule fires."
    return f"The stored rule cannot be read ({info.error}). It is kept unless you edit it."


def _remaining_runs(info: ScheduleInfo | None, max_runs: int | None) -> int | None:
    """Return how many runs are left, or None for no limit."""
    if max_runs is None or info is None:
        return max_runs
    return max(0, max_runs - info.run_count)


class FormPage(EditorHandler):
    """A page with the form as it opens."""

    arguments = frozenset({"owner", "name"})

    async def get(self) -> None:
        """Render the form; answer 403 if nothing can be changed."""
        if self.why_read_only is not None:
            self.set_status(HTTPStatus.FORBIDDEN)
            text = f"Schedules cannot be changed here: {self.why_read_only}."
            self.write_page_error(PageError(HTTPStatus.FORBIDDEN, text))
            return
        await self.render_form(await self.call(self._opened))

    def _opened(self) -> EditorForm:
        is_new = self.route == "dynbeat_new"
        form = self.form_of(self.argument("owner"), self.argument("name"), is_new=is_new)
        return self.with_preview(form, Parsed())


class EditPage(FormPage):
    """The form of a stored schedule: ``?owner=...&name=...``."""

    route = "dynbeat_edit"


class NewPage(FormPage):
    """The form of a new schedule. ``?owner=`` and ``?name=`` are put into their fields."""

    route = "dynbeat_new"


class FormAction(EditorHandler, ActionHandler):
    """An action with the fields of the form."""

    def prepare(self) -> None:
        """Answer 413 for a form that no person can have typed."""
        super().prepare()
        if self._finished:
            return
        payload = self.dynbeat.context.settings.max_payload_bytes
        if len(self.request.body) > max(MAX_FORM_BYTES, _ENCODED * payload):
            raise HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def here(self, **changes: object) -> str:
        """Return the URL of the form."""
        if self.field("new"):
            return self.link("dynbeat_new", **changes)
        query = {"owner": self.field("owner"), "name": self.field("name"), **changes}
        return self.link("dynbeat_edit", **query)

    def typed_form(self) -> EditorForm:
        """Return the form with the texts of the request."""
        owner, name = self.field("owner"), self.field("name")
        if self.field("new"):
            form = self.form_of(owner.strip(), name.strip(), is_new=True)
        else:
            try:
                form = self.form_of(owner, name, is_new=False)
            except NotFoundError:
                form = self.form_of(owner, name, is_new=True)
                gone = f"The schedule {name!r} was deleted in the meantime."
                form = replace(form, errors={"": f"{gone} Saving creates it again."})
        return replace(
            form,
            # Hidden arguments are not among the texts.
            texts={
                name: lines(self.field(name)) if name in self.request.body_arguments else text
                for name, text in form.texts.items()
            },
            version=self.version or 0,
            is_paused=bool(self.field("paused")),
            reason=self.field("reason"),
        )

    def parsed(self, form: EditorForm) -> tuple[EditorForm, Parsed]:
        """Return what differs from the stored schedule, and the form with the errors."""
        parsed = parse(form.texts, stored=form.stored, by=self.parsing(form.owner_zone))
        names = check_names(form.owner, form.name) if form.is_new else {}
        return replace(form, errors={**form.errors, **names, **parsed.errors}), parsed

    def previewed(self) -> EditorForm:
        """Return the form with a preview. Required fields that are still empty are not errors."""
        form, parsed = self.parsed(self.typed_form())
        typed = {**form.texts, "owner": form.owner, "name": form.name}
        errors = {
            name: error for name, error in form.errors.items() if typed.get(name, "?").strip()
        }
        return self.with_preview(replace(form, errors=errors), parsed)


class SaveAction(FormAction):
    """Create or update a schedule with the texts of the form."""

    async def post(self, *_: str) -> None:
        """Save and redirect, or render the form with errors, a conflict or a preview."""
        if self.field("do") == "preview":
            await self.render_form(await self.call(self.previewed))
            return
        saved = await self.change(self._save)
        if isinstance(saved, Message):
            leave_message(self, saved)
            self.redirect(self.saved_url, status=HTTPStatus.SEE_OTHER)
            return
        is_conflict = saved.conflict is not None and not saved.errors
        self.set_status(HTTPStatus.CONFLICT if is_conflict else HTTPStatus.UNPROCESSABLE_ENTITY)
        await self.render_form(saved)

    @property
    def saved_url(self) -> str:
        """The page to return to."""
        name, owner = self.field("name"), self.field("owner")
        if self.field("new"):
            owner, name = owner.strip(), name.strip()
        return self.link("dynbeat_schedule", owner=owner, name=name)

    def _save(self) -> EditorForm | Message:
        """Return the message of a saved form, or the form with its errors or a conflict."""
        form = self.typed_form()
        if "" in form.errors:
            # The schedule no longer exists, so the person decides whether to create it again.
            return self.with_preview(form, self.parsed(form)[1])
        form, parsed = self.parsed(form)
        if form.errors:
            return self.with_preview(form, parsed)
        if form.info is not None and not parsed.changes:
            return Message("Nothing was changed.", "info")
        if form.info is not None and form.info.version != form.version:
            return self._conflict(form)
        return self._write(form, parsed)

    def _write(self, form: EditorForm, parsed: Parsed) -> EditorForm | Message:
        mine = self.for_owner(form.owner)
        try:
            with self.acting():
                if form.info is None:
                    mine.create(form.name, enabled=not form.is_paused, **parsed.changes)
                    return Message(f"Schedule {form.name!r} was created.")
                mine.update(form.name, expected_version=form.version, **parsed.changes)
        except NotFoundError:
            return self.typed_form()
        except (InvalidArgumentError, ConflictError, LimitError) as error:
            if error.code == "stale":
                return self._conflict(self.typed_form())
            form = self.with_preview(form, parsed)
            return replace(form, errors={**form.errors, field_of(error): str(error)})
        return Message(f"Schedule {form.name!r} was saved: {', '.join(parsed.changes)}.")

    def _conflict(self, form: EditorForm) -> EditorForm:
        """Return the form with the viewer's texts, and what differs from the stored schedule."""
        if form.info is None:
            return form
        page = self.for_owner(form.owner).changes(form.name, limit=50)
        since = changes_since(form.info, page, version=form.version)
        conflict = conflict_of(form.texts, stored=form.stored, changes=since)
        form = replace(form, version=form.info.version, conflict=conflict)
        form, parsed = self.parsed(form)
        return self.with_preview(form, parsed)


class PreviewAction(FormAction):
    """The preview of a form while someone types."""

    async def post(self, *_: str) -> None:
        """Answer with the preview as HTML, and the errors by field."""
        form = await self.call(self.previewed)
        now = await self.call(self.dynbeat.context.clock.now)
        shown = {"form": form, "page": self, "ui": fragments, "now": now}
        html = self.render_string("editor_preview.html", **shown)
        answer = {
            "html": html.decode(),
            "errors": form.errors,
            "owner_zone": form.owner_zone,
        }
        self.finish(answer)
