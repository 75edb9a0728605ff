"""Packages of a fixed version that a test needs in addition to the installed ones.

Each gets its own folder below ``build/packages``, which git ignores. It
is installed without its dependencies.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "packages"
INSTALLED_WITHIN = 120
ERROR_LINES = 5


class PackageMissingError(Exception):
    """pip could not install a package, for example without a network."""


def package_folder(name: str, version: str) -> Path:
    """Return the folder of ``name`` in ``version``, to be put first on PYTHONPATH.

    pip installs it at the first call. Raises PackageMissingError.
    """
    folder = FOLDER / f"{name}-{version}"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
            _install(f"{name}=={version}", Path(temporary) / "new")
            _publish(Path(temporary) / "new", folder)
    return folder


def _install(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ended = subprocess.run(
        [*command, "--no-deps", "--target", folder, requirement],
        capture_output=True,
        text=True,
        timeout=INSTALLED_WITHIN,
        check=False,
    )
    if ended.returncode:
        reason = "\n".join(ended.stderr.splitlines()[-ERROR_LINES:])
        raise PackageMissingError(f"pip cannot install {requirement}: {reason}")


def _publish(new: Path, folder: Path) -> None:
    # Another process of pytest-xdist may have installed it meanwhile. A rename is atomic, so that
    # no process sees a part of the files.
    try:
        new.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(new)
