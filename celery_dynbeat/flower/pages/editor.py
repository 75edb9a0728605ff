"""The pages "New schedule" and "Edit": the form of a schedule."""

from http import HTTPStatus

from celery_dynbeat.flower.base.errors import PageError
from celery_dynbeat.flower.editor.form import EditorForm
from celery_dynbeat.flower.editor.handler import EditorHandler
from celery_dynbeat.flower.editor.parsing import Parsed


class _FormPage(EditorHandler):
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
        return self.with_preview(self.form(), Parsed())

    def form(self) -> EditorForm:
        """Return the form as it opens."""
        raise NotImplementedError


class EditPage(_FormPage):
    """The form of a stored schedule: ``?owner=...&name=...``."""

    route = "dynbeat_edit"

    def form(self) -> EditorForm:
        """Return the form with the stored values. Raises ScheduleNotFoundError."""
        return self.stored_form(self.argument("owner"), self.argument("name"))


class NewPage(_FormPage):
    """The form of a new schedule. ``?owner=`` and ``?name=`` are put into their fields."""

    route = "dynbeat_new"

    def form(self) -> EditorForm:
        """Return an empty form."""
        return self.new_form(self.argument("owner"), self.argument("name"))
