"""The tables as models that Django only reads. Alembic creates and migrates them.

The columns with arguments, options and secrets are left out. The API changes schedules: it
validates, records and notifies.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from celery_dynbeat.api.results import RunInfo, ScheduleInfo


class InstantField(models.DateTimeField):
    """An instant, which the tables store in UTC on each database.

    Without time zones in the database, Django takes a stored time for one in its own zone, or in
    the TIME_ZONE of the alias.
    """

    def from_db_value(self, value: datetime | None, _expression: Any, connection: Any) -> Any:
        """Return the instant: aware, or with ``USE_TZ = False`` naive in Django's zone."""
        if value is None or connection.features.supports_timezones:
            return value
        instant = value.replace(tzinfo=UTC)
        if settings.USE_TZ:
            return instant
        return timezone.make_naive(instant, timezone.get_default_timezone())


class Schedule(models.Model):
    """A schedule of an owner."""

    id = models.BigIntegerField(primary_key=True)
    owner = models.CharField(_("Owner"), max_length=255)
    name = models.CharField(_("Name"), max_length=255)
    task = models.CharField(_("Task"), max_length=255)
    trigger_kind = models.CharField(max_length=32)
    trigger_spec = models.TextField()
    timezone = models.CharField(_("Time zone"), max_length=64, null=True)  # noqa: DJ001 - the column of the table
    enabled = models.BooleanField(_("Enabled"))
    paused_reason = models.TextField(_("Paused because"), null=True)  # noqa: DJ001
    paused_until = InstantField(_("Paused until"), null=True)
    next_run_at = InstantField(_("Next run"), null=True)
    last_run_at = InstantField(_("Last run"), null=True)
    finished_at = InstantField(_("Finished"), null=True)
    held_at = InstantField(_("Held since"), null=True)
    failing_since = InstantField(_("Failing since"), null=True)
    run_count = models.BigIntegerField(_("Number of runs"))
    error = models.TextField(_("Error"), null=True)  # noqa: DJ001
    description = models.TextField(_("Description"))
    created_at = InstantField(_("Created"))
    updated_at = InstantField(_("Changed"))

    class Meta:
        """The order is the order of an index, so that a page reads only its rows."""

        managed = False
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        db_table = "dynbeat_schedule"
        ordering: ClassVar = ["owner", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "name"], name="uq_dynbeat_schedule_owner_name")
        ]

    #: The first state that applies, as the API defines it.
    state = ScheduleInfo.state

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else str(self.name)

    @property
    def is_held(self) -> bool:
        """Whether a hold stops the schedule, which has become due."""
        return self.held_at is not None


class Run(models.Model):
    """A run of a schedule."""

    id = models.CharField(primary_key=True, max_length=36)
    schedule_id = models.BigIntegerField(null=True)
    owner = models.CharField(_("Owner"), max_length=255)
    name = models.CharField(_("Name"), max_length=255)
    task = models.CharField(_("Task"), max_length=255)
    fire_at = InstantField(_("Fire time"))
    status = models.CharField(_("Status"), max_length=16)
    origin = models.CharField(_("Origin"), max_length=16)
    attempt = models.IntegerField(_("Attempt"))
    sent_at = InstantField(_("Sent"), null=True)
    started_at = InstantField(_("Started"), null=True)
    finished_at = InstantField(_("Finished"), null=True)
    worker = models.CharField(_("Worker"), max_length=255, null=True)  # noqa: DJ001
    error = models.TextField(_("Error"), null=True)  # noqa: DJ001
    note = models.TextField(_("Note"), null=True)  # noqa: DJ001
    created_at = InstantField(_("Created"))
    ready_at = InstantField(null=True)

    #: As the API defines them.
    due_at, lag, duration = RunInfo.due_at, RunInfo.lag, RunInfo.duration

    class Meta:
        """The newest first: the ids grow with time."""

        managed = False
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        db_table = "dynbeat_run"
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return str(self.id)
