"""What `make check` and a container rest on: the audit of dependencies, and a Dockerfile that runs as nobody."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import ROOT


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tools/audit.py` with a pip-audit that answers what it is given."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*packages: dict[str, Any]) -> int:
        answer = SimpleNamespace(stdout=json.dumps({"dependencies": packages}))
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=lambda *_, **__: answer, TimeoutExpired=OSError))
        return int(module.main())

    return run


GOOD = {"name": "a", "version": "1", "vulns": []}
HOLE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
SKIPPED = {"name": "c", "skip_reason": "its service did not answer"}


@pytest.mark.parametrize(
    ("packages", "code", "message"),
    [
        ([GOOD, GOOD], 0, "2 of 2 packages audited, 0 not, 0 known holes"),
        ([GOOD, SKIPPED], 0, "1 of 2 packages audited, 1 not, 0 known holes"),
        ([GOOD, HOLE, SKIPPED], 1, "2 of 3 packages audited, 1 not, 1 known holes\n  b 2 PYSEC-1"),
        ([SKIPPED, SKIPPED], 0, "not audited, its service answered for none of 2 packages"),
    ],
)
def test_what_could_not_be_audited_is_counted(
    audit: Any, packages: list[Any], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(*packages) == code
    assert capsys.readouterr().out.strip() == f"pip-audit: {message}"


def test_code_and_dependencies_are_audited_by_make_check() -> None:
    made = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"bandit .*--recursive .*src", made) and "tools/audit.py" in made


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the last stage, in order."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    start = max(number for number, (word, *_) in enumerate(lines) if word == "FROM")
    return [(word, rest) for word, rest in lines[start:]]


def test_the_container_runs_as_nobody_in_particular() -> None:
    words = dockerfile()
    users = [place for place, (word, _) in enumerate(words) if word == "USER"]
    assert len(users) == 1 and int(words[users[0]][1]) >= 1000, "by number, which a cluster can check"
    assert not {word for word, _ in words[users[0] :]} & {"RUN", "COPY", "ADD"}, "nothing is made after it"
    copied = [rest for word, rest in words if word in ("COPY", "ADD")]
    assert copied == ["--from=build /venv /venv"], "neither sources nor anything of this machine"
    assert ("ENTRYPOINT", '["lookalike"]') in words and ("CMD", '["serve", "--host", "0.0.0.0"]') in words


@pytest.mark.slow
@pytest.mark.needs("program:docker")
def test_the_container_is_built_and_answers() -> None:
    subprocess.run(["docker", "build", "--quiet", "--tag", "lookalike-test", "."], cwd=ROOT, check=True)
    who = subprocess.run(
        ["docker", "run", "--rm", "--entrypoint", "id", "lookalike-test", "-u"], capture_output=True, text=True
    )
    assert int(who.stdout) >= 1000
    done = subprocess.run(["docker", "run", "--rm", "lookalike-test", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip()
