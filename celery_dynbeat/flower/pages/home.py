"""The address of the pages without the name of a page, which leads to the schedules."""

from celery_dynbeat.flower.base.handler import DynbeatHandler


class HomePage(DynbeatHandler):
    """``/dynbeat`` and ``/dynbeat/``."""

    def get(self) -> None:
        """Redirect to the schedules."""
        self.redirect(self.link("dynbeat_schedules"))
