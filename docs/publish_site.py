"""Add a build of the site to the folder that a web server publishes.

    python docs/publish_site.py build/site FOLDER VERSION

FOLDER gets a folder for each version, ``versions.json`` for the list of versions in the pages, and
an ``index.html`` that leads to the newest release, or to ``main`` before the first one. A version
replaces an earlier build of it; other versions do not change.
"""

import json
import re
import shutil
import sys
from pathlib import Path

RELEASE = re.compile(r"\d+\.\d+(\.\d+)?")
INDEX = """<!doctype html>
<meta charset="utf-8">
<title>celery_dynbeat</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">celery_dynbeat {version}</a>
"""


def publish(build: Path, folder: Path, version: str) -> None:
    """Add ``build`` as ``version``: ``main``, or a release such as ``0.1.0``. Raises ValueError."""
    if version != "main" and not RELEASE.fullmatch(version):
        raise ValueError(f"version = {version!r}: must be 'main' or a release, such as '0.1.0'")
    if not (build / "index.html").is_file():
        raise ValueError(f"{build} has no index.html: build the site with `make site` first")
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(build, folder / version, ignore=shutil.ignore_patterns(".doctrees"))
    versions = sorted(
        (each.name for each in folder.iterdir() if (each / "index.html").is_file()), key=_order
    )
    (folder / "versions.json").write_text(json.dumps(versions))
    (folder / "index.html").write_text(INDEX.format(version=versions[0]))
    # GitHub Pages leaves out folders that begin with "_" without this file.
    (folder / ".nojekyll").touch()


def _order(version: str) -> tuple[bool, list[int]]:
    """Return the key that puts releases first, the newest before the others."""
    is_release = RELEASE.fullmatch(version) is not None
    return not is_release, [-int(each) for each in version.split(".")] if is_release else []


if __name__ == "__main__":
    try:
        publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except IndexError:
        sys.exit("usage: python docs/publish_site.py BUILD FOLDER VERSION")
    except ValueError as error:
        sys.exit(str(error))
