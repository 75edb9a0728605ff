"""The check of the setting dynbeat_allowed_tasks, for the API and for beat."""

from fnmatch import fnmatchcase

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import Settings


def check(settings: Settings, *, owner: str, task: str) -> None:
    """Raise InvalidScheduleError if no pattern of the setting matches ``task``.

    Patterns are case-sensitive. The application itself (owner ``""``) may run any task.
    """
    allowed = settings.allowed_tasks
    if allowed is None or not owner or any(fnmatchcase(task, pattern) for pattern in allowed):
        return
    msg = (
        f"task = {task!r}: dynbeat_allowed_tasks = {list(allowed)} does not let owner {owner!r} run"
        " it; choose a task that a pattern matches, or add a pattern to the setting"
    )
    raise InvalidScheduleError(msg, field="task")
