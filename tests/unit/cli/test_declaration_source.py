"""A file of YAML or JSON becomes plain values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dynbeat.cli.file_format import DeclarationError, json_text, read, yaml_text

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Control characters that YAML forbids are escaped in JSON text.
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def loaded(text):
    return read(text, file="schedules.yaml")


# Hypothesis draws constants of the imported modules. An import during an example would change them.
loaded("a: 1")


@given(value=st.dictionaries(st.text(), JSON_VALUES, min_size=1), indent=st.none() | st.just(2))
def test_json_is_read_as_the_standard_library_reads_it(value, indent):
    assert loaded(json.dumps(value, indent=indent)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "schedules.yaml: .*the key 'a' occurs twice"),
        ("a: 1\nb:\n  c: 2\n  c: 3", "schedules.yaml:4: .*the key 'c' occurs twice"),
        ("? [a]\n: 1", "schedules.yaml:1: .*each key must be a text"),
        ("a: {1: b}", "schedules.yaml:1: .*each key must be a text; put a number"),
        ("a: {on: b}", "schedules.yaml:1: .*each key must be a text"),
        ("a: &a {b: 1}\nc: {<<: [*a, *a]}", "schedules.yaml:2: .*<< merges one mapping"),
        ("a: &a {b: 1}\nc: {<<: *a, <<: *a}", "schedules.yaml:2: .*the key '<<' occurs twice"),
        ("a: !!bool abc", "schedules.yaml: not valid YAML"),
        ("a: !!timestamp abc", "schedules.yaml: not valid YAML"),
        ("a: !!map [b]", "schedules.yaml:1: not valid YAML"),
        ("a: 1\nb: */5 * * * *", "schedules.yaml:2: not valid YAML.*quotes, such as"),
        ("a: @daily", "schedules.yaml:1: not valid YAML.*quotes"),
        ("a: [1", "schedules.yaml:1: not valid YAML"),
        ('{"a": 1,\n "b": }', "schedules.yaml:2: not valid JSON: Expecting value, column 7"),
        ("a: !!python/object/apply:os.system [x]", "schedules.yaml:1: .*constructor"),
        ("--- 1\n--- 2", "schedules.yaml:2: .*another document"),
        (f"a: {'9' * 5000}", "schedules.yaml: .*4300 digits"),
        ("a: \x00", "schedules.yaml: .*character"),
        ("[" * 3000, "schedules.yaml: .*recursion"),
        # Python 3.14 reads as many levels as the stack of the thread holds.
        ('{"a": ' + "[" * 900_000, "schedules.yaml: not valid JSON: .*(recursion|overflow)"),
    ],
)
def test_an_unreadable_file_is_refused_with_its_line(text, message):
    with pytest.raises(DeclarationError, match=message):
        loaded(text)


def test_a_file_may_begin_with_a_byte_order_mark():
    assert loaded('\ufeff{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert loaded("\ufeffa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


LOOKALIKES = (
    *("1e3", "1E5", "09", "1.0e3", "+.5", "-.5e3", ".5", "0.0", "1.", "+1", "00", "0x1", "1_000"),
    *("null", "~", "", "on", "True", "<<", "=", "12:30", "2026-01-01", "-", "*", "a: b", "# a"),
    *("\x85", "\u2028", "\ufeffa", "a\nb\n", "\t", " a ", "\x7f", "\u202ea", "\x9b0m"),
)


@pytest.mark.parametrize("text", LOOKALIKES)
def test_a_text_that_looks_like_another_value_is_written_in_quotes(text):
    assert loaded(yaml_text({text: [text]})) == {text: [text]}


@given(value=st.dictionaries(st.text(), JSON_VALUES, min_size=1))
def test_yaml_is_read_as_it_was_written(value):
    assert loaded(yaml_text(value)) == value


@pytest.mark.parametrize("write", [yaml_text, json_text])
def test_a_terminal_can_show_a_file(write):
    text = write({"a": "\u202e\x9b2J\x1b]0;\x07\u2066", "b": "\ubcf4\uace0\n\ubcf4\uace0"})

    assert text.replace("\n", "").isprintable()
