"""Adapt a model to new images, lose the process in the middle, go on, and decide."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from lookalike.models import Embedder
from tests import helpers
from tests.walks.terminal import Terminal

COMMAND = (
    "lookalike adapt model --target new --pool pool --out runs/adapted "
    "--set batch_size=8 --set epochs=3 --set num_views=1 --set bank.size=64"
)


def killed_at_step(step: int, words: list[str]) -> None:
    """Run a command that is killed before a step of its training loop."""
    from lookalike.cli.app import run
    from lookalike.training import loop

    real, count = loop.Loop.take_step, [0]

    def strike(self: loop.Loop, *arguments: object) -> object:
        count[0] += 1
        if count[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments)

    loop.Loop.take_step = strike  # type: ignore[method-assign]
    run(words)


def test_adapt_and_resume(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32)
    model.set_random_head(8)
    model.save_pretrained(tmp_path / "model")
    helpers.make_images(tmp_path / "new", classes=4, images=10, seed=3, width=40, height=32)
    helpers.make_images(tmp_path / "pool", classes=6, images=10, seed=4, width=40, height=32)
    ended = helpers.apart(killed_at_step, 5, COMMAND.split()[1:])
    assert ended.code == -signal.SIGKILL, ended.err
    terminal(
        "lookalike adapt --resume runs/adapted",
        """
        ! Resuming before the first step; features and vectors that are cached are not computed again.
        ! Warning: The adapted model cannot be promoted without labels: 12 images are held out to judge by, and 100 …
        …
        ! The candidate is version 1: lookalike promote …runs/adapted --judge FOLDER
        Kept the old model: 12 held-out images are too few (100 are needed)…
        …
        Method          t3ar: …
        Classes         28 images are too few to cluster
        Learned from    28 images, judged by 12 others
        Evidence        MAP@R by the expert's clusters, change {}; nearest images that stay {}
        Pool            {} of 60 images used
        …
        Receipts        runs/adapted/versions/1/receipts.json
        Use it anyway   lookalike promote runs/adapted
        Report          lookalike report runs/adapted
        """,
    )
    terminal(
        "lookalike adapt --resume runs/adapted",
        "! Nothing was left unfinished in `…runs/adapted`; there is nothing to resume.",
        code=2,
    )
    terminal(
        "lookalike promote runs/adapted",
        """
        Promoted the adapted model (your decision).
        Version   1
        Undo      lookalike rollback runs/adapted
        """,
    )
    terminal("lookalike rollback runs/adapted", "adapted uses the base model again, in place of version 1.")
