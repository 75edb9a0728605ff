"""The pages. The owner of each schedule is the user of the session, and never a parameter."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from project.celery import dynbeat

from celery_dynbeat import LimitError
from celery_dynbeat.api.owner import OwnerSchedules
from reports.forms import ReportForm
from reports.models import Report


def _owner(request: HttpRequest) -> str:
    return f"user:{request.user.pk}"


def _mine(request: HttpRequest) -> OwnerSchedules:
    return dynbeat.schedules.for_owner(_owner(request))


@login_required
@require_http_methods(["GET", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the reports of the user, and create one."""
    form = ReportForm(request.POST or None, owner=_owner(request))
    if request.method == "POST" and form.is_valid():
        try:
            _create(request, form.cleaned_data)
        except LimitError as error:
            form.add_error(None, f"You have {error.limit} reports already. Delete one first.")
        else:
            return redirect("reports")
    schedules = {each.name: each for each in _mine(request).list()}
    rows = [
        (report, schedules.get(report.schedule_name))
        for report in Report.objects.filter(user=request.user)
    ]
    status = 422 if form.errors else 200
    return render(request, "reports/page.html", {"form": form, "rows": rows}, status=status)


def _create(request: HttpRequest, values: dict[str, Any]) -> None:
    """Create a report and its schedule, both or neither."""
    with transaction.atomic():
        report = Report.objects.create(user=request.user, title=values["title"])
        _mine(request).create(
            report.schedule_name,
            task="reports.tasks.send_report",
            args=[report.pk],
            trigger=values["rule"],
        )


@login_required
@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a report and its schedule."""
    with transaction.atomic():
        report = get_object_or_404(Report, pk=pk, user=request.user)
        _mine(request).delete(report.schedule_name)
        report.delete()
    return redirect("reports")


@login_required
@require_POST
def pause(request: HttpRequest, pk: int) -> HttpResponse:
    """Pause a report, or resume a paused one."""
    report = get_object_or_404(Report, pk=pk, user=request.user)
    mine = _mine(request)
    with dynbeat.acting(actor=request.user.get_username()):
        if mine.get(report.schedule_name).enabled:
            mine.pause(report.schedule_name)
        else:
            mine.resume(report.schedule_name)
    return redirect("reports")


@login_required
@require_POST
def run(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a report now. Its next fire time stays."""
    report = get_object_or_404(Report, pk=pk, user=request.user)
    with dynbeat.acting(actor=request.user.get_username()):
        _mine(request).run_now(report.schedule_name)
    return redirect("reports")


@login_required
@require_GET
def history(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the last runs of a report."""
    report = get_object_or_404(Report, pk=pk, user=request.user)
    runs = _mine(request).runs(report.schedule_name, limit=20)
    return render(request, "reports/history.html", {"report": report, "runs": runs})
