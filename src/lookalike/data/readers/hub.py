"""Data sets of the Hugging Face Hub by id: their files are downloaded once, and then read like any folder.

Nothing is asked of the Hub unless the user names an id, as `owner/name` or `hf://datasets/owner/name`.
"""

from __future__ import annotations

import re
from pathlib import Path

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.progress import say

PREFIX = "hf://datasets/"
_PATTERN = re.compile(r"([\w][\w.-]*/[\w][\w.-]*)(?:@([\w./-]+?))?((?:/[\w][\w.-]*)*)")
_KINDS = ("parquet", "csv", "tsv", "jsonl", "txt", "tar", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")


def names_hub(source: str) -> bool:
    """Return whether a source is the id of a data set: marked as one, or two words of which the first is no folder."""
    if source.startswith(PREFIX):
        return True
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source) is not None and not Path(source).parent.exists()


def download(source: str, *, progress: bool = False) -> tuple[Path, str]:
    """Return the folder with the files of a data set, downloaded if they are not there, and the data set's name.

    The source is `owner/name` or `hf://datasets/owner/name@revision/folder`.
    """
    import huggingface_hub
    from huggingface_hub import errors

    if not (match := _PATTERN.fullmatch(source.removeprefix(PREFIX).rstrip("/"))):
        raise LookalikeError(f"`{source}` is no data set of the Hub: write `{PREFIX}OWNER/NAME`.")
    repo, revision, inside = match[1], match[2], match[3].strip("/")
    base = folders.cache("hub") / f"{repo.replace('/', '--')}@{(revision or 'main').replace('/', '-')}"
    folder, name = base / inside, repo.rpartition("/")[2]
    stamp = base / f".lookalike-{inside.replace('/', '-')}.json"
    try:
        about = huggingface_hub.HfApi().dataset_info(repo, revision=revision, timeout=30)
        if stamp.exists() and read_json(stamp, "download").get("commit") == about.sha:
            return folder, name
        if progress:
            say(f"Fetching the data set {repo} from {huggingface_hub.constants.ENDPOINT}.")
        patterns = [f"{inside}/*.{kind}" if inside else f"*.{kind}" for kind in (*_KINDS, *map(str.upper, _KINDS))]
        huggingface_hub.snapshot_download(
            repo, repo_type="dataset", revision=about.sha, local_dir=base, allow_patterns=patterns
        )
        listed = {base / sibling.rfilename for sibling in about.siblings or ()}
        for file in folder.rglob("[!.]*.*"):  # of commits before
            if file.is_file() and file not in listed and file.relative_to(base).parts[0] != ".cache":
                file.unlink()
    except errors.GatedRepoError:
        raise LookalikeError(
            f"The data set `{repo}` is gated: ask for access on its page, then log in with `hf auth login`."
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        at = f" at `{revision}`" if revision else ""
        raise LookalikeError(
            f"`{source}` is neither a folder or table here nor a data set of the Hub{at} (a private one needs "
            "`hf auth login`)."
        ) from None
    except (OSError, errors.HTTPError) as error:  # the latter is of the HTTP library that the version uses
        if stamp.exists():
            say(f"The Hub cannot be reached: the data set {repo} is taken as it was fetched before.")
            return folder, name
        raise LookalikeError(
            f"`{source}` does not exist here, and the Hub cannot be reached to look for a data set of that name "
            f"({type(error).__name__})."
        ) from None
    if not folder.is_dir() or all(entry.name.startswith(".") for entry in folder.iterdir()):
        where = inside or "/"
        raise LookalikeError(f"The data set `{repo}` holds no images, tables of images or tar shards in `{where}`.")
    write_json(stamp, {"repo": repo, "commit": about.sha})
    return folder, name
