"""The form of a schedule in the admin of a Django project, in a separate process.

    python -m tests.support.django_admin_form URL

Writes what users of the form saw, as JSON.
"""

import json
import sys
import types
from typing import Any

from django.core.management import call_command
from django.test.utils import setup_test_environment
from django.utils.translation import override

from celery_dynbeat import Dynbeat
from celery_dynbeat.django import delete_schedules_with
from celery_dynbeat.django.fields import TriggerTextField
from celery_dynbeat.testing import ManualBeat
from tests.support.django_admin import client_of, error_of, make_dynbeat, settings
from tests.support.django_project import configure, run_project

URL, RUNS = "/admin/dynbeat/schedule/", "/admin/dynbeat/run/"
#: Each field of the table -> a text that the form shows again as it was typed, and a wrong one.
TEXTS = {
    "task": ("mail.send", "a\tb"),
    "args": ('[1, "a"]', "{}"),
    "kwargs": ('{"a": {"b": [1]}}', "[1]"),
    "queue": ("mail", "x" * 256),
    "priority": ("7", "256"),
    "options": ('{"countdown": 3}', '{"eta": 1}'),
    "start_at": ("2030-01-01T09:00:00+09:00", "soon"),
    "end_at": ("2031-01-01T09:00:00+09:00", "2029-01-01T09:00:00"),
    "max_runs": ("5", "0"),
    "catch_up": ("all", "some"),
    "catch_up_window": ("1d", "1y"),
    "overlap": ("skip", "maybe"),
    "max_run_time": ("2h", "0"),
    "window": ("50%", "200%"),
    "expires_after": ("5m", "-1"),
    "finish_within": ("1h", "long"),
    "on_lost": ("rerun", "forget"),
    "pause_after_failures": ("3", "three"),
    "retry": ("max_retries=3, backoff=5m, factor=2", "often"),
    "description": ("Two\nlines", "x" * 1025),
    "tags": ("a\nb", "x" * 65),
    "rule": ("0 9 * * mon-fri", "61 * * * *"),
}


def seen_in_form(url: str) -> dict[str, Any]:
    """Return what users of the form saw, with the tables at ``url``."""
    return run_project("tests.support.django_admin_form", url)


class Form:
    """The form as a user of the admin sends it."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def opened(self, key: int) -> dict[str, Any]:
        """Return the values of the form of a schedule."""
        form = self.client.get(f"{URL}{key}/change/").context["adminform"].form
        values = {name: form.get_initial_for_field(form.fields[name], name) for name in form.fields}
        return {name: value for name, value in values.items() if value is not None}

    def errors(self, path: str, values: dict[str, Any]) -> Any:
        """Send the form and return the errors by field, or None if it was saved."""
        answer = self.client.post(f"{URL}{path}", values)
        return None if answer.status_code == 302 else answer.context["adminform"].form.errors

    def act(self, url: str, action: str, *keys: Any, **more: str) -> list[str]:
        """Do an action with selected rows, and return the messages."""
        # Show the messages of earlier requests.
        self.client.get(url)
        data = {"action": action, "_selected_action": keys, **more}
        answer = self.client.post(url, data, follow=True)
        return [str(each) for each in answer.context["messages"]] if answer.context else []


def seen(dynbeat: Dynbeat) -> dict[str, Any]:
    """Use the form, and return what its users saw."""
    root = Form(client_of("root", is_superuser=True))
    mine = dynbeat.schedules.for_owner("user:1")
    new = {"owner": "user:1", "name": "digest", "reason": "because"}
    typed = {name: good for name, (good, _bad) in TEXTS.items()}
    found: dict[str, Any] = {"created": root.errors("add/", {**new, **typed})}
    info = mine.get("digest")
    opened, change = root.opened(info.id), f"{info.id}/change/"
    found["shown"] = {name: opened[name] for name in TEXTS}
    found["audit"] = [mine.changes()[0].actor, mine.changes()[0].reason]
    found["unchanged"] = [root.errors(change, opened), mine.get("digest").version]
    found["wrong"] = {
        name: list(root.errors(change, {**opened, name: bad}))
        for name, (_good, bad) in TEXTS.items()
    }
    found["after errors"] = mine.get("digest").version
    preview = root.client.post(f"{URL}{info.id}/preview/", {**opened, "rule": "30 9 * * *"}).json()
    found["preview"] = [preview["description"], len(preview["fire_times"])]
    found["again"] = root.errors("add/", {**new, **typed})
    # A page of a project may show fewer fields.
    some = {name: opened[name] for name in ("owner", "name", "task", "rule", "version")}
    partial = {**some, "description": opened["description"]}
    found["partial"] = [root.errors(change, partial), mine.get("digest").version]
    found["no version"] = list(root.errors(change, {**opened, "version": ""}))
    # The owner in a request has no effect on a stored schedule.
    edited = {**opened, "description": "new", "owner": "user:2", "name": "renamed"}
    found["edited"] = root.errors(change, edited)
    found["names"] = [each.name for each in mine.list()]
    # "digest" has been renamed since the form was opened.
    late = {**opened, "description": "late"}
    answer = root.client.post(f"{URL}{change}", late).context["adminform"].form
    found["stale"] = answer.errors["__all__"]
    shown = {name: answer[name].value() for name in ("version", "description")}
    found["taken over"] = [root.errors(change, {**late, **shown}), mine.get("digest").description]
    mine.update("digest", description="new")
    mine.rename("digest", "renamed")
    copied = {**root.opened(info.id), "name": "copy", "_saveasnew": "1"}
    found["copied"] = [root.errors(change, copied), mine.get("copy").options, mine.count().count]
    found["actions"] = [
        *root.act(URL, "pause", info.id, reason="quiet", until="2h"),
        *root.act(URL, "resume", info.id, mine.get("copy").id),
        *root.act(URL, "run_now", info.id),
    ]
    with override("de"):
        found["german"] = [
            *root.errors("add/", {**new, **typed, "options": '{"foo": 1}'})["options"],
            *root.act(URL, "pause", info.id, mine.get("copy").id),
            *root.act(URL, "resume", info.id, mine.get("copy").id),
        ]
    found["paused"] = [each.reason for each in mine.changes("renamed", action="pause")][-1:]
    ManualBeat(dynbeat, run_tasks=True).run_until_idle()
    (run,) = mine.runs()
    found["runs"] = [*root.act(RUNS, "rerun", run.id), *root.act(RUNS, "cancel", run.id)]
    history = root.client.get(f"{URL}{info.id}/history/").content.decode()
    found["history"] = [f"{RUNS}{run.id}/change/" in history, "new" in history]
    found["filters"] = [
        root.client.get(f"{URL}?{query}").context["cl"].result_count
        for query in (
            "state=active",
            "state=paused",
            "owner_prefix=user:",
            "task=mail.send",
            "tag=a",
        )
    ]
    field = TriggerTextField()
    cleaned = ("5m", "2030-01-01T09:00")
    found["field"] = [
        type(field.formfield()).__name__,
        *(field.clean(each, None) for each in cleaned),
    ]
    found["field"].append(error_of(lambda: field.clean("soon", None)))
    found["unknown task"] = _warned_of_task(root, new | typed, dynbeat)
    found["deleted"] = _deleted_by(root, dynbeat)
    found["tenant"] = _seen_by_tenant(dynbeat, new | typed)
    return found


def _warned_of_task(root: Form, values: dict[str, Any], dynbeat: Dynbeat) -> list[list[str]]:
    """Return the messages for an unknown task, for another one, and without tasks."""
    values = {**values, "owner": "user:3", "name": "task", "args": "", "kwargs": ""}

    def messages(task: str) -> list[str]:
        answer = root.client.post(f"{URL}add/", {**values, "task": task}, follow=True)
        dynbeat.schedules.for_owner("user:3").delete("task")
        shown = [each for each in answer.context["messages"] if each.level_tag == "warning"]
        return [str(each) for each in shown]

    found = [messages("mail.sent"), messages("ok"), messages("celery.backend_cleanup")]
    own = {name: task for name, task in dynbeat.app.tasks.items() if not name.startswith("celery.")}
    for name in own:
        del dynbeat.app.tasks[name]
    found.append(messages("mail.sent"))
    dynbeat.app.tasks.update(own)
    return found


def _deleted_by(root: Form, dynbeat: Dynbeat) -> list[str]:
    """Return the actors of the deletes of a schedule, whose user an admin deletes."""
    from django.contrib.auth.models import User

    delete_schedules_with(User, owner=lambda user: f"user:{user.username}")
    user = User.objects.create_user("gone")
    mine = dynbeat.schedules.for_owner("user:gone")
    mine.create("a", task="ok", trigger="PT1H")
    root.client.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"})
    return [each.actor for each in mine.changes() if each.action == "delete"]


def _seen_by_tenant(dynbeat: Dynbeat, values: dict[str, Any]) -> list[Any]:
    """Return what a user of an admin with the owners "user:2" saw."""
    from django.contrib import admin

    from celery_dynbeat.django.models import Schedule

    other = dynbeat.schedules.for_owner("user:1").get("copy")
    registered: Any = admin.site._registry[Schedule]
    registered.get_owners = lambda _request: ["user:2"]
    tenant = Form(client_of("tenant", "view_schedule", "add_schedule", "change_schedule"))
    stolen = tenant.errors("add/", {**values, "name": "a"})
    made = tenant.errors("add/", {**values, "name": "b", "owner": "user:2"})
    names = [each.name for each in tenant.client.get(URL).context["cl"].result_list]
    paths = (f"{other.id}/change/", f"{other.id}/history/")
    status = [tenant.client.get(f"{URL}{path}").status_code for path in paths]
    tenant.act(URL, "pause", other.id)
    paused = not dynbeat.schedules.for_owner("user:1").get("copy").enabled
    return [list(stolen), made, names, status, paused]


def send(*args: Any, **kwargs: Any) -> None:
    """Succeed."""
    del args, kwargs


def main() -> None:
    """Read the command line."""
    urls: Any = types.ModuleType("admin_urls")
    sys.modules["admin_urls"] = urls
    dynbeat = make_dynbeat()
    dynbeat.app.task(name="mail.send")(send)
    configure(sys.argv[1], use_tz=True, **settings())
    from django.contrib import admin
    from django.urls import path

    urls.urlpatterns = [path("admin/", admin.site.urls)]
    setup_test_environment()
    call_command("migrate", verbosity=0)
    dynbeat.schedules.for_owner("user:1").set_timezone("Asia/Seoul")
    json.dump(seen(dynbeat), sys.stdout)


if __name__ == "__main__":
    main()
