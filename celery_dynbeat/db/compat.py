"""Replacements for features that older versions of SQLAlchemy lack.

Each item names the version that has it. Delete the item when that version is the lower bound in
``pyproject.toml``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.util import await_
else:
    try:
        # SQLAlchemy 2.1
        from sqlalchemy.util import await_
    except ImportError:
        # Its name in 2.0. 2.2 deprecates it.
        from sqlalchemy.util import await_only as await_

__all__ = ["await_"]
