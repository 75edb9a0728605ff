"""Each class of the package has another name."""

import ast
from collections import defaultdict
from pathlib import Path

#: Django's models have the names that its admin shows, and Django prescribes the name Meta.
EXCEPTED = {"Meta", "Run", "Schedule"}


def test_no_class_name_exists_twice():
    found = defaultdict(list)
    for path in Path("celery_dynbeat").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path))

    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert twice.keys() <= EXCEPTED, twice
