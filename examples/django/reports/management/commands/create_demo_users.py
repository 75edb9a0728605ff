"""``manage.py create_demo_users``."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand

USERS = {"alice": "wonderland", "bob": "builder"}


class Command(BaseCommand):
    """Create the users of this example."""

    help = "Create the users alice and bob."

    def handle(self, *_: Any, **__: Any) -> None:
        """Create those that do not exist."""
        for name, password in USERS.items():
            if not User.objects.filter(username=name).exists():
                User.objects.create_user(name, password=password)
