"""What a message says of its payload is what Celery would have said."""

from celery.utils.saferepr import saferepr
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dynbeat.messages import shown

LONGEST = 1024
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
payloads = st.recursive(
    st.dictionaries(st.text(), scalars) | st.lists(scalars),
    lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner),
    max_leaves=5,
)


@given(payloads)
@example({"user_id": 7, "name": "it's", "ratio": 0.1})
@example({"text": 'say "it"'})
@example(["back\\slash"])
@example(["line\nbreak"])
@example(["\x7f"])
@example({"long": "a" * LONGEST})
@example({"nested": {"deep": [1]}})
@example([["[", "{"]])
def test_a_payload_is_shown_as_celery_shows_it(payload):
    assert shown(payload, LONGEST) in {None, saferepr(payload, LONGEST)}


@given(st.dictionaries(st.from_regex(r"\A[a-z_]{1,9}\Z"), st.integers() | st.booleans()))
def test_plain_arguments_need_no_more(payload):
    assert shown(payload, LONGEST) in ({repr(payload)} if len(repr(payload)) <= LONGEST else {None})
