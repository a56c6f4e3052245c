"""Write the generated parts of the site: what the code states is not typed again.

Everything goes to docs/_generated, which git ignores; pages include it.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, body))


def commands() -> str:
    """List every command, in the order of the help."""
    from lookalike.cli.app import summary
    from lookalike.cli.commands import PANELS

    rows = [(f"`{name}`", summary(name)) for names in PANELS.values() for name in names]
    return table(("command", "what it does"), rows)


def command_reference() -> str:
    """Describe every command with its arguments and options."""
    from lookalike.cli.commands import COMMANDS
    from lookalike.cli.generate import build, read_signature

    parts = []
    for name, command in COMMANDS.items():
        signature, built = read_signature(command.function), build(name, command)
        rows = []
        for param in built.params:
            if param.name in ("help", "json", "quiet", "verbose"):
                continue
            names = ", ".join(f"`{option}`" for option in (*param.opts, *param.secondary_opts) if option[0] == "-")
            rows.append((names or f"`{param.metavar or param.name.upper()}`", param.help or ""))
        options = table(("argument or option", "meaning"), rows) if rows else ""
        parts.append(f"## lookalike {name}\n\n{signature.description}\n\n{options}")
    return "\n".join(parts)


def exit_codes() -> str:
    """List the exit codes; the remarks are the comments in `core/errors.py`."""
    from lookalike.core.errors import Exit

    remarks = dict(re.findall(r"^    (\w+) = \d+(?:  # (.*))?$", inspect.getsource(Exit), re.M))
    return table(("code", "meaning"), [(int(code), remarks[code.name] or "success") for code in Exit])


def _fields(model: Any, prefix: str = "") -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if hasattr(type(default), "model_fields"):
            rows += _fields(type(default), f"{prefix}{name}.")
        else:
            shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
            rows.append((f"`{prefix}{name}`", f"`{shown}`" if shown else "", field.description or ""))
    return rows


def _settings(model: Any, prefix: str = "") -> str:
    rows = _fields(model, prefix)
    return table(("setting", "default", "meaning"), rows) if rows else "No settings of its own.\n"


def train_settings() -> str:
    """List the settings of a training run."""
    from lookalike.training import TrainSettings

    return _settings(TrainSettings)


def adapt_settings() -> str:
    """List the settings of `adapt`."""
    from lookalike.adaptation import AdaptSettings

    return _settings(AdaptSettings)


def method_settings() -> str:
    """List the settings of every training method."""
    from lookalike import methods

    parts = []
    for name in methods.names():
        method = methods.find(name)
        about = (inspect.getdoc(method) or "").split("\n\n")[0]
        parts.append(f"## `{name}`\n\n{about}\n\n{_settings(method.Settings, 'method.')}")
    return "\n".join(parts)


def model_families() -> str:
    """List the model families; tests/models/test_families.py runs one suite over the same list."""
    path = Path(__file__).resolve().parents[1] / "tests" / "models" / "families.py"
    spec = importlib.util.spec_from_file_location("model_families", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [(one.name, one.source, one.preprocessing, one.pooling) for one in module.FAMILIES.values()]
    return table(("models", "written by", "preprocessing", "own pooling"), rows)


def data_sources() -> str:
    """List the kinds of data; tests/data/test_kinds.py runs one suite over them all."""
    from lookalike.data.readers import SOURCES

    return table(("source", "how it is read"), SOURCES.values())


PAGES = {
    "model-families": model_families,
    "data-sources": data_sources,
    "commands": commands,
    "command-reference": command_reference,
    "exit-codes": exit_codes,
    "train-settings": train_settings,
    "adapt-settings": adapt_settings,
    "method-settings": method_settings,
}


def write_pages(folder: Path) -> None:
    """Write every part whose text has changed."""
    folder.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        path, text = folder / f"{name}.md", make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
