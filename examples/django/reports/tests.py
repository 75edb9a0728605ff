"""``python manage.py test``: the schedules are also in Django's test database."""

from http import HTTPStatus

from django.contrib.auth.models import User
from django.test import TestCase
from django.urls import reverse
from project.celery import dynbeat

from reports.models import Report


class ReportTests(TestCase):
    """Each test rolls back its reports and their schedules."""

    def setUp(self) -> None:
        """Log in a user."""
        self.user = User.objects.create_user("carol")
        self.client.force_login(self.user)
        self.mine = dynbeat.schedules.for_owner(f"user:{self.user.pk}")

    def test_a_report_has_a_schedule(self) -> None:
        """The page creates both."""
        self.client.post(reverse("reports"), {"title": "Sales", "rule": "0 9 * * mon-fri"})

        (schedule,) = self.mine.list()
        assert schedule.name == Report.objects.get().schedule_name
        assert schedule.trigger is not None
        assert schedule.trigger.describe() == "At 09:00, Monday to Friday, UTC"

    def test_a_schedule_is_deleted_with_its_report_and_its_user(self) -> None:
        """Also in a cascade."""
        for title in ("Sales", "Stock"):
            self.client.post(reverse("reports"), {"title": title, "rule": "PT1H"})
        Report.objects.get(title="Sales").delete()

        assert [each.name for each in self.mine.list()] == [Report.objects.get().schedule_name]
        self.user.delete()
        assert list(self.mine.list()) == []

    def test_a_refused_rule_leaves_neither(self) -> None:
        """The page shows the error."""
        page = self.client.post(reverse("reports"), {"title": "Sales", "rule": "61 * * * *"})

        assert page.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert not Report.objects.exists()
        assert list(self.mine.list()) == []
