"""A Django project with the admin and a form, served under a strict Content-Security-Policy.

    python -m tests.support.django_site URL

Writes its address. /login/NAME logs in the user NAME, and /form shows a TriggerField.
"""

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from django.core.management import call_command

from celery_dynbeat import Dynbeat
from celery_dynbeat.testing import ManualBeat
from tests.support.django_admin import make_dynbeat, settings
from tests.support.django_project import configure
from tests.support.processes import REPOSITORY
from tests.support.servers.processes import OwnedProcess
from tests.support.waiting import wait_until

POLICY = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A form</title>{media}
</head><body><main><h1>A form</h1><form method="post">{form}<button>Save</button></form>
<output>{saved}</output></main></body></html>"""


class Server(ThreadingMixIn, WSGIServer):
    """A server with a thread for each request."""

    daemon_threads = True


def send(*args: Any, **kwargs: Any) -> None:
    """Fail if the arguments say so."""
    del kwargs
    if "fail" in args:
        raise ValueError("no connection to the mail server")


def strict(get_response: Any) -> Any:
    """Answer with the policy. A middleware."""

    def middleware(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


def make_rows(dynbeat: Dynbeat) -> None:
    """Create schedules in several states, with runs."""
    mine = dynbeat.schedules.for_owner("user:1")
    dynbeat.schedules.for_owner("user:1").set_timezone("Europe/Berlin")
    call: dict[str, Any] = {"task": "mail.send", "enabled": True}
    mine.create("digest", trigger="0 9 * * mon-fri", kwargs={"user": 42}, tags=["mail"], **call)
    mine.create("complex", trigger="0 9 L * * except 2030-12-31", **call)
    mine.create("failing", trigger="PT1H", args=["fail"], **call)
    mine.create("paused", trigger="30 7 * * sat,sun", **call)
    at = datetime.now(UTC) + timedelta(days=30)
    mine.create("once", trigger=at.replace(second=0, microsecond=0), **call)
    for _ in range(4):
        for name in ("digest", "failing"):
            mine.run_now(name)
        ManualBeat(dynbeat, run_tasks=True).run_until_idle()
    mine.pause("paused", reason="on holiday", until=timedelta(days=2))


def views() -> list[Any]:
    """Return the pages of the project."""
    from django import forms
    from django.contrib import admin
    from django.contrib.auth import login
    from django.contrib.auth.models import User
    from django.http import HttpResponse, HttpResponseRedirect
    from django.urls import path

    from celery_dynbeat.django.forms import TriggerField

    form_class: Any = type("ReminderForm", (forms.Form,), {"rule": TriggerField()})

    def show_form(request: Any) -> Any:
        form = form_class(request.POST or None, initial={"rule": request.GET.get("rule", "")})
        saved = form.cleaned_data["rule"] if form.is_bound and form.is_valid() else ""
        return HttpResponse(PAGE.format(media=form.media, form=form.as_div(), saved=saved))

    def log_in(request: Any, name: str) -> Any:
        login(request, User.objects.get(username=name))
        return HttpResponseRedirect("/admin/")

    return [
        path("admin/", admin.site.urls),
        path("login/<name>", log_in),
        path("form", show_form),
        path("favicon.ico", lambda _request: HttpResponse(status=204)),
    ]


def main() -> None:
    """Serve until the process is terminated."""
    urls: Any = types.ModuleType("admin_urls")
    sys.modules["admin_urls"] = urls
    dynbeat = make_dynbeat()
    dynbeat.app.task(name="mail.send")(send)
    project = settings()
    project["INSTALLED_APPS"].append("django.contrib.staticfiles")
    # Forms of the tests send no token.
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    middleware = [each for each in project["MIDDLEWARE"] if each != csrf]
    middleware.insert(1, "django.middleware.locale.LocaleMiddleware")
    project["MIDDLEWARE"] = ["tests.support.django_site.strict", *middleware]
    project["ALLOWED_HOSTS"] = ["127.0.0.1"]
    configure(sys.argv[1], use_tz=True, STATIC_URL="/static/", DEBUG=True, **project)
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    urls.urlpatterns = views()
    call_command("migrate", verbosity=0)
    User.objects.create_superuser("root", password="heron")
    make_rows(dynbeat)
    application = StaticFilesHandler(get_wsgi_application())
    with make_server("127.0.0.1", 0, application, server_class=Server) as server:
        print(f"serving http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
        server.serve_forever()


@contextmanager
def django_site(folder: Path, url: str) -> Iterator[str]:
    """Yield the address of the project with its tables at ``url``."""
    command = [sys.executable, "-m", "tests.support.django_site", url]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    log = folder / "log"
    process = OwnedProcess(command, folder=folder, log=log, environment=environment)
    try:
        found = wait_until(
            lambda: re.search(r"serving (\S+)\n", log.read_text()) or process.exit_status, within=30
        )
        assert isinstance(found, re.Match), log.read_text()
        yield found[1]
    finally:
        process.terminate(within=10)


if __name__ == "__main__":
    main()
