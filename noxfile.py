"""The tests on other versions than those of ``make test``. ``nox --list`` shows the lanes.

Each lane installs the wheel as a user does, with the versions that it is named after. It runs a
copy of the tests without the package next to them, so that they import the installed one.

    nox -s lowest                   the lowest versions of pyproject.toml
    nox -s "celery(version='5.5')"  one version of one library, the others as new as it allows
    nox -s newest -- tests/unit     other tests; what follows -- goes to pytest
    nox -s dist distribution        build the files in dist/, and install them as a user does

Two lanes run the tests of the tree in its own environment, `.venv`:

    nox -s mysql                    the tests of MariaDB on MySQL
    nox -s coverage                 all tests but the longest, with their branch coverage
"""

import os
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lowest"]
# A lane of a Python that is not installed is skipped, in CI too.
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
#: What the tests read besides the package.
TREE = (
    "CONTRIBUTING.md", "README.md", "CHANGELOG.md", "SECURITY.md", "docker-compose.yml",
    "pyproject.toml", "benchmarks", "docs", "examples", "tests",
)  # fmt: skip
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WORKERS = os.environ.get("WORKERS") or "3"
#: The tools of the environment that runs nox.
_MODULE = (sys.executable, "-m")
_PYTEST = (*_MODULE, "pytest", "-n", WORKERS, "--dist", "worksteal")

#: What depends on Celery, kombu, SQLAlchemy and the drivers.
TESTS = (
    *(
        f"tests/unit/{folder}"
        for folder in ("api", "beat", "broker", "importing", "process", "worker")
    ),
    *(f"tests/contract/{folder}" for folder in ("beat", "db", "store", "worker")),
)
#: The path of a run, in a few minutes.
QUICK_TESTS = (
    *(f"tests/unit/{folder}" for folder in ("beat", "broker", "worker")),
    "tests/contract/beat/test_claim.py",
    "tests/contract/api/test_async.py",
    "tests/contract/db/test_read_timeout.py",
    "tests/contract/notify",
    "tests/contract/worker",
)
#: A real beat and worker with Redis and with RabbitMQ, and `make demo`.
PROCESSES = (
    *(
        "tests/acceptance/test_end_to_end.py"
        f"::test_each_kind_of_trigger_runs_and_has_a_complete_history[{site}]"
        for site in ("postgresql-redis", "postgresql-rabbitmq")
    ),
    "tests/acceptance/test_examples.py::test_the_demo_succeeds_and_prints_its_checks",
)


def _run(
    session: nox.Session, tests: tuple[str, ...], *constraints: str, lowest: bool = False
) -> None:
    """Install the wheel with ``constraints``, and run ``tests``."""
    folder = Path(session.create_tmp()).resolve()
    wheel = _build(session, folder / "wheel")
    if lowest:
        session.install("-r", str(_lowest(session, folder, "--extra=all", "--group=test")))
        session.install("--no-deps", str(wheel))
    else:
        limits = folder / "constraints.txt"
        limits.write_text("\n".join(constraints))
        session.install(
            f"celery-dynbeat[all] @ {wheel.as_uri()}",
            *("--group", f"{ROOT / 'pyproject.toml'}:test", "-c", str(limits)),
            # A peer package, whose store the tests write, may not accept the newest version yet.
            env={"UV_OVERRIDE": str(limits)},
        )
    tree = folder / "tree"
    _copy_tests(tree)
    session.chdir(tree)
    session.run("python", "-c", _SHOW)
    pytest = ("pytest", "-n", WORKERS, "--dist", "worksteal", "--session-timeout", "1800")
    if session.posargs:
        session.run(*pytest, *session.posargs)
        return
    # `make test` runs the same tests of these folders: on SQLite and PostgreSQL.
    session.run(*pytest, "-m", "not full and not long", *tests)
    session.run(*pytest, *PROCESSES)


def _lowest(session: nox.Session, folder: Path, *selected: str) -> Path:
    """Return a file of the lowest versions of the direct requirements.

    Those in turn have requirements of their own, which are as new as possible.
    """
    pins = folder / "lowest.txt"
    pins.unlink(missing_ok=True)
    session.run(
        "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate",
        "--resolution=lowest-direct", *selected, f"--python={session.bin}/python",
        f"--output-file={pins}", "pyproject.toml", external=True, silent=True,
    )  # fmt: skip
    return pins


#: Fails if the tests would import the tree.
_SHOW_PACKAGE = """
import importlib.metadata as metadata, platform, sysconfig
import celery_dynbeat
assert celery_dynbeat.__file__.startswith(sysconfig.get_path("purelib")), celery_dynbeat.__file__
assert celery_dynbeat.__version__ == metadata.version("celery-dynbeat")
names = ["celery", "kombu", "SQLAlchemy", "alembic"]
"""
#: Prints what they run on.
_SHOW = (
    _SHOW_PACKAGE
    + """
names += "redis psycopg psycopg2-binary PyMySQL Django flower".split()
found = [f"{name} {metadata.version(name)}" for name in names]
print("Python", platform.python_version(), *found, sep=", ")
"""
)


def _build(session: nox.Session, folder: Path) -> Path:
    """Return the wheel of this tree."""
    shutil.rmtree(folder, ignore_errors=True)
    if session.venv_backend == "uv":
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)]
        session.run_install(*command, external=True)
    else:
        session.run_install(
            "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _copy_tests(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree)


@nox.session(python=sys.executable)
def lowest(session: nox.Session) -> None:
    """Test the lowest versions. CI runs this lane."""
    _run(session, QUICK_TESTS, lowest=True)


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """Test the newest versions, on each Python that is installed."""
    _run(session, TESTS)


@nox.session
@nox.parametrize("version", ["5.4", "5.5", "5.6", "5.7"])
def celery(session: nox.Session, version: str) -> None:
    """Test a minor version of Celery, with the kombu of the same number."""
    _run(session, TESTS, f"celery=={version}.*", f"kombu=={version}.*")


@nox.session
@nox.parametrize("version", ["2.0", "2.1"])
def sqlalchemy(session: nox.Session, version: str) -> None:
    """Test a minor version of SQLAlchemy."""
    _run(session, TESTS, f"sqlalchemy=={version}.*")


# Django 6 needs Python 3.12.
@nox.session
@nox.parametrize(
    "python,version", [("3.11", "4.2"), ("3.11", "5.2"), ("3.13", "6.0"), ("3.13", "6.1")]
)
def django(session: nox.Session, version: str) -> None:
    """Test a minor version of Django: the calls in its transactions, the admin, and the example."""
    tests = ("tests/contract/django", "tests/acceptance/test_django_example.py")
    _run(session, tests, f"django=={version}.*")


@nox.session
@nox.parametrize("version", ["2.0.1", "2.1.0", "2.2.0"])
def flower(session: nox.Session, version: str) -> None:
    """Test the pages in a version of Flower."""
    tests = ("tests/contract/flower", "tests/acceptance/test_flower.py")
    _run(session, tests, f"flower=={version}")


@nox.session(python=False)
def mysql(session: nox.Session) -> None:
    """Run the tests of MariaDB on MySQL, each fault with Redis or RabbitMQ.

    DYNBEAT_TEST_MYSQLD names another server than that of Debian unstable in build/mysql.
    """
    server = os.environ.get("DYNBEAT_TEST_MYSQLD", "build/mysql/mysqld")
    if server == "build/mysql/mysqld":
        session.run("tests/support/install_mysql.sh", "build/mysql", external=True)
    selected = session.posargs or ("-m", "mysql", "--session-timeout", "7200")
    session.run(*_PYTEST, *selected, env={"DYNBEAT_TEST_MYSQLD": server})


@nox.session(python=False)
def coverage(session: nox.Session) -> None:
    """Measure branch coverage; it fails below fail_under in pyproject.toml."""
    selected = ("-m", "not long", "--session-timeout", "5000")
    session.run(*_PYTEST, *selected, "--cov", "--cov-report=term:skip-covered")


@nox.session(python=False)
def dist(session: nox.Session) -> None:
    """Build the wheel and the sdist, and check what a package index shows of them."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.run(*_MODULE, "uv", "build", "--quiet", "--out-dir", str(folder))
    files = [str(file) for pattern in ("*.whl", "*.tar.gz") for file in folder.glob(pattern)]
    session.run(*_MODULE, "twine", "check", "--strict", *files)


@nox.session(python=sys.executable)
@nox.parametrize("versions", ["newest", "lowest"])
@nox.parametrize("suffix", ["whl", "tar.gz"])
def distribution(session: nox.Session, suffix: str, versions: str) -> None:
    """Install a file of dist/ in a fresh environment, and run the demo with it."""
    (file,) = (ROOT / "dist").glob(f"*.{suffix}")
    folder = Path(session.create_tmp()).resolve()
    if versions == "lowest":
        session.install("-r", str(_lowest(session, folder)))
    session.install(str(file))
    examples = folder / "examples"
    shutil.rmtree(examples, ignore_errors=True)
    shutil.copytree(ROOT / "examples", examples)
    session.chdir(folder)
    session.run("python", "-c", _SHOW_PACKAGE)
    session.run("python", "examples/quickstart/demo.py")
