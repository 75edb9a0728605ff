"""``manage.py create_demo_users``."""

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand

USERS = {"alice": "wonderland", "bob": "builder", "root": "heron"}


class Command(BaseCommand):
    """Create the users of this example."""

    help = "Create the users alice and bob, and root for the admin."

    def handle(self, *_: Any, **__: Any) -> None:
        """Create those that do not exist."""
        for name, password in USERS.items():
            if not User.objects.filter(username=name).exists():
                is_root = name == "root"
                rights = {"is_staff": is_root, "is_superuser": is_root}
                User.objects.create_user(name, password=password, **rights)
