"""The pages. The owner of each schedule is the user of the session, and never a parameter."""

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from project.celery import dynbeat

from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.django.forms import errors_in
from reports.forms import ReportForm
from reports.models import Report


def _mine(request: HttpRequest) -> OwnerSchedules:
    return dynbeat.schedules.for_owner(f"user:{request.user.pk}")


@login_required
@require_http_methods(["GET", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the reports of the user, and create one."""
    form = ReportForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with errors_in(form), transaction.atomic():
            _create(request, form)
        if not form.errors:
            return redirect("reports")
    schedules = {each.name: each for each in _mine(request).list()}
    rows = [
        (report, schedules.get(report.schedule_name))
        for report in Report.objects.filter(user=request.user)
    ]
    status = 422 if form.errors else 200
    return render(request, "reports/page.html", {"form": form, "rows": rows}, status=status)


def _create(request: HttpRequest, form: ReportForm) -> None:
    """Create a report and its schedule, both or neither."""
    form.instance.user = request.user
    report = form.save()
    _mine(request).create(
        report.schedule_name,
        task="reports.tasks.send_report",
        args=[report.pk],
        trigger=form.cleaned_data["rule"],
    )


@login_required
@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete a report. Its schedule is deleted with it."""
    get_object_or_404(Report, pk=pk, user=request.user).delete()
    return redirect("reports")


@login_required
@require_POST
def pause(request: HttpRequest, pk: int) -> HttpResponse:
    """Pause a report, or resume a paused one."""
    report = get_object_or_404(Report, pk=pk, user=request.user)
    mine = _mine(request)
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
    _mine(request).run_now(report.schedule_name)
    return redirect("reports")


@login_required
@require_GET
def history(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the last runs of a report."""
    report = get_object_or_404(Report, pk=pk, user=request.user)
    runs = _mine(request).runs(report.schedule_name, limit=20)
    return render(request, "reports/history.html", {"report": report, "runs": runs})
