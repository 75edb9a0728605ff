"""Our static files: style sheets and scripts."""

from functools import cache
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "static"


@cache
def static_version(name: str) -> str:
    """Return a text that changes with the file, for the cache of the browser."""
    return sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
