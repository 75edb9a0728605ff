"""Save the form of a schedule, or preview it while someone types.

POST save      303: saved; back to the page of the schedule
               409: someone else saved first; the form with both versions
               422: the form with the error at each field
               200: the form with a preview, if the button was "Preview" or the picker's
POST preview   200: the preview as JSON, for the script of the form; it writes nothing
"""

from dataclasses import replace
from http import HTTPStatus

from tornado.web import HTTPError

from celery_dynbeat.common.errors import (
    InvalidScheduleError,
    InvalidTriggerError,
    OwnerLimitError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    StaleScheduleError,
)
from celery_dynbeat.flower.base import fragments, messages
from celery_dynbeat.flower.base.action import ActionHandler
from celery_dynbeat.flower.base.messages import Message
from celery_dynbeat.flower.editor import picker
from celery_dynbeat.flower.editor.conflict import changes_since, conflict_of
from celery_dynbeat.flower.editor.fields import field_of
from celery_dynbeat.flower.editor.form import EditorForm
from celery_dynbeat.flower.editor.handler import EditorHandler, gone
from celery_dynbeat.flower.editor.parsing import Parsed, check_names, lines, parse

#: Bytes of a form: at least these, and _ENCODED times the arguments that a task may have. A form
#: has them twice, and encodes one byte as up to six.
MAX_FORM_BYTES = 1_000_000
_ENCODED = 12
_PICKER_FIELDS = (
    *("pick", "pick_count", "pick_unit", "pick_time", "pick_day", "pick_month_day", "pick_at"),
    "pick_zone",
)
_REFUSED = (InvalidScheduleError, InvalidTriggerError, OwnerLimitError, ScheduleExistsError)


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
            form = self.new_form(owner.strip(), name.strip())
        else:
            try:
                form = self.stored_form(owner, name)
            except ScheduleNotFoundError as error:
                form = self.new_form(owner, name)
                form = replace(form, errors={"": gone(error)})
        return replace(
            form,
            # Hidden arguments are not among the texts.
            texts={
                name: lines(self.field(name)) if name in self.request.body_arguments else text
                for name, text in form.texts.items()
            },
            version=self.version or 0,
            picked=picker.picked_from({each: self.fields(each) for each in _PICKER_FIELDS}),
            is_paused=bool(self.field("paused")),
            reason=self.field("reason"),
        )

    def parsed(self, form: EditorForm) -> tuple[EditorForm, Parsed]:
        """Return what differs from the stored schedule, and the form with the errors."""
        parsed = parse(form.texts, stored=form.stored, by=self.parsing(form.owner_zone))
        names = check_names(form.owner, form.name) if form.is_new else {}
        return replace(form, errors={**form.errors, **names, **parsed.errors}), parsed

    def with_picked(self, form: EditorForm) -> EditorForm:
        """Return the form with the rule of the picker."""
        try:
            rule = picker.rule_of(form.picked)
        except ValueError as error:
            return replace(form, errors={**form.errors, "pick": str(error)})
        return replace(form, texts={**form.texts, "rule": rule})

    def previewed(self) -> EditorForm:
        """Return the form with a preview. Required fields that are still empty are not errors."""
        form = self.typed_form()
        if self.field("do") == "pick":
            form = self.with_picked(form)
        form, parsed = self.parsed(form)
        typed = {**form.texts, "owner": form.owner, "name": form.name, "pick": form.picked.needed}
        errors = {
            name: error for name, error in form.errors.items() if typed.get(name, "?").strip()
        }
        if "pick" in errors:
            return replace(form, errors=errors, no_preview=errors["pick"])
        return self.with_preview(replace(form, errors=errors), parsed)


class SaveAction(FormAction):
    """Create or update a schedule with the texts of the form."""

    async def post(self, *_: str) -> None:
        """Save and redirect, or render the form with errors, a conflict or a preview."""
        if self.field("do") in {"preview", "pick"}:
            await self.render_form(await self.call(self.previewed))
            return
        saved = await self.change(self._save)
        if isinstance(saved, Message):
            messages.leave(self, saved)
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
        if form.info is None:
            return self._create(form, parsed)
        if not parsed.changes:
            return Message("Nothing was changed.", "info")
        if form.info.version != form.version:
            return self._conflict(form)
        return self._update(form, parsed)

    def _create(self, form: EditorForm, parsed: Parsed) -> EditorForm | Message:
        try:
            with self.acting():
                self.for_owner(form.owner).create(
                    form.name, enabled=not form.is_paused, **parsed.changes
                )
        except _REFUSED as error:
            return self._refused(form, parsed, error)
        return Message(f"Schedule {form.name!r} was created.")

    def _update(self, form: EditorForm, parsed: Parsed) -> EditorForm | Message:
        try:
            with self.acting():
                self.for_owner(form.owner).update(
                    form.name, expected_version=form.version, **parsed.changes
                )
        except StaleScheduleError:
            return self._conflict(self.typed_form())
        except ScheduleNotFoundError:
            return self.typed_form()
        except _REFUSED as error:
            return self._refused(form, parsed, error)
        changed = ", ".join(parsed.changes)
        return Message(f"Schedule {form.name!r} was saved: {changed}.")

    def _refused(
        self,
        form: EditorForm,
        parsed: Parsed,
        error: InvalidScheduleError | InvalidTriggerError | OwnerLimitError | ScheduleExistsError,
    ) -> EditorForm:
        form = self.with_preview(form, parsed)
        return replace(form, errors={**form.errors, field_of(error): str(error)})

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
        """Answer with the preview as HTML, the errors by field, and the rule of the picker."""
        form = await self.call(self.previewed)
        now = await self.call(self.dynbeat.context.clock.now)
        html = self.render_string(
            "editor_preview.html",
            form=form,
            page=self,
            ui=fragments,
            now=now,
        )
        answer = {
            "html": html.decode(),
            "errors": form.errors,
            "rule": form.texts["rule"],
            "owner_zone": form.owner_zone,
        }
        self.finish(answer)
