"""Schedules and runs in Django's admin.

A page reads its own rows, by an index, at any number of schedules and runs: there is no COUNT of a
table, no sort by other columns, and no lookup by other fields. Each write is a call of the API in
the transaction of the page, with the user as its actor.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Page, Paginator
from django.db import router
from django.db.models import BigIntegerField, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.defaultfilters import truncatechars
from django.urls import path, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.utils.translation import gettext_lazy as _

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.api.field_types import parse_instant
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.common.errors import ARGUMENTS, DynbeatError, InvalidTriggerError
from celery_dynbeat.common.states import State
from celery_dynbeat.django.application import has_task, required_dynbeat
from celery_dynbeat.django.forms import user_message
from celery_dynbeat.django.middleware import actor_of
from celery_dynbeat.django.models import Run, Schedule
from celery_dynbeat.django.schedule_form import SHOWN, ScheduleForm, fieldsets
from celery_dynbeat.django.sessions import current_session
from celery_dynbeat.insights.history import recent_runs
from celery_dynbeat.triggers import parse_trigger

#: Rows that the pages of one list can reach.
MAX_ROWS = 1_000
#: Rows that one action changes. Django refuses a form of 1,000 fields, and a server a long request.
MAX_SELECTED = 500
MAX_TERM = 255
#: Errors that an action shows, runs of a strip, and rows of a history.
_SHOWN, _STRIP, _HISTORY = 5, 12, 100
_MAX_ERROR = 80


class CappedPaginator(Paginator):
    """A paginator that counts at most MAX_ROWS rows."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows that the pages reach."""
        return len(self.object_list.values_list("pk")[:MAX_ROWS])

    def page(self, number: int | str) -> Page:
        """Return a page. Its keys are read from the index, and then its rows.

        MariaDB would sort the whole table for rows at an offset.
        """
        page = int(self.validate_number(number))
        first = (page - 1) * self.per_page
        last = min(first + self.per_page, self.count)
        keys = list(self.object_list.values_list("pk", flat=True)[first:last])
        rows = self.object_list.model.objects.using(self.object_list.db).in_bulk(keys)
        # A row may have been deleted in the meantime.
        return self._get_page([rows[key] for key in keys if key in rows], page, self)


class UnsortedChangeList(ChangeList):
    """A list that ignores ``?o=``: Django sorts by each column, whatever ``sortable_by`` says."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet) -> list[str]:
        """Return the order of the model."""
        self.params.pop(ORDER_VAR, None)
        ordering: list[str] = super().get_ordering(request, queryset)
        return ordering

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page, and the runs that its columns show."""
        super().get_results(request)
        if not self.params:
            # Without a search and a filter, "Show all" shows the same.
            self.full_result_count = self.result_count
        self.model_admin.add_to_rows(self.result_list)


class Keyed(admin.SimpleListFilter):
    """A filter of the API. ScheduleAdmin reads the rows of all filters with one call."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the values of a filter with links. A text has one, or else Django hides it."""
        del request, model_admin
        return [("", "")]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        """Return all rows: ``get_search_results`` filters them."""
        del request
        return queryset


class StateFilter(Keyed):
    """The states of the API."""

    title, parameter_name = _("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return the states."""
        del request, model_admin
        return [(str(each), gettext_lazy(each)) for each in State]


class TextFilter(Keyed):
    """A filter with a text that the user types."""

    template = "admin/dynbeat/text_filter.html"

    def choices(self, changelist: Any) -> Sequence[dict[str, Any]]:
        """Return the other parameters of the list, which the form of the filter keeps."""
        others = changelist.get_filters_params()
        others.pop(self.parameter_name, None)
        query = {"q": changelist.query} if changelist.query else {}
        pairs = [
            (key, value) for key, each in {**others, **query}.items() for value in _texts(each)
        ]
        return [{"name": self.parameter_name, "value": self.value() or "", "others": pairs}]


def _texts(value: Any) -> Sequence[Any]:
    # Django 4.2 has one value for each parameter.
    return value if isinstance(value, list) else [value]


def _text_filter(name: str, label: Any) -> type[TextFilter]:
    return type(f"{name.title()}Filter", (TextFilter,), {"title": label, "parameter_name": name})


class DynbeatAdmin(admin.ModelAdmin):
    """Pages of rows that the API changes."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    # The numbers of rows in the filters would be COUNTs. Django 4.2 does not show them.
    show_facets = getattr(admin, "ShowFacets", None) and admin.ShowFacets.NEVER
    # The button "Go" of actions is for the rows of the page.
    actions_selection_counter = True
    #: The keys of the URL that filter by the API.
    filters: Collection[str] = ()

    @property
    def media(self) -> forms.Media:
        """The files of Django, and the colours of the states."""
        return super().media + forms.Media(css={"all": ["dynbeat/admin.css"]})

    @property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the project."""
        return required_dynbeat()

    def get_owners(self, request: HttpRequest) -> Collection[str] | None:
        """Return the owners whose rows the user sees and changes; None for all. A hook."""
        del request
        return None

    def schedules_of(self, request: HttpRequest, owner: str, reason: str = "") -> OwnerSchedules:
        """Return the calls for an owner, in the transaction of the page and the user's name."""
        return self.dynbeat.schedules.for_owner(
            owner,
            session=current_session(router.db_for_write(Schedule)),
            actor=actor_of(request),
            reason=reason or None,
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        """Return the rows of the user's owners."""
        queryset, owners = super().get_queryset(request), self.get_owners(request)
        return queryset if owners is None else queryset.filter(owner__in=owners)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list without other orders."""
        del request, kwargs
        return UnsortedChangeList

    def add_to_rows(self, rows: Iterable[Any]) -> None:
        """Read the other rows that the columns of a page show."""

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change these rows with actions."""
        name = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return bool(request.user.has_perm(name))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return whether a key of the URL is a filter. Others could read the whole table."""
        # Django 4.2 passes no request.
        del value, request
        return lookup in self.filters

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet, bool]:
        """Return the rows of a search and of the filters, and that none is doubled."""
        term = search_term.strip()
        if len(term) > MAX_TERM or "\0" in term:
            return queryset.none(), False
        return self.found(request, queryset, term), False

    def found(self, request: HttpRequest, queryset: QuerySet, term: str) -> QuerySet:
        """Return the rows that match ``term``, read by an index."""
        raise NotImplementedError

    def each(
        self,
        request: HttpRequest,
        queryset: QuerySet,
        call: Callable[[OwnerSchedules, str], object],
        done: Callable[[int], str] | None,
    ) -> None:
        """Call the API for each row, and show the number and the errors.

        Inside ``atomic()``, as with ATOMIC_REQUESTS, the calls join Django's transaction.
        """
        rows = self.selected(request, queryset)
        if rows is None:
            return
        errors = []
        for owner, key in rows:
            try:
                call(self.schedules_of(request, owner), key)
            except DynbeatError as error:
                errors.append(f"{key}: {user_message(error)}")
        if done is not None and len(rows) > len(errors):
            self.message_user(request, done(len(rows) - len(errors)))
        for text in errors[:_SHOWN]:
            self.message_user(request, text, messages.ERROR)
        if left := len(errors[_SHOWN:]):
            text = ngettext("%d more row has an error.", "%d more rows have an error.", left) % left
            self.message_user(request, text, messages.ERROR)

    def selected(
        self, request: HttpRequest, queryset: QuerySet
    ) -> Sequence[tuple[str, str]] | None:
        """Return owner and key of each selected row; None after an error for too many."""
        key = "name" if self.model is Schedule else "pk"
        rows = list(queryset.values_list("owner", key)[: MAX_SELECTED + 1])
        if len(rows) <= MAX_SELECTED:
            # PostgreSQL has a type for the id of a run.
            return [(owner, str(name)) for owner, name in rows]
        text = gettext("An action changes at most %d rows. Select fewer.") % MAX_SELECTED
        self.message_user(request, text, messages.ERROR)
        return None


def column(label: Any, read: Callable[[Any], Any]) -> Any:
    """Return a column that shows what ``read`` returns for a row."""

    def shown(self: Any, row: Any) -> Any:
        del self
        return read(row)

    return admin.display(description=label)(shown)


def action(label: Any, call: Callable[..., object], done: Callable[[int], str]) -> Any:
    """Return an action that calls the API for each row; ``done`` is its message."""

    def act(self: DynbeatAdmin, request: HttpRequest, queryset: QuerySet) -> None:
        self.each(request, queryset, call, done)

    return admin.action(description=label, permissions=["act"])(act)


class PauseForm(ActionForm):
    """The menu of actions, with the arguments of a pause."""

    reason = forms.CharField(label=_("Reason"), required=False, max_length=1024)
    until = forms.CharField(
        label=_("Pause until"),
        required=False,
        widget=forms.TextInput({"placeholder": _("such as 2h or 2026-12-24T09:00")}),
    )


@admin.register(Schedule)
class ScheduleAdmin(DynbeatAdmin):
    """The schedules, with a form and actions that call the API.

    Subclasses replace ``get_owners`` and ``get_owner_choices``.
    """

    form = ScheduleForm
    save_as = True
    action_form = PauseForm
    filters = ("state", "owner_prefix", "task", "tag")
    list_display = (
        *("name", "owner", "rule", "shown_state", "next_at", "last_runs", "last_at", "task"),
    )
    list_filter = (
        StateFilter,
        _text_filter("owner_prefix", _("beginning of the owner")),
        _text_filter("task", _("task")),
        _text_filter("tag", _("tag")),
    )
    search_fields = ("owner",)
    search_help_text = _("An owner, a task, or the beginning of a name")
    actions: ClassVar = ["run_now", "pause", "resume", "delete_selected"]
    #: What a user sees who may only view schedules: no arguments.
    viewed = ("owner", "name", "task", "description", "rule", "shown_state", "next_at", "last_at")
    next_at = column(
        _("Next run"), lambda schedule: _instant(None if schedule.is_held else schedule.next_run_at)
    )
    last_at = column(_("Last run"), lambda schedule: _instant(schedule.last_run_at))
    run_now = action(
        _("Run selected schedules now"),
        OwnerSchedules.run_now,
        lambda n: ngettext("%d schedule runs now.", "%d schedules run now.", n) % n,
    )
    resume = action(
        _("Resume selected schedules"),
        OwnerSchedules.resume,
        lambda n: ngettext("%d schedule is resumed.", "%d schedules are resumed.", n) % n,
    )

    def get_owner_choices(self, request: HttpRequest) -> Sequence[tuple[str, str]] | None:
        """Return the owners, with labels, of a new schedule; None for any text. A hook."""
        owners = self.get_owners(request)
        return None if owners is None else [(each, each) for each in owners]

    def may_create_for(self, request: HttpRequest, owner: str) -> bool:
        """Return whether the user may create schedules for the owner."""
        choices = self.get_owner_choices(request)
        return choices is None or owner in {value for value, _label in choices}

    @admin.display(description=_("Rule"))
    def rule(self, schedule: Schedule) -> Any:
        """Return the trigger in words, or the text of a damaged one."""
        try:
            trigger = parse_trigger(
                schedule.trigger_kind, schedule.trigger_spec, timezone=schedule.timezone
            )
        except InvalidTriggerError:
            return truncatechars(schedule.trigger_spec, _MAX_ERROR)
        return trigger.describe(schedule.timezone)

    @admin.display(description=_("State"))
    def shown_state(self, schedule: Schedule) -> Any:
        """Return the state, with its reason as a title."""
        why = schedule.error or (schedule.paused_reason if schedule.state == State.PAUSED else "")
        return _tagged(schedule.state, truncatechars(why or "", _MAX_ERROR))

    @admin.display(description=_("Last runs"))
    def last_runs(self, schedule: Schedule) -> Any:
        """Return the strip of the last runs, the newest at the right."""
        if not self.admin_site.is_registered(Run):
            return ""
        return format_html_join(
            "",
            '<a class="dynbeat-run dynbeat-{}" href="{}" title="{}" aria-label="{}"></a>',
            (
                (run.status, reverse(f"{self.admin_site.name}:dynbeat_run_change", args=[run.id]))
                + (f"{gettext(run.status)}, {run.fire_at:%Y-%m-%d %H:%M:%S} UTC",) * 2
                for run in schedule.runs
            ),
        )

    def add_to_rows(self, rows: Iterable[Schedule]) -> None:
        """Read the last runs of the schedules of a page."""
        found = recent_runs(
            self.dynbeat.context, schedule_ids=[row.pk for row in rows], limit=_STRIP
        )
        for row in rows:
            row.runs = found[row.pk]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the schedule, or None if it does not exist."""
        # Django 4.2 passes numbers to the database that its type cannot hold.
        if object_id.isdecimal() and int(object_id[:MAX_TERM]) > BigIntegerField.MAX_BIGINT:
            return None
        return super().get_object(request, object_id, from_field)

    def found(self, request: HttpRequest, queryset: QuerySet, term: str) -> QuerySet:
        """Return the schedules of an owner, of a task, or whose names begin with ``term``."""
        matching = {key: value for key in self.filters if (value := request.GET.get(key))}
        if not term and not matching:
            return queryset
        for key in ("owner", "task", "name_prefix") if term else ():
            # An impossible value, such as a control character, matches nothing.
            with suppress(DynbeatError):
                if keys := self._keys(request, {**matching, key: term}):
                    return queryset.filter(pk__in=keys)
        with suppress(DynbeatError):
            if not term:
                return queryset.filter(pk__in=self._keys(request, matching))
        return queryset.none()

    def _keys(self, request: HttpRequest, matching: dict[str, Any]) -> Sequence[int]:
        calls, owners = self.dynbeat.schedules, self.get_owners(request)
        if owners is None:
            return [each.id for each in calls.list(limit=MAX_ROWS, **matching)]
        prefix, one = matching.pop("owner_prefix", ""), matching.pop("owner", None)
        seen = [each for each in owners if each.startswith(prefix) and one in {None, each}]
        return [
            each.id
            for owner in seen
            for each in calls.for_owner(owner).list(limit=MAX_ROWS, **matching)
        ][:MAX_ROWS]

    def get_form(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """Return the class of the form, which knows this admin and the request."""
        form = super().get_form(request, obj, **kwargs)
        form.admin, form.request = self, request
        return form

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return those of the class, and what the form shows of a stored schedule."""
        return [*super().get_readonly_fields(request, obj), *SHOWN]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the parts of the form, or what a user sees who may only view schedules."""
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.viewed})]
        return fieldsets(is_new=obj is None)

    def get_urls(self) -> list[Any]:
        """Return the URLs, with the preview of the form."""
        view, name = self.admin_site.admin_view(self.preview_view), "dynbeat_schedule_preview"
        urls = [path("preview/", view, name=name), path("<int:pk>/preview/", view, name=name)]
        return [*urls, *super().get_urls()]

    def preview_url(self, schedule: Schedule | None) -> Any:
        """Return the URL of the preview of a stored or a new schedule."""
        args = [] if schedule is None else [schedule.pk]
        return reverse(f"{self.admin_site.name}:dynbeat_schedule_preview", args=args)

    def preview_view(self, request: HttpRequest, pk: int | None = None) -> HttpResponse:
        """Answer with the next fire times of the form that is typed. Nothing is written."""
        schedule = None if pk is None else self.get_object(request, str(pk))
        is_allowed = (
            self.has_add_permission(request)
            if schedule is None
            else self.has_change_permission(request, schedule)
        )
        if not is_allowed or request.method != "POST":
            raise PermissionDenied
        form = self.get_form(request, schedule, change=schedule is not None)
        typed = form(request.POST, instance=schedule)
        if schedule is None and not self.may_create_for(request, request.POST.get("owner", "")):
            raise PermissionDenied
        return JsonResponse(typed.preview())

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show or save the form. A change between the check and the write is an error above it."""
        try:
            response: HttpResponse = super().changeform_view(request, *args, **kwargs)
        except DynbeatError as error:
            if request.method != "POST":
                raise
            self.message_user(request, user_message(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return response

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        """Save the schedule with the API, which notifies beat. Warn of an unknown task."""
        del change
        info = form.write()
        obj.pk, obj.owner, obj.name = info.id, info.owner, info.name
        if not has_task(self.dynbeat, info.task):
            text = gettext(
                "The application has no task '%s'. Its runs fail unless a worker has it."
            )
            self.message_user(request, text % info.task, messages.WARNING)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Show the changes of a schedule and its runs."""
        schedule = self.get_object(request, object_id)
        if schedule is not None and self.has_view_or_change_permission(request, schedule):
            mine = self.schedules_of(request, schedule.owner)
            shows_runs = self.admin_site.is_registered(Run) and request.user.has_perm(
                "dynbeat.view_run"
            )
            extra_context = {
                "changes": mine.changes(schedule.name, limit=_HISTORY),
                # They contain arguments.
                "shows_values": self.has_change_permission(request, schedule),
                "shows_runs": shows_runs,
                "runs": mine.runs(schedule.name, limit=_HISTORY) if shows_runs else [],
                **(extra_context or {}),
            }
        response: HttpResponse = super().history_view(request, object_id, extra_context)
        return response

    @admin.action(description=_("Pause selected schedules"), permissions=["act"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Pause schedules, with a reason and an end."""
        try:
            until = self._instant_of(request.POST.get("until", "").strip())
        except ValueError:
            self.message_user(request, gettext(ARGUMENTS["instant"]), messages.ERROR)
            return
        reason = request.POST.get("reason", "").strip() or None
        self.each(
            request,
            queryset,
            lambda mine, name: mine.pause(name, until=until, reason=reason),
            lambda n: ngettext("%d schedule is paused.", "%d schedules are paused.", n) % n,
        )

    def _instant_of(self, text: str) -> datetime | None:
        """Return the instant of a text, which is on the clock of Django's time zone."""
        if not text:
            return None
        zone = ZoneInfo(timezone.get_current_timezone_name())
        return parse_instant(text).resolve(now=self.dynbeat.context.clock.now, zone=zone)

    # The name is that in Django's page, and so is the text.
    @admin.action(description=delete_selected.short_description, permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask, then delete schedules. Their history stays."""
        if self.selected(request, queryset) is None:
            return None
        return delete_selected(self, request, queryset)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Delete schedules with the API, which notifies beat."""
        self.each(request, queryset, OwnerSchedules.delete, None)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        """Delete one schedule with the API."""
        self.each(request, Schedule.objects.filter(pk=obj.pk), OwnerSchedules.delete, None)


@admin.register(Run)
class RunAdmin(DynbeatAdmin):
    """The history, the newest first."""

    list_display = (
        *("id", "schedule", "shown_status", "fired_at", "shown_duration", "shown_lag"),
        *("attempt", "worker", "shown_note", "shown_error"),
    )
    search_fields = ("owner",)
    search_help_text = _("An owner, or the id of a run")
    actions: ClassVar = ["rerun", "cancel"]
    fields = (
        *("schedule", "task", "shown_status", "origin", "fired_at", "sent_at", "started_at"),
        *("finished_at", "shown_duration", "shown_lag", "attempt", "worker", "note", "error"),
    )
    shown_status = column(_("Status"), lambda run: _tagged(run.status))
    fired_at = column(_("Fire time"), lambda run: _instant(run.fire_at))
    shown_duration = column(_("Duration"), lambda run: _seconds(run.duration))
    shown_lag = column(_("Lag"), lambda run: _seconds(run.lag))
    shown_note = column(_("Note"), lambda run: truncatechars(run.note or "", _MAX_ERROR))
    shown_error = column(_("Error"), lambda run: truncatechars(run.error or "", _MAX_ERROR))
    rerun = action(
        _("Run selected runs again"),
        OwnerSchedules.rerun,
        lambda n: ngettext("%d run is repeated.", "%d runs are repeated.", n) % n,
    )
    cancel = action(
        _("Cancel selected runs"),
        OwnerSchedules.cancel_run,
        lambda n: ngettext("%d run is cancelled.", "%d runs are cancelled.", n) % n,
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: beat and the actions create runs."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: a run is history."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False, because beat prunes the history."""
        del request, obj
        return False

    @admin.display(description=_("Schedule"))
    def schedule(self, run: Run) -> Any:
        """Return the schedule, with a link to it if it exists."""
        name = f"{run.owner}/{run.name}" if run.owner else run.name
        if run.schedule_id is None:
            return str(name)
        url = reverse(f"{self.admin_site.name}:dynbeat_schedule_change", args=[run.schedule_id])
        return format_html('<a href="{}">{}</a>', url, name)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the run, or None if it does not exist."""
        run_id = _run_id(object_id)
        return None if run_id is None else super().get_object(request, run_id, from_field)

    def found(self, request: HttpRequest, queryset: QuerySet, term: str) -> QuerySet:
        """Return the run with the id ``term``, or the runs of that owner, the newest first."""
        del request
        if not term:
            return queryset
        run_id = _run_id(term)
        if run_id is not None:
            return queryset.filter(pk=run_id)
        # Many runs are scheduled for one instant: the id keeps the pages apart.
        return queryset.filter(owner=term).order_by("-fire_at", "-id")


def _run_id(text: str) -> str | None:
    """Return ``text`` as the table has it; None if it is not the id of a run."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _tagged(word: str, title: str = "") -> Any:
    """Return a state or a status as a coloured word."""
    html = '<span class="dynbeat-tag dynbeat-{}" title="{}">{}</span>'
    return format_html(html, word, title, gettext(word))


def _instant(value: datetime | None) -> str:
    """Return an instant with seconds, on Django's clock."""
    if value is None:
        return "-"
    local = value if timezone.is_naive(value) else timezone.localtime(value)
    return f"{date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M:%S}"


def _seconds(value: timedelta | None) -> str:
    return "-" if value is None else f"{value.total_seconds():.3f} s"
