"""The Dynbeat of a Django project."""

from celery import current_app

# There is no public list of the applications.
from celery._state import _get_active_apps
from django.core.exceptions import ImproperlyConfigured

from celery_dynbeat.api import Dynbeat
from celery_dynbeat.insights import lists


def project_dynbeat() -> Dynbeat | None:
    """Return the Dynbeat of the project's Celery application; None if it is not imported."""
    made = [getattr(app, "dynbeat", None) for app in _get_active_apps()]
    found = [each for each in made if isinstance(each, Dynbeat)]
    # Celery's current application is that of the main thread. Other threads serve requests.
    current = getattr(current_app, "dynbeat", None) if len(found) > 1 else None
    return current if isinstance(current, Dynbeat) else next(iter(found), None)


def required_dynbeat() -> Dynbeat:
    """Return the Dynbeat of the project. Raises ImproperlyConfigured if it is not imported."""
    found = project_dynbeat()
    if found is None:
        raise ImproperlyConfigured(
            "the Dynbeat of the Celery application is missing: import the application in the"
            " __init__.py of the project"
        )
    return found


def import_tasks(dynbeat: Dynbeat) -> bool:
    """Import the tasks as a worker does; return False if one cannot be imported here."""
    try:
        dynbeat.app.loader.import_default_modules()
    # Any error of the modules of the project, such as a package that only workers have.
    except Exception:  # noqa: BLE001
        return False
    return True


def has_task(dynbeat: Dynbeat, name: str) -> bool:
    """Return whether the application or a living worker has the task, or this process cannot know.

    A process without tasks cannot know.
    """
    context = dynbeat.context
    if not import_tasks(dynbeat) or name in context.task_names.known():
        return True
    known = lists.tasks(context, prefix=name, limit=1) or lists.tasks(context, prefix="", limit=1)
    return name in known or not known
