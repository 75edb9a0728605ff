"""The preview shows what a typed rule fires, and writes nothing."""

from datetime import timedelta

import pytest

from tests.support.applications import MINUTELY, START
from tests.support.editor_form import edits, open_form, preview, save


@pytest.mark.usefixtures("digest")
def test_the_preview_shows_the_next_fire_times_in_two_zones(pages):
    pages.cookies["dynbeat_viewer_zone"] = "Europe%2FBerlin"

    shown = preview(pages, open_form(pages, "digest"), rule="30 9 * * mon")

    assert shown["errors"] == {}
    assert "At 09:30, on Monday, Asia/Seoul" in shown["html"]
    assert "Mon 23 Nov 2026 09:30:00 +09" in shown["html"]
    assert "Mon 23 Nov 2026 01:30:00 +01" in shown["html"]
    assert shown["html"].count("<tr>") == 6


def test_the_preview_of_an_unedited_rule_shows_the_real_fire_times(pages, mine, clock):
    mine.create("n", task="t", trigger=MINUTELY)
    clock.advance(timedelta(seconds=30))
    mine.skip("n", START + timedelta(minutes=2), reason="holiday")

    shown = preview(pages, open_form(pages, "n"), description="x")

    assert "18:01:00 +09" in shown["html"]
    assert "holiday" in shown["html"]
    mine.set_quiet_hours(["18:03-18:04"])
    assert "18:04:00 +09" in preview(pages, open_form(pages, "n"))["html"]


@pytest.mark.parametrize(
    ("policies", "delayed"),
    [({"catch_up": "all"}, 3), ({"catch_up": "all", "overlap": "skip"}, 1), ({}, 0)],
)
def test_the_preview_of_an_edited_rule_has_the_policies_of_the_form(pages, mine, policies, delayed):
    mine.set_quiet_hours(["18:15-20:00"])
    mine.create("n", task="t", trigger=MINUTELY, catch_up="latest")

    shown = preview(pages, open_form(pages, "n"), rule="*/30 * * * *", **policies)

    assert shown["html"].count("in quiet hours: sent at 2026-11-21 20:00") == delayed


def test_a_preview_writes_nothing(pages, mine, digest):
    preview(pages, open_form(pages, "digest"), rule="5m")
    save(pages, open_form(pages, "digest"), rule="5m", do="preview")

    assert mine.get("digest") == digest
    assert edits(mine) == []
