"""``dynbeat show --why`` in a pipe: the sentence, then rows whose first cell names their kind."""

from celery_dynbeat import Every
from tests.support.applications import START


def test_the_rows_after_the_sentence_are_separated_by_tabs(shown, mine):
    mine.create("n", task="t", trigger=Every(60, anchor=START))
    mine.pause("n", reason="ticket\t12")

    sentence, *rows = shown("show", "n", "--why", "--owner", "user:42")

    assert sentence.endswith("because of 'ticket\\t12'.")
    fix, *others = [row.split("\t") for row in rows]
    assert fix[0] == "fix"
    assert "dynbeat resume --owner=user:42 -- n` starts it again" in fix[1]
    assert {kind for kind, *_ in others} <= {"queue", "last", "next", "beat", "worker"}
