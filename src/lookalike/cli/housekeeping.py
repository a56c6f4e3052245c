"""Commands without a Python function of their own: recipes, cache and API keys."""

from __future__ import annotations

import time

import lookalike
from lookalike.cli.output import Answer, confirm, link, rows, table
from lookalike.core import artifacts, folders
from lookalike.core.errors import choose
from lookalike.core.files import format_bytes
from lookalike.service.auth import KeyStore

NEXT = {
    "train": "lookalike train FOLDER --recipe {}",
    "adapt": "lookalike adapt MODEL --target FOLDER --config {}",
}


def list_recipes() -> Answer:
    """List the recipes."""
    recipes = lookalike.recipes()
    lines: list[str] = []
    for command, following in NEXT.items():
        lines += rows(*((recipe["name"], recipe["about"]) for recipe in recipes if recipe["command"] == command))
        lines += [f"Next: {following.format('NAME')}", ""]
    return Answer(recipes, lines[:-1], always=True)


def show_recipe(*, name: str) -> Answer:
    """Print a recipe.

    Args:
        name: The recipe's name.
    """
    text = lookalike.recipes(show=name)
    return Answer({"name": name, "text": text}, text.rstrip().splitlines(), always=True)


def copy_recipe(*, name: str, to: str | None = None) -> Answer:
    """Copy a recipe to a file, to change it.

    Args:
        name: The recipe's name.
        to: The file to write; `NAME.yaml` in the current folder by default.
    """
    path = lookalike.recipes(copy=name, to=to)
    command = next(recipe["command"] for recipe in lookalike.recipes() if recipe["name"] == name)
    return Answer({"name": name, "path": path}, rows(("Copied", link(path)), ("Next", NEXT[command].format(path))))


def list_cache(*, kind: str | None = None) -> Answer:
    """List cached data by kind.

    Args:
        kind: Only this kind: pixels, features, runtimes and so on.
    """
    entries = [row for row in artifacts.entries() if kind in (None, row[0])]
    body = []
    for name in sorted({row[0] for row in entries}):
        own = [row for row in entries if row[0] == name]
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(row[3] for row in own)))
        body.append((name, f"{len(own):,}", format_bytes(sum(row[2] for row in own)), used))
    total = sum(row[2] for row in entries)
    lines = table(("kind", "entries", "size", "last used"), body) if body else []
    lines.append(f"{format_bytes(total)} of at most {format_bytes(artifacts.limit())} in {folders.cache_home()}")
    document = {
        "folder": folders.cache_home(),
        "bytes": total,
        "limit": artifacts.limit(),
        "entries": [{"kind": k, "name": e.name, "bytes": n, "used": round(at)} for k, e, n, at in entries],
    }
    return Answer(document, lines, always=True)


def clear_cache(*, kind: str | None = None, dry_run: bool = False, yes: bool = False) -> Answer:
    """Delete cached data; it is computed again when needed.

    Indexes and runs are not touched.

    Args:
        kind: Only this kind: pixels, features, runtimes and so on.
        dry_run: Print what would be deleted, and delete nothing.
        yes: Do not ask for confirmation.
    """
    entries = artifacts.entries()
    if kind is not None:
        choose(kind, {row[0] for row in entries} or {"none"}, "a kind that is cached")
    size = sum(row[2] for row in entries if kind in (None, row[0]))
    if dry_run:
        return Answer({"freed": 0, "would_free": size}, [f"{format_bytes(size)} would be freed."])
    confirm(f"Delete {format_bytes(size)} of caches in {folders.cache_home()}?", yes=yes or size == 0)
    freed = artifacts.clear(kind)
    return Answer({"freed": freed}, [f"{format_bytes(freed)} freed."])


def new_key(*, name: str, write: bool = False) -> Answer:
    """Create an API key; it is shown once.

    Args:
        name: A name to recognize it by, as `laptop`.
        write: Allow changes, not only reading.
    """
    key, secret = KeyStore().create(name, "write" if write else "read")
    lines = [secret, f"Copy it now; it is not shown again. It may {'read and write' if write else 'read'}."]
    return Answer(key.public() | {"key": secret}, lines, always=True)


def list_keys() -> Answer:
    """List the API keys; their secrets are not stored."""
    keys = KeyStore().list()
    body = [(k.id, k.name, k.rights, k.created[:16].replace("T", " "), k.used[:16].replace("T", " ")) for k in keys]
    lines = table(("id", "name", "rights", "created", "last used"), body) if body else ["There are no keys."]
    return Answer({"keys": [key.public() for key in keys]}, lines, always=True)


def revoke_key(*, key: str) -> Answer:
    """Revoke an API key; a running service refuses it from now on.

    Args:
        key: Its id or its name.
    """
    revoked = KeyStore().revoke(key)
    return Answer({"revoked": revoked.id}, [f"The key `{revoked.name}` ({revoked.id}) is revoked."])
