"""Messages show no secret, and other words in them stay whole."""

import pytest

from celery_dynbeat.common.text import hide_secrets


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("submitting user u:u@host", ["u"], "submitting user ***:***@host"),
        ('password "pw1" of pw12', ["pw1"], 'password "***" of pw12'),
        ("login=hunter2&HUNTER2x", ["hunter2"], "login=***&***x"),
        ("hunter2 and hunter", ["hunter", "hunter2"], "*** and ***"),
        ("nothing", ["", "x"], "nothing"),
    ],
)
def test_a_secret_is_hidden_and_other_words_stay_whole(text, secrets, shown):
    assert hide_secrets(text, secrets) == shown
