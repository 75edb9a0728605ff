"""Hints: commands as code, or the button or page that does the same."""

import pytest

from celery_dynbeat.flower.base.fragments import hint_html

HOLD = "End the hold: `celery -A a dynbeat hold --release --owner u`."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Start `celery -A a beat`. Read.", "Start <code>celery -A a beat</code>. Read."),
        ("`celery -A a dynbeat resume -- n` resumes it.", "The button Resume resumes it."),
        (HOLD, "End the hold: the button Release."),
        ("Look. `celery -A a dynbeat status` says it.", "Look. The page Beats says it."),
        ("`owner --quiet-days` sets.", "<code>owner --quiet-days</code> sets."),
        ("`owner --held` lists them.", "The page Beats lists them."),
        ("`run` runs it once.", "The button Run now runs it once."),
        ("`celery -A '<b>' worker`", "<code>celery -A &#x27;&lt;b&gt;&#x27; worker</code>"),
        ("<b>no command</b>", "&lt;b&gt;no command&lt;/b&gt;"),
    ],
)
def test_a_hint_names_the_button_or_the_page_in_place_of_a_command(text, shown):
    assert hint_html(text) == shown
