"""Write celery_dynbeat/client/async_calls.py from the synchronous classes: `make docs`.

tests/unit/client/test_async_calls.py fails if the module differs from what this script writes.
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

from celery_dynbeat.client.owner import OwnerSchedules
from celery_dynbeat.client.schedules import Schedules

MODULE = Path(__file__).parents[1] / "celery_dynbeat" / "client" / "async_calls.py"
CLASSES = {"AsyncOwnerSchedules": OwnerSchedules, "AsyncSchedules": Schedules}
OWN_IMPORTS = {
    "AnyAsyncSession": "celery_dynbeat.runtime.async_context",
    "AsyncContext": "celery_dynbeat.runtime.async_context",
    "OwnerSchedules": "celery_dynbeat.client.owner",
    "Schedules": "celery_dynbeat.client.schedules",
}
#: The constructors, and the call that connects to nothing.
_OWNER = """
def __init__(self, context: AsyncContext, calls: OwnerSchedules) -> None:
    self._context, self._calls = context, calls
    self.owner = calls.owner
"""
_ALL = """
def __init__(self, context: AsyncContext) -> None:
    self._context, self._calls = context, Schedules(context)

def for_owner(self, owner: str) -> AsyncOwnerSchedules:
    '''Return the schedules of ``owner``, as ``Schedules.for_owner``. It is not awaited.'''
    return AsyncOwnerSchedules(self._context, self._calls.for_owner(owner))
"""
BY_HAND = {"AsyncOwnerSchedules": _OWNER, "AsyncSchedules": _ALL}
HEAD = '"""The calls of AsyncDynbeat. `make docs` generates them from the synchronous calls."""'


def module() -> str:
    """Return the text of the module."""
    imports: dict[str, str] = dict(OWN_IMPORTS)
    classes = [_class(name, kind, imports) for name, kind in CLASSES.items()]
    lines = [
        f"import {name}" if not source else f"from {source} import {name}"
        for name, source in imports.items()
    ]
    return _formatted("\n".join([HEAD, *lines, *classes]))


def _class(name: str, kind: type, imports: dict[str, str]) -> str:
    calls = "\n\n".join(_call(kind, each, imports) for each in _calls(kind))
    doc = f'"""The calls of ``{kind.__name__}``, awaited. ``session`` is an ``AsyncSession``."""'
    return f"class {name}:\n" + textwrap.indent(f"{doc}\n{BY_HAND[name]}\n{calls}\n", "    ")


def _calls(kind: type) -> list[str]:
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
    return [name for name in names if name != "for_owner"]


def _call(kind: type, name: str, imports: dict[str, str]) -> str:
    """Return the source of the asynchronous call ``name`` and of its overloads."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    (body,) = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
    functions = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == name]
    for used in sorted({each for function in functions for each in _names(function)}):
        _import(used, sys.modules[owner.__module__], imports)
    return "\n\n".join(_source(each, imports) for each in functions)


def _source(function: ast.FunctionDef, imports: dict[str, str]) -> str:
    is_overload = any(_name(each) == "overload" for each in function.decorator_list)
    is_iterator = "Iterator[" in ast.unparse(function.returns or ast.Constant(None))
    _take_async_session(function)
    returns = ast.unparse(function.returns or ast.Constant(None))
    if is_iterator:
        returns = returns.replace("Iterator[", "AsyncIterator[")
        imports["AsyncIterator"] = "collections.abc"
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in function.decorator_list)
    start = "def" if is_iterator else "async def"
    head = f"{decorators}{start} {function.name}({ast.unparse(function.args)}) -> {returns}:"
    if is_overload:
        return f"{head} ..."
    doc = ast.get_docstring(function, clean=True)
    returned = "return self._context.iterate" if is_iterator else "return await self._context.call"
    call = f"{returned}(session, lambda session: self._calls.{function.name}({_passed(function)}))"
    return f"{head}\n" + textwrap.indent(f'"""{doc}{_end(doc)}"""\n{call}', "    ")


def _end(doc: str | None) -> str:
    return "\n" if doc and "\n" in doc else ""


def _take_async_session(function: ast.FunctionDef) -> None:
    for argument in function.args.kwonlyargs:
        if argument.arg == "session":
            argument.annotation = ast.parse("AnyAsyncSession | None", mode="eval").body


def _passed(function: ast.FunctionDef) -> str:
    """Return the arguments of the synchronous call."""
    arguments = function.args
    given = [each.arg for each in arguments.args[1:]]
    given += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)


def _names(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the signature and the decorators, except those that are replaced."""
    parts: list[ast.AST] = [function.args, *function.decorator_list]
    if function.returns:
        parts.append(function.returns)
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name) and node.id not in {"Session", "Iterator"}:
                yield node.id


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


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
        shown = f"--stdin-filename={MODULE}"
        text = subprocess.run(  # noqa: S603 - the arguments are constants
            [*command, shown, "-"], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    MODULE.write_text(module())
