"""Texts of users in messages cannot notify people, become links or show secrets."""

import pytest

from celery_dynbeat.alerts.text import shown, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "@channel",
        "a@everyone",
        "<!here>",
        "<@U123>",
        "*bold*",
        "[a](http://x)",
        "`code`",
        "https://evil",
        "www.evil.example",
        "mailto:a@evil.example",
        "tel:+4912345",
        "\uff20everyone",
        "\uff57\uff57\uff57.evil.example",
    ],
)
def test_a_text_of_a_user_mentions_no_person_and_is_no_link(text):
    marked = shown(text)

    assert text not in marked
    assert marked.replace("\u2060", "") == text


@pytest.mark.parametrize("text", ["send_mail", "celerybeat@host:9", "a_b@c.example", "user:42"])
def test_a_word_stays_as_it_is(text):
    assert shown(text) == text


def test_a_long_error_is_shortened():
    assert len(shown("x" * 10_000)) == 300


def test_an_error_shows_no_part_of_a_url():
    text = without_secrets("chat ab12 of bot x1 refused by h.io:8", "tgram://x1:ab12@h.io:8/ab12")

    assert text == "chat *** of bot *** refused by ***:***"
