"""The map of the code names files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_dynbeat"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
TREE = re.search(r"```\ncelery_dynbeat/\n(.*?)```", PAGE, re.DOTALL).group(1)
#: A row of a tour or of "Where does it happen": the step or the question, the file, the functions.
ROW = re.compile(r"^\| [^|]+ \| `([\w/]+\.py)` \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
NAMES = sorted({(file, name) for file, cell in ROWS for name in re.findall(r"`([\w.]+)`", cell)})


def files_of_tree():
    """Yield each file that the tree names, as a path within the package."""
    folders = []
    for line in TREE.splitlines():
        indent = len(line) - len(line.lstrip())
        folders = [each for each in folders if each[0] < indent]
        if match := re.match(r" +([\w/]+)/ ", f"{line} "):
            folders.append((indent, f"{match[1]}/"))
        folder = "".join(name for _, name in folders)
        for file in re.findall(r"(?<![\w/])(?:\w+/)*\w+\.py", line):
            yield f"{folder}{file}"


def names_in(file):
    """Return the functions, classes, methods and constants of a module, as dotted names."""
    names = set()
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        for inner in getattr(node, "body", ()) if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(f"{node.name}.{inner.name}")
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names.add(getattr(target, "id", ""))
    return names


@pytest.mark.parametrize("file", sorted(files_of_tree()))
def test_each_file_of_the_tree_exists(file):
    assert (PACKAGE / file).is_file()


def test_the_tree_names_each_folder():
    folders = {path.parent.name for path in PACKAGE.rglob("*.py")} - {PACKAGE.name, "versions"}
    assert folders == set(re.findall(r"^ {2,4}(\w+)/", TREE, re.MULTILINE))


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_each_answer_names_a_function_that_exists(file, name):
    assert name in names_in(file)
