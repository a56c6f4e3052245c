"""The Hugging Face Hub: models by their id, and `push_to_hub`.

Nothing is asked of the Hub unless the user names a model of it, and nothing that is on this machine already. The
variables of huggingface_hub apply: HF_ENDPOINT, HF_HOME, HF_TOKEN, and HF_HUB_OFFLINE=1, which turns traffic off.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.imports import offline

PREFIX = "hf-hub:"
ID = re.compile(r"[\w][\w.-]*/[\w.-]*\w(@[\w./-]+)?")
CONFIGS = ["*.json", "README.md"]
WEIGHTS = (["*.safetensors"], ["*pytorch_model*.bin"])  # pickles of tensors only where there is nothing better


def is_id(name: object) -> bool:
    """Whether a name can only be a model of the Hub: `hf-hub:…`, or `owner/name` where `owner` is no folder here."""
    if not isinstance(name, str):
        return False
    plain = name.removeprefix(PREFIX)
    return bool(ID.fullmatch(plain)) and (plain != name or not Path(plain.partition("/")[0]).exists())


def fetch(name: str, is_whole: Callable[[Path], bool]) -> Path:
    """The folder of a model of the Hub: from the cache if it is whole there, else downloaded.

    Args:
        name: `owner/name`, with `hf-hub:` before it and `@revision` behind it if wanted.
        is_whole: Whether a folder has everything that is needed.

    Raises:
        LookalikeError: If there is no such model, it is gated, or the Hub cannot be reached.
    """
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    if (folder := cached(repository, revision)) and is_whole(folder):
        return folder
    if offline(unset=False):
        raise LookalikeError(
            f"The model `{repository}` is not on this machine, and HF_HUB_OFFLINE is set: unset it to download the "
            "model, or give a folder that holds it."
        )
    from huggingface_hub import snapshot_download

    def load(patterns: list[str]) -> Path:
        where = endpoint()
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=patterns, endpoint=where))

    with explained(repository):
        made = load([*CONFIGS, *WEIGHTS[0]])
        return made if is_whole(made) else load([*CONFIGS, *WEIGHTS[1]])


def cached(repository: str, revision: str = "") -> Path | None:
    """The folder of a model of the Hub in the local cache, without asking the Hub."""
    from huggingface_hub import try_to_load_from_cache

    for file in ("config.json", "modules.json", "open_clip_config.json"):
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def push(folder: Path, repository: str, *, private: bool, message: str) -> str:
    """Upload a model folder; returns the address of the commit."""
    if not ID.fullmatch(repository) or "@" in repository:
        raise LookalikeError(f"`{repository}` is not the name of a repository: write `owner/name`.")
    if offline(unset=False):
        raise LookalikeError(f"`{repository}` cannot be written, because HF_HUB_OFFLINE is set: unset it.")
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint())
    with explained(repository, unreachable=f"`{repository}` cannot be written: the Hub cannot be reached."):
        api.create_repo(repository, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message))


def endpoint() -> str | None:
    """The address of the Hub, if the user set another one."""
    return os.environ.get("HF_ENDPOINT") or None


@contextlib.contextmanager
def explained(repository: str, unreachable: str = "") -> Iterator[None]:
    """Turn errors of the Hub into one sentence."""
    from huggingface_hub import errors

    login = "log in with `hf auth login` or set HF_TOKEN"
    reasons: dict[tuple[Any, ...], str] = {
        (errors.GatedRepoError,): f"`{repository}` is gated: accept its terms on its page of the Hub, then {login}.",
        (errors.RevisionNotFoundError,): f"`{repository}` has no such revision on the Hub.",
        (errors.RepositoryNotFoundError,): f"There is no model `{repository}`, neither a folder here nor on the Hub; "
        f"if it is private, {login}.",
        (errors.HfHubHTTPError,): f"The Hub refused `{repository}`: {login} if it needs that, or try again later.",
        (errors.HTTPError, OSError): unreachable
        or f"`{repository}` is not on this machine, and the Hub cannot be reached: check the network, or give a folder "
        "that holds the model.",
    }
    try:
        yield
    except tuple(kind for kinds in reasons for kind in kinds) as error:
        raise LookalikeError(next(text for kinds, text in reasons.items() if isinstance(error, kinds))) from error
