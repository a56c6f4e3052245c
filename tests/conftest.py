"""What every test stands on: a home of its own, one thread, no network, and nothing skipped in silence.

A test that cannot run here is listed at the very end of the session:

    not run: chromium (3 tests)          something could be installed, and was not
    not run here: cuda (2 tests)         a device, or network namespaces, that this machine does not have

`--nothing-missing` (what `.ci/run` asks for) turns the first list into a failure.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before anything imports numpy or torch: more threads than free cores is the slowest way to run, and
# results are compared bit for bit at a fixed number.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOOKALIKE_THREADS"):
    os.environ[_name] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_COLOR"] = "1"
os.environ["LOOKALIKE_PROGRESS_SECONDS"] = "0"  # what is printed must not depend on the speed of the machine
os.environ.pop("LOOKALIKE_DATA", None)
# No test can see whether a file would outlive a power cut, and a busy disk takes long to flush one.
os.fsync = lambda handle: None
# A job in the background of a shell ignores Ctrl-C, and so do its children; tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from lookalike.core import distributed
from tests import helpers

NOT_RUN, NOT_HERE = "not run: ", "not run here: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the long forms (make test-all)")
    parser.addoption("--nothing-missing", action="store_true", help="fail when a test could not be run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        slow = {item for item in items if item.get_closest_marker("slow") or _beyond_short_form(item)}
        config.hook.pytest_deselected(items=list(slow))
        items[:] = [item for item in items if item not in slow]
    items.sort(key=_place)


def _beyond_short_form(item: pytest.Item) -> bool:
    """Slow servers pass the common suite of stores in `make test`; what is built upon a store is tried with others."""
    store = item.callspec.params.get("any_store") if hasattr(item, "callspec") else None
    return store in ("milvus", "postgresql in shards") and not item.nodeid.startswith("tests/store/test_common.py")


LONGEST = ("tests/test_hostile.py", "tests/test_docs.py", "tests/walks/", "tests/integrations/test_ray.py",
           "tests/training/test_processes.py", "tests/searching/test_processes.py")  # fmt: skip


def _place(item: pytest.Item) -> int:
    """Milvus's tests first, whose server need not run beside all the others; then long ones, so that none is last."""
    return 0 if _asks_milvus(item) else 1 if item.nodeid.startswith(LONGEST) else 2


def _asks_milvus(item: pytest.Item) -> bool:
    return any("milvus" in marker.args for marker in item.iter_markers("needs"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("device"):
        if not helpers.has_device(marker.args[0]):
            pytest.skip(NOT_HERE + marker.args[0])
    expected = [what for marker in item.iter_markers("needs") for what in marker.args]
    if item.get_closest_marker("browser"):
        expected = ["chromium", *expected]
    for what in expected:
        if not helpers.has(what):
            here = what != "cluster" or helpers.has_namespaces()
            pytest.skip((NOT_RUN if here else NOT_HERE) + what)


def _not_run(config: pytest.Config) -> tuple[Counter[str], Counter[str]]:
    """What was skipped and why, counted: what is missing, and the devices that are not here."""
    missing: Counter[str] = Counter()
    absent: Counter[str] = Counter()
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if reason.startswith(NOT_HERE):
            absent[reason.removeprefix(NOT_HERE)] += 1
        else:
            missing[reason.removeprefix(NOT_RUN)] += 1
    return missing, absent


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return
    missing, _ = _not_run(session.config)
    if missing and exitstatus == pytest.ExitCode.OK and session.config.getoption("--nothing-missing"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or reporter is None or config.getoption("collectonly", False):
        return
    missing, absent = _not_run(config)
    for head, matches in ((NOT_HERE, absent), (NOT_RUN, missing)):
        parts = [f"{what} ({count} test{'s' * (count > 1)})" for what, count in sorted(matches.items())]
        if parts or head == NOT_RUN:
            reporter.write_line(head + (", ".join(parts) or "nothing"))


@pytest.fixture(scope="session", autouse=True)
def _shared_home() -> Iterator[None]:
    """Caches are shared by the tests of one session: compiling a model once is enough."""
    with tempfile.TemporaryDirectory(prefix="lookalike-home-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", folder)
        # It takes a second for every fresh home; `tests/searching/test_start.py` does it in processes of its own.
        patch.setattr("lookalike.searching.index_folder.Index.convert_model", lambda _: None)
        _block_network(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _copied_processes() -> Iterator[None]:
    """Processes that work together begin as copies, but in a few tests of `tests/core/test_distributed.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_run_workers", helpers.run_copies)
        yield


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh LOOKALIKE_HOME, for tests that count what is in it."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LOOKALIKE_HOME", str(folder))
    return folder


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., helpers.Answer]]:
    """`cli("search", "x.jpg")` runs a command in this process and gives what it answered."""
    from lookalike.cli.app import run
    from lookalike.core import progress

    def call(*words: object) -> helpers.Answer:
        capfd.readouterr()
        code = run([str(word) for word in words])
        matches = capfd.readouterr()
        return helpers.Answer(int(code), matches.out, matches.err)

    yield call
    progress.set_level(1)


@pytest.fixture
def processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages and estimates count processor time, which is that of an idle machine whatever else runs here."""
    clock = SimpleNamespace(monotonic=time.process_time, perf_counter=time.process_time)
    for module in ("training.estimate", "adaptation.candidate", "adaptation.task"):
        monkeypatch.setattr(f"lookalike.{module}.time", clock)


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`./runs` and other relative paths land in the test's own folder."""
    monkeypatch.chdir(tmp_path)


def _block_network(patch: pytest.MonkeyPatch) -> None:
    """Only this machine may be talked to: a test that wants the internet is a bug."""

    def guarded(name: str) -> Any:
        real = getattr(socket.socket, name)

        def call(self: socket.socket, address: Any) -> Any:
            inet = self.family in (socket.AF_INET, socket.AF_INET6)
            if inet and address[0] not in ("localhost", "::1") and not str(address[0]).startswith("127."):
                raise OSError(f"tests do not use the network, but {address[0]} was called")
            return real(self, address)

        return call

    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, guarded(name))


@pytest.fixture(scope="session")
def _session(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """What all test processes of a session share: a folder, and the number of the process that ends last."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent, os.getppid()) if hasattr(request.config, "workerinput") else (base, os.getpid())


@pytest.fixture(scope="session")
def session_folder(_session: tuple[Path, int]) -> Path:
    """A folder that all test processes of a session share."""
    return _session[0]


@pytest.fixture(scope="session")
def milvus(_session: tuple[Path, int]) -> Iterator[str]:
    """The address of a real Milvus server, one for all test processes of a session; mark: `needs("milvus")`."""
    from tests import milvus_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_MILVUS_TOKEN", f"root:{milvus_server.PASSWORD}")
        yield milvus_server.shared(*_session)


@pytest.fixture(autouse=True)
def _milvus_ends(_session: tuple[Path, int], request: pytest.FixtureRequest) -> Iterator[None]:
    """With the last test that asks for it, in whichever test process: it is never quite idle."""
    yield
    if _asks_milvus(request.node):
        from tests import milvus_server

        milvus_server.count_down(_session[0], sum(map(_asks_milvus, request.session.items)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real PostgreSQL server with pgvector, one a test process; mark: `needs("postgres")`."""
    from tests import postgres_server

    server = postgres_server.Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", postgres_server.PASSWORD)
        yield server
    server.close()


@pytest.fixture(scope="session")
def bucket() -> Iterator[Any]:
    """A real S3 server, one a test process, found by the usual variables; mark: `needs("s3")`."""
    from tests import bucket_server

    server = bucket_server.Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.close()


SERVERS = {"milvus": "milvus", "postgresql": "postgres", "postgresql in shards": "postgres"}


@pytest.fixture(
    params=["local", *(pytest.param(name, marks=pytest.mark.needs(what)) for name, what in SERVERS.items())]
)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """What a user calls a store: each of them in turn."""
    if request.param == "local":
        yield request.param
        return
    postgres = request.param.startswith("postgresql")
    with pytest.MonkeyPatch.context() as patch:
        if request.param.endswith("in shards"):
            patch.setattr("lookalike.store.shards.SHARD_ROWS", 60)
        yield request.getfixturevalue("postgres_server").address if postgres else request.getfixturevalue("milvus")
    helpers.forget_stores(tmp_path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright; give the test the mark `browser`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=helpers.chromium(), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def _window(browser: Any) -> Iterator[Any]:
    """What the pages of a module share: files that the browser has fetched once."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture
def page(_window: Any) -> Iterator[Any]:
    """A fresh page, without settings of others; an error on its console fails the test."""
    page = _window.new_page()
    page.add_init_script("try { sessionStorage.ours || (localStorage.clear(), sessionStorage.ours = 1) } catch {}")
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    _window.clear_cookies()
    assert not errors, f"the page's console shows errors: {errors}"


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, to run by `page.evaluate`: a strict policy blocks script tags."""
    return helpers.axe_source()
