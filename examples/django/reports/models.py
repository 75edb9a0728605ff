"""The project's own rows. Each has a schedule with the same owner."""

from typing import ClassVar

from django.conf import settings
from django.db import models


class Report(models.Model):
    """A report that a user wants to receive. Its schedule has the name ``report-<id>``."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    title = models.CharField(max_length=80)

    class Meta:
        """Reports are in the order of their titles."""

        ordering: ClassVar = ["title"]

    def __str__(self) -> str:
        return self.title

    @property
    def owner(self) -> str:
        """The owner of its schedule."""
        return f"user:{self.user_id}"

    @property
    def schedule_name(self) -> str:
        """The name of its schedule."""
        return f"report-{self.pk}"
