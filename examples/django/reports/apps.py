"""The app with reports."""

from django.apps import AppConfig

from celery_dynbeat.django import delete_schedules_with


class ReportsConfig(AppConfig):
    """A schedule is deleted with its report, and everything of a user with the user."""

    name = "reports"

    def ready(self) -> None:
        """Connect both to the deletes of Django."""
        delete_schedules_with(
            self.get_model("Report"),
            owner=lambda report: report.owner,
            name=lambda report: report.schedule_name,
        )
        user_model = self.apps.get_model("auth", "User")
        delete_schedules_with(user_model, owner=lambda user: f"user:{user.pk}")
