"""The form of a schedule in the admin, which is the form of the table FIELDS.

    texts -> parse(): the arguments that differ from the stored schedule, or errors at their fields
          -> create() or update() in a savepoint that is rolled back: the errors of the API
          -> the same call in the transaction of the page

No rule of the API is written here.
"""

from collections.abc import Sequence
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db import router, transaction
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_lazy as _

from celery_dynbeat.api.field_types import Choice, JsonValue, Tags, Text
from celery_dynbeat.api.fields import FIELDS, Field
from celery_dynbeat.api.results import FireTime, ScheduleInfo
from celery_dynbeat.api.texts import RULE, Parsed, Parsing, changes_since, lines, parse, texts_of
from celery_dynbeat.common.errors import ARGUMENTS, DynbeatError
from celery_dynbeat.django.application import import_tasks
from celery_dynbeat.django.forms import RuleInput, errors_in, user_message
from celery_dynbeat.django.models import Schedule
from celery_dynbeat.insights import lists

#: The fields of the table that the form has. A ping URL contains a secret.
TABLE = {name: field for name, field in FIELDS.items() if field.in_form or name == "options"}
#: The texts that ``parse`` reads.
TEXTS = (RULE, *TABLE)
#: The fields that a preview takes.
TIMING = ("window", "start_at", "end_at", "max_runs", "catch_up", "overlap", "retry")
PREVIEWED = 5
#: Names that the form suggests, and changes that a conflict shows.
SUGGESTED = 200
MAX_CHANGES = 20
#: What the admin shows of a stored schedule.
SHOWN = ("shown_state", "next_at", "last_at")
#: The group of the table -> its heading.
HEADINGS = {"call": _("Task call"), "policy": _("Policies")}


def form_field(field: Field) -> forms.Field:
    """Return the field of the form for a row of the table."""
    shown: dict[str, Any] = {
        "label": gettext_lazy(field.label),
        "help_text": gettext_lazy(field.help),
        "required": field.is_required,
    }
    if isinstance(field.type, Choice):
        choices = [("", _("Default")), *((each, each) for each in field.type.choices)]
        return forms.ChoiceField(choices=choices, **shown)
    is_long = isinstance(field.type, (JsonValue, Tags, Text)) and not field.is_required
    widget = AdminTextareaWidget({"rows": 3}) if is_long else AdminTextInputWidget()
    if isinstance(field.type, JsonValue):
        widget.attrs["placeholder"] = '[1, "a"]' if field.type.kind is list else '{"key": 1}'
    if isinstance(field.type, Tags):
        widget.attrs["placeholder"] = _("one per line")
    return forms.CharField(widget=widget, strip=False, **shown)


class Suggesting(AdminTextInputWidget):
    """A text with suggestions, which a browser shows as the person types."""

    template_name = "admin/dynbeat/suggesting.html"
    suggestions: Sequence[str] = ()

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        """Return the context with the suggestions."""
        attrs = {**(attrs or {}), "list": f"{name}-suggestions", "autocomplete": "off"}
        context: dict[str, Any] = super().get_context(name, value, attrs)
        return {**context, "suggestions": self.suggestions}


class BaseScheduleForm(forms.ModelForm):
    """The fields that no row of the table has, and the write.

    ``admin`` is the ScheduleAdmin and ``request`` the request, which a subclass sets.
    """

    admin: ClassVar[Any] = None
    request: ClassVar[Any] = None

    owner = forms.CharField(
        label=_("Owner"),
        required=False,
        widget=Suggesting(),
        help_text=_("Whose schedule it is, such as user:42. Empty means the application itself."),
    )
    name = forms.CharField(label=_("Name"), widget=AdminTextInputWidget())
    rule = forms.CharField(label=_("Rule"), widget=RuleInput(), strip=False)
    paused = forms.BooleanField(label=_("Create the schedule paused"), required=False)
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        widget=AdminTextInputWidget(),
        help_text=_("Why you change it. The history shows it."),
    )
    version = forms.IntegerField(widget=forms.HiddenInput(), required=False)

    class Meta:
        """Django saves no field of the model."""

        model = Schedule
        fields = ()

    def __init__(self, *args: Any, instance: Any = None, **kwargs: Any) -> None:
        self.info: ScheduleInfo | None = None
        if instance is not None:
            self.info = self.admin.schedules_of(self.request, instance.owner).get(instance.name)
        self.stored = dict.fromkeys(TEXTS, "")
        initial = kwargs.pop("initial", None) or {}
        if self.info is not None:
            self.stored = self._stored(self.info)
            known = {"owner": self.info.owner, "name": self.info.name, "version": self.info.version}
            initial = {**self.stored, **known, **initial}
        super().__init__(*args, instance=instance, initial=initial, **kwargs)
        context = self.admin.dynbeat.context
        self._limit, self._now = context.settings.max_payload_bytes, context.clock.now
        for name, field in TABLE.items():
            placeholder = field.unset_text(context.settings)
            if isinstance(field.type, Choice):
                self.fields[name].choices[0] = ("", f"{gettext('Default')}: {placeholder}")
            elif field.group in {"limit", "policy"}:
                self.fields[name].widget.attrs["placeholder"] = gettext(placeholder)
        self.fields["task"].widget = Suggesting()
        if self.admin.get_owners(self.request) is None:
            import_tasks(self.admin.dynbeat)
            found = lists.tasks(context, prefix="", limit=SUGGESTED)
            self.fields["task"].widget.suggestions = found
        # The optimistic lock.
        self.fields["version"].required = self.info is not None
        widget = self.fields[RULE].widget
        widget.preview_url = self.admin.preview_url(instance)
        widget.zone = "" if self.info is None else self._zone(self.info.owner).key
        self._offer_owners()

    def _offer_owners(self) -> None:
        field = self.fields["owner"]
        if self.info is not None:
            # "Save as new" sends it. A save ignores it.
            field.widget.attrs["readonly"] = True
            return
        choices = self.admin.get_owner_choices(self.request)
        if choices is not None:
            field.widget = forms.Select(choices=choices)
            return
        found = lists.owners(self.admin.dynbeat.context, limit=SUGGESTED)
        field.widget.suggestions = found

    def _stored(self, info: ScheduleInfo) -> dict[str, str]:
        texts = texts_of(info, TEXTS, zone=self._zone(info.owner))
        others = {name: each for name, each in info.options.items() if name not in TABLE}
        return {**texts, "options": FIELDS["options"].format(others, ZoneInfo("UTC"))}

    def _zone(self, owner: str) -> ZoneInfo:
        return ZoneInfo(self.admin.schedules_of(self.request, owner).timezone())

    @property
    def owner_text(self) -> str:
        """The owner of the schedule, which no request can change."""
        return str(self.data.get("owner", "").strip() if self.info is None else self.info.owner)

    def clean_owner(self) -> str:
        """Refuse an owner for whom the user may not create schedules."""
        owner: str = self.cleaned_data["owner"]
        if self.info is None and not self.admin.may_create_for(self.request, owner):
            raise forms.ValidationError(gettext("You cannot create schedules for this owner."))
        return owner

    def parsed(self) -> Parsed:
        """Return the arguments that differ from the stored schedule, and the errors."""
        # A page may show fewer fields.
        texts = {name: lines(self.data[name]) for name in TEXTS if name in self.data}
        try:
            by = Parsing(self._zone(self.owner_text), self._limit, self._now)
        except DynbeatError:
            # The field of the owner shows this error.
            by = Parsing(ZoneInfo("UTC"), self._limit, self._now)
        parsed = parse(texts, stored=self.stored, by=by)
        if "options" in parsed.changes:
            # Other options replace all. These two have fields of their own.
            for name in ("queue", "priority"):
                if name in texts and name not in parsed.raised:
                    parsed.changes.setdefault(name, FIELDS[name].parse(texts[name]))
        return parsed

    def _post_clean(self) -> None:
        """Check the schedule with the call that saves it. Django would check the model instead."""
        # A required text that is empty has an error already.
        for name, error in self.parsed().raised.items():
            if name not in self.errors:
                self.add_error(name, self._worded(name, error))
        if self.errors or self._is_stale():
            return
        using = router.db_for_write(Schedule)
        with errors_in(self, worded=_for_staff), transaction.atomic(using):
            self.write()
            transaction.set_rollback(True, using)  # noqa: FBT003 - positional in Django

    @staticmethod
    def _worded(name: str, error: Exception) -> str:
        if isinstance(error, DynbeatError):
            return _for_staff(error)
        is_json = name in TABLE and isinstance(TABLE[name].type, JsonValue)
        return str(gettext(ARGUMENTS["json" if is_json else "type"]))

    def _is_stale(self) -> bool:
        """Say above the form who changed what, if someone saved in the meantime.

        The form is shown with the typed texts and the new version, so that a second save saves.
        """
        version = self.cleaned_data["version"]
        if self.info is None or self.info.version == version:
            return False
        text = _("This schedule was changed in the meantime. To replace these changes, save again.")
        self.add_error(None, text)
        mine = self.admin.schedules_of(self.request, self.info.owner)
        changes = mine.changes(self.info.name, limit=MAX_CHANGES)
        for change in changes_since(self.info, changes, version=version):
            who = change.actor or gettext("an unknown user")
            self.add_error(None, f"{who}, {change.changed_at:%Y-%m-%d %H:%M:%S} UTC: {change.text}")
        typed: Any = self.data.copy()
        typed["version"] = self.info.version
        self.data: Any = typed
        return True

    def write(self) -> Any:
        """Create or update the schedule in the present transaction."""
        mine = self.admin.schedules_of(
            self.request, self.owner_text, reason=self.cleaned_data["reason"]
        )
        name, changes = self.cleaned_data["name"], self.parsed().changes
        if self.info is None:
            return mine.create(name, enabled=not self.cleaned_data["paused"], **changes)
        saved, version = self.info, self.cleaned_data["version"]
        if name != saved.name:
            saved = mine.rename(saved.name, name, expected_version=version)
            version = saved.version
        return mine.update(name, expected_version=version, **changes) if changes else saved

    def preview(self) -> dict[str, Any]:
        """Return the next fire times of the typed rule, as ``<dynbeat-rule>`` shows them."""
        parsed = self.parsed()
        for name in (RULE, *TIMING):
            if name in parsed.raised:
                return {"error": self._worded(name, parsed.raised[name])}
        kept = {each: getattr(self.info, each) for each in TIMING if self.info is not None}
        timing = {each: parsed.changes.get(each, kept.get(each)) for each in TIMING}
        trigger = parsed.changes.get("trigger", self.info and self.info.given_trigger)
        if trigger is None:
            return {}
        name = self.data.get("name", "").strip()
        try:
            mine = self.admin.schedules_of(self.request, self.owner_text)
            shown = mine.preview(trigger, name or None, PREVIEWED, **timing)
        except DynbeatError as error:
            return {"error": _for_staff(error)}
        return {
            "description": shown.description,
            "fire_times": [_fire_time(each, shown.timezone) for each in shown.fire_times],
            "notes": [*map(str, shown.warnings)],
        }


def _for_staff(error: DynbeatError) -> str:
    """Return the sentence for end users, and the text for developers if it says more."""
    text = user_message(error)
    return f"{text} {error}" if error.code == "invalid" else text


def _fire_time(fire_time: FireTime, timezone: str) -> str:
    note = f" ({fire_time.note})" if fire_time.note else ""
    return f"{fire_time.local:%a %Y-%m-%d %H:%M:%S} {timezone}{note}"


ScheduleForm: Any = type(
    "ScheduleForm", (BaseScheduleForm,), {name: form_field(field) for name, field in TABLE.items()}
)


def fieldsets(*, is_new: bool) -> list[tuple[Any, dict[str, Any]]]:
    """Return the parts of the form, as ``ModelAdmin.fieldsets``."""
    groups: dict[str, list[str]] = {}
    for name, field in TABLE.items():
        groups.setdefault(field.group, []).append(name)
    about, call, limit = groups["about"], groups["call"], groups["limit"]
    call.remove("task")
    audit = ["paused", "reason", "version"] if is_new else ["reason", "version"]
    known = [] if is_new else [SHOWN]
    return [
        (None, {"fields": [*known, "owner", "name", "task", *about]}),
        (_("When"), {"fields": [RULE, *limit]}),
        (HEADINGS["call"], {"fields": call}),
        (
            HEADINGS["policy"],
            {
                "fields": groups["policy"],
                "classes": ["collapse"],
                "description": _(
                    "An empty field means the default. Write durations as 90, 5m, 2h or 1d."
                ),
            },
        ),
        (_("Save"), {"fields": audit}),
    ]
