"""Write celery_dynbeat/api/async_calls.pyi from the synchronous classes: `make docs`.

tests/unit/api/test_async_calls.py fails if the stub differs from what this script writes.
"""

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from celery_dynbeat.api.calendars import Calendars
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.many import ManyCalls
from celery_dynbeat.api.owner import OwnerSchedules
from celery_dynbeat.api.schedules import Schedules

STUB = Path(__file__).parents[1] / "celery_dynbeat" / "api" / "async_calls.pyi"
OWN_IMPORTS = {
    "AnyAsyncSession": "celery_dynbeat.process.async_context",
    "AsyncContext": "celery_dynbeat.process.async_context",
    "OwnerSchedules": "celery_dynbeat.api.owner",
    "Self": "typing",
}
HEAD = "# `make docs` writes this stub from the synchronous calls."
_OWNER = """owner: str
def __init__(self, context: AsyncContext, calls: OwnerSchedules) -> None: ..."""
_BINDING = """(
    self,{}
    *,
    session: AnyAsyncSession | None = None,
    actor: str | None = None,
    reason: str | None = None,
) -> {}: ..."""
_BASE = "def bound" + _BINDING.format("", "Self")
_ALL = f"""def __init__(self, context: AsyncContext) -> None: ...
def for_owner{_BINDING.format(" owner: str,", "AsyncOwnerSchedules")}"""
_CALENDARS = "def __init__(self, context: AsyncContext) -> None: ..."
#: The classes, with the synchronous one, and what the stub has in addition to its calls.
CLASSES = {
    "_AsyncCalls": (Calls, _BASE),
    "AsyncSharedCalls(_AsyncCalls)": (ManyCalls, ""),
    "AsyncOwnerSchedules(AsyncSharedCalls)": (OwnerSchedules, _OWNER),
    "AsyncSchedules(AsyncSharedCalls)": (Schedules, _ALL),
    "AsyncCalendars(_AsyncCalls)": (Calendars, _CALENDARS),
}


def stub() -> str:
    """Return the text of the stub."""
    imports: dict[str, str] = dict(OWN_IMPORTS)
    classes = [_class(head, kind, added, imports) for head, (kind, added) in CLASSES.items()]
    lines = [
        f"import {name}" if not source else f"from {source} import {name}"
        for name, source in imports.items()
    ]
    return _formatted("\n".join([HEAD, *lines, *classes]))


def _class(head: str, kind: type, added: str, imports: dict[str, str]) -> str:
    calls = "\n".join(_call(kind, each, imports) for each in _calls(kind))
    return f"class {head}:\n" + textwrap.indent(f"{added}\n{calls}\n", "    ")


def _calls(kind: type) -> list[str]:
    shared = dir(ManyCalls) if issubclass(kind, ManyCalls) and kind is not ManyCalls else ()
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
    return [name for name in names if name not in {*shared, "for_owner", "bound"}]


def _call(kind: type, name: str, imports: dict[str, str]) -> str:
    """Return the declaration of the asynchronous call ``name``."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    (body,) = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
    (function,) = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == name]
    arguments = function.args
    parameters = inspect.signature(getattr(kind, name)).parameters
    arguments.kw_defaults = [
        default and _default(parameters[argument.arg].default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    for used in sorted(set(_names(function))):
        _import(used, sys.modules[owner.__module__], imports)
    returns = ast.unparse(function.returns or ast.Constant(None))
    start = "async def"
    if "Iterator[" in returns:
        start, returns = "def", returns.replace("Iterator[", "AsyncIterator[")
        imports["AsyncIterator"] = "collections.abc"
    return f"{start} {function.name}({ast.unparse(arguments)}) -> {returns}: ..."


def _default(value: object) -> ast.expr:
    """Return a default as a stub has it: only plain values."""
    if value is None or isinstance(value, (bool, int, str)):
        return ast.Constant(value)
    return ast.Constant(...)


def _names(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the signature, except those that are replaced."""
    parts: list[ast.AST] = [function.args]
    if function.returns:
        parts.append(function.returns)
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id != "Iterator":
                yield node.id


def _import(name: str, source: ModuleType, imports: dict[str, str]) -> None:
    """Add the import of ``name`` as the module ``source`` has it."""
    if hasattr(builtins, name) or name in imports:
        return
    for node in ast.parse(inspect.getsource(source)).body:
        if isinstance(node, ast.ImportFrom) and name in {each.name for each in node.names}:
            imports[name] = node.module or ""
            return
    imports[name] = source.__name__


def _formatted(text: str) -> str:
    for arguments in (["check", "--select=I", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--quiet"]
        shown = f"--stdin-filename={STUB}"
        text = subprocess.run(  # noqa: S603 - the arguments are constants
            [*command, shown, "-"], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    STUB.write_text(stub())
