"""Schedules and runs in Django's admin.

A page reads its own rows, by an index, at any number of schedules and runs: there is no COUNT of a
table, no sort by other columns, and no lookup by other fields. Changes are calls of the API, with
the user as their actor.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.core.paginator import Page, Paginator
from django.db import router
from django.db.models import BigIntegerField, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.django.application import project_dynbeat
from celery_dynbeat.django.models import Run, Schedule
from celery_dynbeat.django.sessions import current_session

#: Rows that the pages of one list can reach.
MAX_ROWS = 1_000
#: Rows that one action changes. Django refuses a form of 1,000 fields, and a server a long request.
MAX_SELECTED = 500
MAX_TERM = 255
#: Errors that an action shows.
_SHOWN = 5


def _dynbeat() -> Dynbeat:
    found = project_dynbeat()
    if found is None:
        raise ImproperlyConfigured(
            "the admin needs the Dynbeat of the Celery application: import the application in the"
            " __init__.py of the project"
        )
    return found


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


class ReadOnlyAdmin(admin.ModelAdmin):
    """Pages that show rows, and change nothing by a form."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    # The button "Go" of actions is for the rows of the page.
    actions_selection_counter = True

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list without other orders."""
        del request, kwargs
        return UnsortedChangeList

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False, because only the API creates schedules."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False, because a form would not validate as the API does."""
        del request, obj
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Return False, because a lookup in the URL could read the whole table."""
        # Django 4.2 passes no request.
        del lookup, value, request
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet, bool]:
        """Return the rows of a search, and that none is doubled."""
        del request
        term = search_term.strip()
        if not term:
            return queryset, False
        if len(term) > MAX_TERM or "\0" in term:
            return queryset.none(), False
        return self.found(queryset, term), False

    def found(self, queryset: QuerySet, term: str) -> QuerySet:
        """Return the rows that match ``term``, read by an index."""
        raise NotImplementedError


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    """The schedules, with the actions of the API."""

    list_display = ("name", "owner", "task", "trigger", "state", "next_run_at", "last_run_at")
    search_fields = ("owner",)
    search_help_text = "An owner, or the beginning of a name"
    actions: ClassVar = ["pause", "resume", "run_now", "delete_selected"]

    @admin.display
    def trigger(self, schedule: Schedule) -> str:
        """Return the trigger as the table has it."""
        zone = f" {schedule.timezone}" if schedule.timezone else ""
        return f"{schedule.trigger_kind} {schedule.trigger_spec[:80]}{zone}"

    @admin.display
    def state(self, schedule: Schedule) -> str:
        """Return the state that needs the most attention."""
        states = {
            "quarantined": schedule.error is not None,
            "finished": schedule.finished_at is not None,
            "paused": not schedule.enabled,
            "held": schedule.held_at is not None,
            "failing": schedule.failing_since is not None,
        }
        return next((state for state, is_so in states.items() if is_so), "active")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the schedule, or None if it does not exist."""
        # Django 4.2 passes numbers to the database that its type cannot hold.
        if object_id.isdecimal() and int(object_id[:MAX_TERM]) > BigIntegerField.MAX_BIGINT:
            return None
        return super().get_object(request, object_id, from_field)

    def found(self, queryset: QuerySet, term: str) -> QuerySet:
        """Return the schedules of the owner ``term``, or those whose name begins with it."""
        of_owner = queryset.filter(owner=term)
        if of_owner.exists():
            return of_owner
        try:
            named = _dynbeat().schedules.list(name_prefix=term, limit=MAX_ROWS)
        except DynbeatError:
            # No name has this beginning, such as a control character.
            return queryset.none()
        return queryset.filter(pk__in=[each.id for each in named])

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may pause, resume and run schedules."""
        return bool(request.user.has_perm("dynbeat.change_schedule"))

    @admin.action(description="Pause selected schedules", permissions=["act"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Pause schedules."""
        self._each(request, queryset, "paused", OwnerSchedules.pause)

    @admin.action(description="Resume selected schedules", permissions=["act"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Resume schedules."""
        self._each(request, queryset, "resumed", OwnerSchedules.resume)

    @admin.action(description="Run selected schedules now", permissions=["act"])
    def run_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Run schedules once more, at once."""
        self._each(request, queryset, "requested to run", OwnerSchedules.run_now)

    @admin.action(description="Delete selected schedules", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask, then delete schedules. Their history stays. The name is that in Django's page."""
        if self._rows(request, queryset) is None:
            return None
        return delete_selected(self, request, queryset)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        """Delete schedules with the API, which notifies beat."""
        self._each(request, queryset, None, OwnerSchedules.delete)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        """Delete one schedule with the API."""
        self._each(request, Schedule.objects.filter(pk=obj.pk), None, OwnerSchedules.delete)

    def _rows(self, request: HttpRequest, queryset: QuerySet) -> list[tuple[str, str]] | None:
        """Return owner and name of each selected schedule; None after an error for too many."""
        rows = list(queryset.values_list("owner", "name")[: MAX_SELECTED + 1])
        if len(rows) <= MAX_SELECTED:
            return rows
        text = f"An action changes at most {MAX_SELECTED} schedules: select fewer."
        self.message_user(request, text, messages.ERROR)
        return None

    def _each(
        self,
        request: HttpRequest,
        queryset: QuerySet,
        done: str | None,
        call: Callable[..., object],
    ) -> None:
        """Call the API for each schedule, and show the number and the errors.

        Inside ``atomic()``, as with ATOMIC_REQUESTS, the calls join Django's transaction.
        """
        rows = self._rows(request, queryset)
        if rows is None:
            return
        with Dynbeat.acting(actor=str(request.user.get_username())[:MAX_TERM]):
            errors = list(self._errors(rows, call))
        if done is not None:
            self.message_user(request, f"{len(rows) - len(errors)} schedules are {done}.")
        for error in errors[:_SHOWN]:
            self.message_user(request, error, messages.ERROR)

    @staticmethod
    def _errors(rows: Iterable[tuple[str, str]], call: Callable[..., object]) -> Iterable[str]:
        using = router.db_for_write(Schedule)
        for owner, name in rows:
            try:
                schedules = _dynbeat().schedules.for_owner(owner, session=current_session(using))
                call(schedules, name)
            except DynbeatError as error:
                yield str(error)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """The history, the newest first."""

    list_display = ("id", "owner", "name", "status", "fire_at", "attempt", "worker")
    search_fields = ("owner",)
    search_help_text = "An owner, or the id of a run"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False, because beat prunes the history."""
        del request, obj
        return False

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the run, or None if it does not exist."""
        run_id = _run_id(object_id)
        return None if run_id is None else super().get_object(request, run_id, from_field)

    def found(self, queryset: QuerySet, term: str) -> QuerySet:
        """Return the run with the id ``term``, or the runs of that owner, the newest first."""
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
