"""Which tasks an owner may run: the setting dynbeat_allowed_tasks, for the API and for beat."""

from fnmatch import fnmatchcase

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.settings import Settings


def check(settings: Settings, *, owner: str, task: str) -> None:
    """Raise InvalidScheduleError when no pattern of the setting names ``task``.

    Upper and lower case differ. The application itself (owner ``""``) may run any task.
    """
    allowed = settings.allowed_tasks
    if allowed is None or not owner or any(fnmatchcase(task, pattern) for pattern in allowed):
        return
    msg = (
        f"task = {task!r}: dynbeat_allowed_tasks = {list(allowed)} does not let owner {owner!r} run"
        " it; choose a task that one of the patterns names, or add one to the setting"
    )
    raise InvalidScheduleError(msg, field="task")
