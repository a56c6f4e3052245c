"""An option of a command and a setting of the memory stand in one source file: a copy of the package shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import ROOT

PACKAGE = ROOT / "src" / "lookalike"
# Of each addition: its file, the lines it goes before, and the lines.
OPTION = (
    "training/train_command.py",
    ("    dry_run: bool = False,\n", "        dry_run: Only print the settings"),
    ("    halflife: float = 2.5,\n", "        halflife: Steps after which a row counts half.\n"),
)
SETTING = (
    "memory/cross_batch.py",
    ("    batch_loss: bool = False\n",),
    ('    halflife: PositiveFloat = 2.5\n    """Steps after which a row counts half."""\n',),
)
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
from docs import generate
from lookalike.core.settings import parse_set
from lookalike.memory import CrossBatchMemory
from lookalike.training import resolve
plans = {}
for method in ("xbm", "xbn", "axbn"):
    layers = (parse_set(["memory.halflife=7"]), {"method": {"memory": {"halflife": 7}}})
    plans[method] = [resolve({"method": method}, layer).method.own()["memory"]["halflife"] for layer in layers]
print(json.dumps({
    "tables": generate.method_settings().count("memory.halflife` | `2.5` | Steps after which a row counts half."),
    "plans": plans,
    "default": CrossBatchMemory(None, 4).settings.halflife,
    "argument": CrossBatchMemory(None, 4, halflife=3).settings.halflife,
}))
"""


def changed_copy(root: Path, change: tuple[str, tuple[str, ...], tuple[str, ...]]) -> dict[str, str]:
    """A copy of the package with a change in one file; returns an environment that imports it."""
    name, anchors, additions = change
    shutil.copytree(PACKAGE, root / "lookalike", ignore=shutil.ignore_patterns("__pycache__", "static"))
    text = (PACKAGE / name).read_text(encoding="utf-8")
    for anchor, addition in zip(anchors, additions, strict=True):
        assert anchor in text, f"{name} has no line `{anchor.strip()}`"
        text = text.replace(anchor, addition + anchor, 1)
    (root / "lookalike" / name).write_text(text, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"}


def test_an_option_of_train_touches_one_file(tmp_path: Path, cli: Any) -> None:
    environment = changed_copy(tmp_path / "copy", OPTION)
    command = [sys.executable, "-m", "lookalike", "train"]
    shown = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "--halflife" in shown and "Steps after which a row counts half." in shown
    assert "--halflife" not in cli("train", "--help").out
    wrong = subprocess.run([*command, "--halflife", "soon"], env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("`--halflife` of train is wrong")


def test_a_setting_of_the_memory_touches_one_file(tmp_path: Path) -> None:
    """Names, default and text of a new setting reach the methods, Python, recipes and the table of the documents."""
    environment = changed_copy(tmp_path / "copy", SETTING)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(ROOT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts == {
        "tables": 3,
        "plans": {"xbm": [7, 7], "xbn": [7, 7], "axbn": [7, 7]},
        "default": 2.5,
        "argument": 3.0,
    }


@pytest.mark.parametrize("method", ["xbm", "xbn", "axbn"])
def test_names_defaults_and_texts_of_the_memory_agree(method: str) -> None:
    """The settings of a method's memory are those of `CrossBatchMemory`; only documented defaults differ."""
    from lookalike import methods
    from lookalike.memory.cross_batch import MemorySettings

    own = methods.find(method).Settings.model_fields["memory"].annotation.model_fields
    for name, field in MemorySettings.model_fields.items():
        assert own[name].description and field.description
        if (name, method) in {("drift", "xbn"), ("drift", "axbn"), ("r", "axbn")}:
            continue
        assert own[name].default == field.default and own[name].description == field.description, name
    assert set(own) - set(MemorySettings.model_fields) == {"size", "warmup_steps", "fill"}
