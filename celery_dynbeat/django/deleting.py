"""Delete schedules with the rows that they belong to."""

from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.db.models.signals import post_delete

from celery_dynbeat.common.errors import ConfigurationError, NotFoundError
from celery_dynbeat.db import alias_of
from celery_dynbeat.django.application import required_dynbeat
from celery_dynbeat.django.sessions import current_session


def delete_schedules_with(
    model: type,
    *,
    owner: Callable[[Any], str],
    name: Callable[[Any], str] | None = None,
) -> None:
    """Delete schedules in the transaction that deletes a row of ``model``.

    ``owner`` returns the owner of a row. With ``name``, only the schedule of this name is deleted,
    if it exists; without it, everything of the owner, as ``delete_owner`` does. Call it in
    ``AppConfig.ready``, once for each schedule of a row. Django calls ``owner`` and ``name`` for
    each row of a query and of a cascade. A delete raises ConfigurationError for a row in another
    database than that of the schedules, and for the owner "" without ``name``.
    """

    def delete(instance: Any, using: str, **_: Any) -> None:
        dynbeat = required_dynbeat()
        context = dynbeat.context
        alias = alias_of(context.settings.database_url)
        # With another URL, only the project knows whether calls join this transaction.
        is_joined = alias == using or (alias is None and context.current_session is not None)
        if not is_joined:
            where = context.database.shown_url if alias is None else repr(alias)
            raise ConfigurationError(
                f"a {model.__name__} is deleted in {using!r}, and its schedules are in {where}:"
                " one transaction cannot delete both, so delete the schedules in your own code, or"
                f" set dynbeat_database_url = 'django://{using}'"
            )
        schedules = dynbeat.schedules.bound(session=current_session(using) if alias else None)
        of_row = owner(instance)
        if name is None:
            if not of_row:
                raise ConfigurationError(
                    f"delete_schedules_with({model.__name__}): owner = '' is the application, whose"
                    " schedules belong to no row: return another owner, or pass name="
                )
            schedules.delete_owner(of_row)
            return
        try:
            schedules.for_owner(of_row).delete(name(instance))
        except NotFoundError:
            # The user may have deleted the schedule alone.
            return

    # Django sends the delete of a proxy to the receivers of the proxy only.
    proxies = [each for each in apps.get_models() if each._meta.proxy and issubclass(each, model)]  # noqa: SLF001
    for sender in {model, *proxies}:
        post_delete.connect(delete, sender=sender, weak=False)
