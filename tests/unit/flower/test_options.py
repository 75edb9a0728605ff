"""A misspelt option of ours is an error; Flower ignores unknown options."""

import pytest

from celery_dynbeat.flower.application import unknown_option


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dynbeat-hide-arguments"],
        ["--dynbeat_hide_arguments=true", "--port=1"],
        ["--no-such-option-of-flower"],
        ["--db=dynbeat-x", "dynbeat-x"],
    ],
)
def test_known_options_and_those_of_flower_pass(arguments):
    assert unknown_option(arguments) is None


def test_an_unknown_option_names_a_similar_one():
    assert unknown_option(["--port=1", "--dynbeat-hide-argument"]) == (
        "unknown option --dynbeat-hide-argument; did you mean --dynbeat-hide-arguments?"
    )
