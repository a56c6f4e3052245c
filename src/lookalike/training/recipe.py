"""Recipes: named settings in YAML files, to view, copy and change.

A recipe may extend another one and state only what differs::

    # DeiT-S instead of ViT-S/16.
    extends: dmcac_vit_cub
    model:
      name: deit_small_distilled_patch16_224.fb_in1k
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import write_text
from lookalike.core.settings import merge, read_yaml
from lookalike.training.settings import method_name

DEFAULT = "default"
Command = Literal["train", "adapt"]
"""The command a recipe is for; `pretrain` and `shift` use those of `train`."""
COMMANDS: tuple[Command, ...] = ("train", "adapt")


def _folder(command: Command) -> Path:
    configs = Path(str(resources.files("lookalike") / "configs"))
    return configs if command == "train" else configs / command


def names(command: Command = "train") -> list[str]:
    """Names of the built-in recipes of a command, the default first."""
    return sorted((path.stem for path in _folder(command).glob("*.yaml")), key=lambda name: (name != DEFAULT, name))


def names_for_adapt() -> list[str]:
    """Names of the built-in recipes of `adapt`."""
    return names("adapt")


def all_recipes() -> dict[str, Command]:
    """All built-in recipes with the command each is for."""
    return {name: command for command in COMMANDS for name in names(command)}


def text(name: str) -> str:
    """The text of a built-in recipe, with its comments."""
    choose(name, all_recipes(), "a recipe")
    return (_folder(all_recipes()[name]) / f"{name}.yaml").read_text(encoding="utf-8")


def load(name_or_path: str | Path, command: Command = "train", seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Load the settings of a built-in recipe or a YAML file, merged over those it extends; `seen` extend this one."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        choose(str(name_or_path), names(command), "a recipe (a file of yours ends in .yaml)")
        path = _folder(command) / f"{name_or_path}.yaml"
    elif seen and not path.is_absolute():  # a file extends another one next to it
        path = seen[-1].parent / path
    if path.absolute() in seen:
        chain = " → ".join(step.stem for step in (*seen, path))
        raise LookalikeError(f"The recipe `{seen[0].stem}` extends itself ({chain}); remove one `extends`.")
    own = read_yaml(path, "recipe")
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise LookalikeError(f"`extends` in the recipe `{path}` must be the name of one recipe or a YAML file.")
    base = load(parent, command, (*seen, path.absolute()))
    if method_name(own) not in (None, method_name(base)):  # settings of another method do not apply
        base = {name: value for name, value in base.items() if name not in ("method", "memory")}
    elif isinstance(own.get("method"), str):  # the same method: keep its settings
        del own["method"]
    return merge(base, own)


def about(name: str) -> str:
    """The first comment line of a built-in recipe."""
    first = text(name).splitlines()[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def recipes(*, show: str | None = None, copy: str | None = None, to: str | Path | None = None) -> Any:
    """List the recipes, show one, or copy one to a file.

    Args:
        show: Name of the recipe whose text is returned.
        copy: Name of the recipe that is copied.
        to: File to copy to; `NAME.yaml` in the current folder by default.

    Returns:
        A list of `{name, about, command}`; with `show` the text of the recipe; with `copy` the path of the copy.

    Raises:
        LookalikeError: If there is no such recipe, or the file to copy to exists.

    Example:
        >>> [recipe["command"] for recipe in la.recipes() if recipe["name"] in ("xbn_sop", "tent")]
        ['train', 'adapt']
        >>> la.recipes(copy="default", to="mine.yaml").name
        'mine.yaml'
    """
    if copy is not None:
        target = Path(to) if to is not None else Path(f"{copy}.yaml")
        content = text(copy)
        if target.exists():
            raise LookalikeError(f"`{target}` already exists; choose another file with --to.")
        write_text(target, content)
        return target
    if show is not None:
        return text(show)
    return [{"name": name, "about": about(name), "command": command} for name, command in all_recipes().items()]
