"""Examples in docstrings are run; every public name says what its arguments are."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import itertools
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike.cli.commands import COMMANDS
from tests.helpers import ROOT, make_images

SOURCE = ROOT / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in (SOURCE / "lookalike").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Path) -> None:
    import lookalike as la

    module = importlib.import_module(name)
    make_images(tmp_path / "photos")
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        torch.manual_seed(0)
        test.globs |= {"np": np, "torch": torch, "la": la}
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def _public(package: Path) -> list[str]:
    """The names of a package's `__all__`."""
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


PUBLIC = {
    ".".join(path.parent.relative_to(SOURCE).parts): _public(path)
    for path in sorted((SOURCE / "lookalike").rglob("__init__.py"))
}


@pytest.mark.parametrize("package", PUBLIC)
def test_packages_list_exactly_their_public_names(package: str) -> None:
    module = importlib.import_module(package)
    public = {name for name in PUBLIC[package] if not name.startswith("__")}
    submodules = {name for name, value in vars(module).items() if inspect.ismodule(value)}
    assert {name for name in dir(module) if not name.startswith("_")} - (set() if public else submodules) == public


NAMES = [(package, name) for package, names in PUBLIC.items() for name in names if not name.startswith("__")]


def _sections(value: object) -> set[str]:
    """Sections of a docstring; a summary that begins with `Return` says what is returned."""
    text = inspect.getdoc(value) or ""
    returned = {"Returns"} if text.startswith(("Return ", "Yield ")) else set()
    return set(re.findall(r"^(\w+):$", text, re.M)) | returned


def _fields(value: type) -> list[str]:
    """Names of the fields of a dataclass, a named tuple or settings."""
    if hasattr(value, "model_fields"):
        return list(value.model_fields)
    return list(getattr(value, "_fields", None) or [f.name for f in dataclasses.fields(value) if f.init])


def _undocumented_fields(value: type) -> list[str]:
    """Fields with neither an entry under `Args:` nor a text below them, in the class or one that it inherits."""
    known: set[str] = set()
    for base in value.__mro__:
        if base.__module__.startswith("lookalike"):
            known |= set(re.findall(r"^    (\w+): ", inspect.getdoc(base) or "", re.M))
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
            for node, after in itertools.pairwise(body):
                if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                    known.add(node.target.id)  # type: ignore[union-attr]
    if hasattr(value, "model_fields"):  # settings within settings describe themselves
        known |= {name for name, field in value.model_fields.items() if hasattr(field.annotation, "model_fields")}
    return [name for name in _fields(value) if name not in known and not name.startswith("_")]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_public_names_are_documented(package: str, name: str) -> None:
    """Arguments and results of a function, arguments of a class, fields of a record (ruff's D417 checks each)."""
    value = getattr(importlib.import_module(package), name)
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return
    assert (inspect.getdoc(value) or "").strip(), f"{package}.{name} has no docstring"
    sections = _sections(value)
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        expected = {"Args", "Example"} if signature.parameters else {"Example"}
        expected |= {"Returns"} if signature.return_annotation not in ("None", "NoReturn") else set()
        assert expected <= sections, f"{package}.{name} lacks {expected - sections}"
    elif dataclasses.is_dataclass(value) or hasattr(value, "_fields") or hasattr(value, "model_fields"):
        assert _undocumented_fields(value) == [], f"{package}.{name}"
    elif "__init__" in vars(value) and not issubclass(value, Exception) and not getattr(value, "_is_protocol", False):
        assert {"Args", "Example"} <= sections, f"{package}.{name} has {sorted(sections)}"


@pytest.mark.parametrize("name", PUBLIC["lookalike.losses"])
def test_losses_state_shape_paper_and_example(name: str) -> None:
    value = getattr(importlib.import_module("lookalike.losses"), name)
    if inspect.isclass(value) and issubclass(value, torch.nn.Module):
        assert {"Args", "Shape", "References", "Example"} <= _sections(value)


LOSS_MODULES = [f"lookalike.losses.{path.stem}" for path in sorted((SOURCE / "lookalike" / "losses").glob("[!_]*.py"))]
MEMORY_MODULES = ["lookalike.memory." + name for name in ("cross_batch", "pml_compat", "queue", "retriever", "xbn")]
LOSS_NAME = re.compile(r"(_loss|_terms|_divergence|_labels|_supcon|_carp)$|Loss$")  # the others are parts of losses
MEMORY_NAME = re.compile(r"^CrossBatchMemory$|Rule$|Filter$|Moments$|Retriever$|^xbn_update$")


@pytest.mark.parametrize("name", LOSS_MODULES + MEMORY_MODULES)
def test_modules_of_losses_and_memory_are_documented(name: str) -> None:
    """Every public function and class says what it is; losses and memories state arguments, shape, paper, example."""
    module = importlib.import_module(name)
    public = {n: value for n, value in vars(module).items() if getattr(value, "__module__", "") == name and n[0] != "_"}
    stated = LOSS_NAME if ".losses." in name else MEMORY_NAME
    for one, value in public.items():
        assert (vars(value).get("__doc__") or value.__doc__ or "").strip(), f"{name}.{one} has no docstring"
        if not stated.search(one) or hasattr(value, "_fields") or getattr(value, "_is_protocol", False):
            continue
        expected = {"Example"} if one.endswith("Retriever") else {"Shape", "References", "Example"}
        own = value if inspect.isfunction(value) else value.__init__
        arguments = set(inspect.signature(own).parameters) - {"self", "args", "kwargs"}
        expected |= {"Args"} if arguments else set()
        expected |= {"Returns"} if inspect.isfunction(value) else set()
        assert expected <= _sections(value), f"{name}.{one} lacks {expected - _sections(value)}"


def test_methods_state_paper_example_and_every_setting() -> None:
    from lookalike import methods
    from lookalike.adaptation.methods import AdaContrast, FineTune, Mcc, Shot, Tent
    from lookalike.adaptation.t3ar import T3AR

    for name in methods.BUILT_IN:
        method = methods.find(name)
        assert {"References", "Example"} <= _sections(method), name
        for setting, field in method.Settings.model_fields.items():
            assert field.description, f"{name}.{setting}"
    for baseline in (T3AR, FineTune, Tent, Shot, Mcc, AdaContrast):
        assert {"References", "Example"} <= _sections(baseline), baseline.__name__


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_state_arguments_result_and_example(name: str) -> None:
    function = COMMANDS[name].load()
    signature = inspect.signature(function)
    expected = {"Args"} if signature.parameters else set()
    if not function.__module__.startswith("lookalike.cli."):  # those are no Python functions for users
        expected |= {"Example"} if signature.return_annotation == "None" else {"Example", "Returns"}
    assert expected <= _sections(function), f"{name} lacks {expected - _sections(function)}"
