"""The admin of a Django project, in a separate process.

    python -m tests.support.django_admin URL USE_TZ SETTINGS

Writes what users of the admin saw, as JSON.
"""

import json
import sys
import types
from functools import partial
from typing import Any
from uuid import UUID

from celery import Celery
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext, setup_test_environment
from sqlalchemy import insert, select

from celery_dynbeat import Dynbeat, Every
from celery_dynbeat.db.models import Run
from celery_dynbeat.django import current_session
from celery_dynbeat.testing import ManualBeat
from tests.support.django_project import configure, run_project

SCHEDULES = 3_000
TIED = 3_000
EVIL = "<script>alert(1)</script>"
APPS = ("auth", "contenttypes", "sessions", "messages", "admin")


def seen_in_admin(url: str, *, use_tz: bool = True, **settings: Any) -> dict[str, Any]:
    """Return what users of the admin saw, with the tables at ``url`` and the ``settings``."""
    arguments = [url, json.dumps(use_tz), json.dumps(settings)]
    return run_project("tests.support.django_admin", *arguments)


def settings() -> dict[str, Any]:
    """Return the settings of a project with the admin."""
    context = "django.template.context_processors.request"
    messages = "django.contrib.messages"
    processors = [context, "django.contrib.auth.context_processors.auth"]
    return {
        "INSTALLED_APPS": [*(f"django.contrib.{app}" for app in APPS), "celery_dynbeat.django"],
        "ROOT_URLCONF": "admin_urls",
        "SECRET_KEY": "of a test",
        "ALLOWED_HOSTS": ["testserver"],
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            f"{messages}.middleware.MessageMiddleware",
            "celery_dynbeat.django.middleware.acting_user",
        ],
        "TEMPLATES": [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [*processors, f"{messages}.context_processors.messages"]
                },
            }
        ],
    }


def ok(*args: Any) -> None:
    """Succeed."""
    del args


def make_dynbeat(**settings: Any) -> Dynbeat:
    """Return the Dynbeat of the project's application."""
    app = Celery("project", broker="memory://")
    app.conf.update(dynbeat_database_url="django://default", dynbeat_notifier="polling", **settings)
    app.task(name="ok")(ok)
    return Dynbeat(app, current_session=current_session)


def make_schedules(dynbeat: Dynbeat) -> None:
    """Create schedules of several owners, and a run."""
    dynbeat.schedules.create_many(
        {"owner": f"user:{n % 7}", "name": f"n{n:05}", "task": "ok", "trigger": Every(3600)}
        for n in range(SCHEDULES)
    )
    evil = dynbeat.schedules.for_owner(EVIL)
    evil.create(EVIL, task="ok", trigger=Every(3600), args=["secret"])
    evil.run_now(EVIL)
    ManualBeat(dynbeat, run_tasks=True).run_until_idle()


def add_tied_runs(dynbeat: Dynbeat) -> None:
    """Store runs of the owner "tied" for one instant."""
    with dynbeat.context.database.engine.begin() as connection:
        run = connection.execute(select(Run.__table__)).mappings().one()
        tied = {**run, "owner": "tied", "schedule_id": None}
        rows = [{**tied, "id": str(UUID(int=n))} for n in range(1, TIED + 1)]
        connection.execute(insert(Run), rows)


def client_of(name: str, *permissions: str, is_superuser: bool = False) -> Any:
    """Return the client of a user of the admin."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    user = User.objects.create_user(name, is_staff=True, is_superuser=is_superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(enforce_csrf_checks=False)
    client.force_login(user)
    return client


def seen(dynbeat: Dynbeat) -> dict[str, Any]:
    """Use the admin, and return what its users saw."""
    from celery_dynbeat.django.models import Run as RunModel
    from celery_dynbeat.django.models import Schedule

    root, viewer = client_of("root", is_superuser=True), client_of("viewer", "view_schedule")
    url, runs = "/admin/dynbeat/schedule/", "/admin/dynbeat/run/"
    found: dict[str, Any] = {}
    with CaptureQueriesContext(
        connection,
    ) as captured:
        pages = [root.get(f"{url}{query}") for query in ("", "?p=3", "?q=user:3", "?q=n0001")]
        pages += [root.get(f"{runs}{query}") for query in ("", "?q=user:3")]
    # Order by the column of the task, which has no index, and by the trigger, which has no field.
    sorted_by = [f"{url}?p=20&o={order}" for order in ("3", "-3.4", "x")]
    found["rows read"] = max(
        _rows_read(partial(root.get, each)) for each in (f"{url}?p=20", *sorted_by)
    )
    found["statuses"] = [page.status_code for page in pages]
    found["queries"] = [query["sql"] for query in captured if "dynbeat_" in query["sql"]]
    found["found"] = [page.context["cl"].result_count for page in pages[2:4]]
    evil = Schedule.objects.get(owner=EVIL)
    (run,) = RunModel.objects.filter(owner=EVIL)
    details = [viewer.get(f"{url}{evil.pk}/{page}/") for page in ("change", "history")]
    details.append(root.get(f"{runs}{run.pk}/change/"))
    text = "".join(page.content.decode() for page in (pages[0], pages[4], *details))
    found["shown"] = [EVIL in text, "&lt;script&gt;" in text, "secret" in text]
    add_tied_runs(dynbeat)
    found["tied"] = ids_on_pages(root, f"{runs}?q=tied")
    found["hostile"] = [
        root.get(f"{url}{query}").status_code
        for query in (
            "?q=%00",
            "?q=a%07b",
            "?error__contains=x",
            f"?q={'x' * 300}",
            f"{10**30}/change/",
        )
    ] + [root.get(f"{runs}{path}").status_code for path in ("no-uuid/change/", "?task=ok")]
    keys = [each.pk for each in Schedule.objects.filter(owner="user:1")[:3]]

    def act(client: Any, action: str, *selected: int, **more: str) -> int:
        data = {"action": action, "_selected_action": selected, **more}
        status: int = client.post(url, data).status_code
        return status

    act(viewer, "pause", *keys)
    found["viewer paused"] = Schedule.objects.filter(pk__in=keys, enabled=False).count()
    act(root, "pause", *keys)
    found["root paused"] = Schedule.objects.filter(pk__in=keys, enabled=False).count()
    paused = dynbeat.schedules.for_owner("user:1")
    change = paused.changes(Schedule.objects.get(pk=keys[0]).name)[0]
    found["audit"] = [change.actor, change.action]
    everything = {"action": "delete_selected", "_selected_action": keys, "select_across": "1"}
    found["asked"] = [root.post(f"{url}?q={q}", everything).status_code for q in ("n00", "n000")]
    found["saved"] = [
        error_of(each) for each in (evil.save, evil.delete, run.save, lambda: loaded(evil))
    ]
    found["left"] = []
    for delete in (
        # The first page asks.
        lambda: act(root, "delete_selected", keys[0]),
        lambda: act(root, "delete_selected", keys[0], post="yes"),
        lambda: root.post(f"{url}{keys[1]}/delete/", {"post": "yes"}).status_code,
        lambda: viewer.post(f"{url}{keys[2]}/delete/", {"post": "yes"}).status_code,
    ):
        found["left"].append([delete(), Schedule.objects.filter(pk__in=keys).count()])
    found["instants"] = _instants(dynbeat)
    found["anonymous"] = type(root)().get(url).status_code
    found["forged"] = _forged(url, keys[2])
    return found


def loaded(row: Any) -> None:
    """Dump a row as ``dumpdata`` does, and load it as ``loaddata`` does."""
    from django.core import serializers

    for each in serializers.deserialize("json", serializers.serialize("json", [row])):
        each.save()


def error_of(work: Any) -> str | None:
    """Return the name of the error that ``work`` raises."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the caller compares it
        return type(error).__name__
    return None


def ids_on_pages(client: Any, url: str) -> int:
    """Return the number of different rows on the pages of the list at ``url``."""
    pages = [client.get(f"{url}&p={p}").context["cl"] for p in range(1, 21)]
    return len({row.pk for page in pages for row in page.result_list})


def _instants(dynbeat: Dynbeat) -> bool:
    """Return whether the models have the instants of the API."""
    from django.utils import timezone

    from celery_dynbeat.django.models import Schedule

    (info,) = dynbeat.schedules.list(limit=1)
    shown = Schedule.objects.get(pk=info.id).next_run_at
    if timezone.is_naive(shown):
        shown = timezone.make_aware(shown)
    return bool(shown == info.next_run_at)


def _rows_read(work: Any) -> int:
    """Return the number of rows that MariaDB read for ``work``; 0 on other databases."""
    if connection.vendor != "mysql":
        work()
        return 0

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())

    before = count()
    work()
    return count() - before


def _forged(url: str, key: int) -> int:
    """Return the status of an action without the token."""
    from django.contrib.auth.models import User
    from django.test import Client

    client: Any = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="root"))
    status: int = client.post(url, {"action": "pause", "_selected_action": [key]}).status_code
    return status


def main() -> None:
    """Read the command line."""
    urls: Any = types.ModuleType("admin_urls")
    sys.modules["admin_urls"] = urls
    of_dynbeat = json.loads(sys.argv[3])
    dynbeat = make_dynbeat(**of_dynbeat)
    configure(sys.argv[1], use_tz=json.loads(sys.argv[2]), **settings())
    if "dynbeat_schema" in of_dynbeat:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA {of_dynbeat['dynbeat_schema']}")
    from django.contrib import admin
    from django.urls import path

    urls.urlpatterns = [path("admin/", admin.site.urls)]
    setup_test_environment()
    call_command("migrate", verbosity=0)
    make_schedules(dynbeat)
    call_command("makemigrations", check=True, verbosity=0)
    json.dump(seen(dynbeat), sys.stdout)


if __name__ == "__main__":
    main()
