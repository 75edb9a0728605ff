"""Write messages to a Redis pipeline as copies of an earlier message of the same task.

Celery and kombu build each message from its parts, which takes more processor time than all other
steps of a run. Two runs of one task differ only in the id, the arguments and the headers of the
run. Celery and kombu therefore build the first messages of a task, and ``copy_of`` reads the
command that they added to the pipeline. Each later message is that command with other values.

kombu stores unacknowledged messages by their delivery tags. The tag of a copy consists of random
characters and the id of the run. The id alone is not enough, because a run may be sent again.

A message is not copied if it shows that other parts may depend on the run: several commands, a time
to live, compression, another serializer than JSON, Celery's protocol 1.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

_encode = json.JSONEncoder().encode
#: The parts of a message that kombu writes to Redis.
_PARTS = {"body", "content-encoding", "content-type", "headers", "properties"}
#: The parts of a message that differ between two runs, apart from the headers of the run.
_ID_HEADERS, _REPR_HEADERS = ("id", "root_id"), ("argsrepr", "kwargsrepr")
_ID_PROPERTY, _TAG_PROPERTY = "correlation_id", "delivery_tag"
#: Headers and properties that depend on the time if they have a value.
_TIMES = ("eta", "expires", "expiration")


class Pipeline(Protocol):
    """A pipeline of redis-py, with its commands and their options."""

    command_stack: list[tuple[tuple[Any, ...], Mapping[str, Any]]]


class MessageCopy(NamedTuple):
    """A command whose message is written again for other runs.

    ``command`` ends before the message. The texts are the constant parts of the message around the
    body, the delivery tag, the id of the run, and the headers that differ. ``embed`` is the end of
    the body after the arguments.
    """

    command: tuple[Any, ...]
    options: Mapping[str, Any]
    before_tag: str
    before_id: str
    before_headers: str
    embed: str

    def add(
        self,
        pipeline: Pipeline,
        run_id: str,
        *,
        payload: tuple[list[Any], dict[str, Any]],
        reprs: tuple[str, str],
        headers: Mapping[str, Any],
    ) -> None:
        """Add the message of a run to the pipeline.

        ``payload`` is its args and kwargs, ``reprs`` is how the message shows them. The pipeline
        must not be empty: kombu executes none to which it added nothing itself.
        """
        body = f"{_encode(payload)[:-1]}{self.embed}"
        differing = _encode(
            {
                **dict.fromkeys(_ID_HEADERS, run_id),
                **dict(zip(_REPR_HEADERS, reprs, strict=True)),
                **headers,
            }
        )
        message = (
            f'{{"body": "{b64encode(body.encode()).decode()}{self.before_tag}{run_id}'
            f"{self.before_id}{run_id}{self.before_headers}{differing[1:]}}}"
        )
        arguments, _ = pipeline.command_stack[-1]
        if arguments[:2] == self.command and self.command[0] == "LPUSH":
            # One command pushes several messages, and has one response.
            pipeline.command_stack[-1] = (*arguments, message), self.options
        else:
            pipeline.command_stack.append(((*self.command, message), self.options))


def copy_of(
    pipeline: Pipeline, *, start: int, run_id: str, body: Any, headers: Mapping[str, Any]
) -> MessageCopy | None:
    """Return a copy of the message that was added to ``pipeline`` at index ``start``.

    ``body`` and ``headers`` were sent for the run. None means that the message must not be copied.
    """
    added = pipeline.command_stack[start:]
    if len(added) != 1 or not isinstance(body, tuple):
        return None
    arguments, options = added[0]
    message = json.loads(arguments[-1])
    constant, properties = dict(message["headers"]), dict(message["properties"])
    ids = {*(constant.pop(key, None) for key in _ID_HEADERS), properties.pop(_ID_PROPERTY, None)}
    is_plain = (
        message.keys() == _PARTS
        and ids == {run_id}
        and properties.pop("body_encoding", None) == "base64"
        and b64decode(message["body"]) == _encode(body).encode()
        and not any(constant.get(key) or properties.get(key) for key in _TIMES)
    )
    properties.pop(_TAG_PROPERTY, None)
    for key in (*_REPR_HEADERS, *headers):
        constant.pop(key, None)
    top = {key: message[key] for key in ("content-encoding", "content-type")}
    texts = [_encode(each)[1:-1] for each in (top, properties, constant)]
    if not is_plain or any(run_id in text for text in texts):
        return None
    return MessageCopy(
        command=arguments[:-1],
        options=options,
        before_tag=f'", {texts[0]}, "properties": {{"body_encoding": "base64", {texts[1]},'
        f' "{_TAG_PROPERTY}": "{token_hex(16)}-',
        before_id=f'", "{_ID_PROPERTY}": "',
        before_headers=f'"}}, "headers": {{{texts[2]}, ',
        embed=f", {_encode(body[2])}]",
    )
