"""What a worker executes."""

from celery import shared_task

from reports.models import Report


@shared_task
def send_report(report_id: int) -> str:
    """Pretend to write a report and to send it."""
    report = Report.objects.select_related("user").get(pk=report_id)
    return f"{report.title} for {report.user}"
