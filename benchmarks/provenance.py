"""Where the data of a measured figure are, and when and how it was measured."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.imports import package_versions


def data_folder(data: str | Path | None) -> Path | None:
    """`--data`, else `LOOKALIKE_DATA`; None when neither is given."""
    chosen = data or os.environ.get("LOOKALIKE_DATA")
    return Path(chosen).expanduser().absolute() if chosen else None


def data_set(data: Path | None, name: str, who: str) -> Path:
    """The folder of the data set `name` below `data`."""
    if data is None:
        raise LookalikeError(f"{who} needs the data set `{name}`: give the folder that holds it with --data.")
    if not (data / name).is_dir():
        raise LookalikeError(f"{who} needs the data set `{name}`, but there is no folder `{data / name}`.")
    return data / name


def command() -> str:
    """The command that is running, without the folders of this machine."""
    program = Path(sys.argv[0])
    if program.stem != "__main__" or program.parent.parent.name != "benchmarks":
        return "python"
    words = ["python", "-m", f"benchmarks.{program.parent.name}"]
    arguments = iter(sys.argv[1:])
    for word in arguments:
        if word == "--data":
            next(arguments, None)
            words += ["--data", "DATA"]
        else:
            words.append("--data=DATA" if word.startswith("--data=") else word)
    return shlex.join(words)


def provenance() -> dict[str, Any]:
    return {"when": time.strftime("%Y-%m-%d"), "command": command(), "versions": package_versions()}
