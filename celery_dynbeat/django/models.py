"""The tables as models that Django only reads. Alembic creates and migrates them.

The columns with arguments, options and secrets are left out: the admin does not show them. Change
schedules with the API, which validates, records and notifies.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone


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
    owner = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    task = models.CharField(max_length=255)
    trigger_kind = models.CharField(max_length=32)
    trigger_spec = models.TextField()
    timezone = models.CharField(max_length=64, null=True)  # noqa: DJ001 - the column of the table
    enabled = models.BooleanField()
    paused_reason = models.TextField(null=True)  # noqa: DJ001
    paused_until = InstantField(null=True)
    next_run_at = InstantField(null=True)
    last_run_at = InstantField(null=True)
    finished_at = InstantField(null=True)
    held_at = InstantField(null=True)
    failing_since = InstantField(null=True)
    run_count = models.BigIntegerField()
    error = models.TextField(null=True)  # noqa: DJ001
    description = models.TextField()
    created_at = InstantField()
    updated_at = InstantField()

    class Meta:
        """The order is the order of an index, so that a page reads only its rows."""

        managed = False
        db_table = "dynbeat_schedule"
        ordering: ClassVar = ["owner", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "name"], name="uq_dynbeat_schedule_owner_name")
        ]

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" if self.owner else str(self.name)


class Run(models.Model):
    """A run of a schedule."""

    id = models.CharField(primary_key=True, max_length=36)
    schedule_id = models.BigIntegerField(null=True)
    owner = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    task = models.CharField(max_length=255)
    fire_at = InstantField()
    status = models.CharField(max_length=16)
    origin = models.CharField(max_length=16)
    attempt = models.IntegerField()
    sent_at = InstantField(null=True)
    started_at = InstantField(null=True)
    finished_at = InstantField(null=True)
    worker = models.CharField(max_length=255, null=True)  # noqa: DJ001
    error = models.TextField(null=True)  # noqa: DJ001

    class Meta:
        """The newest first: the ids grow with time."""

        managed = False
        db_table = "dynbeat_run"
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return str(self.id)
