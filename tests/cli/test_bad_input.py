"""What goes wrong for users: one clear sentence each, nothing half-written left behind, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import ROOT, Answer, make_images

Cli = Callable[..., Answer]
MODEL = ROOT / "tests" / "compat" / "model-1"  # tiny, with random weights


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*"))


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """Indexes are counted here."""


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    return make_images(tmp_path / "birds", classes=4, images=4, width=32, height=32)


def refused(answer: Answer, *words: str) -> None:
    assert answer.code == 2, answer.err
    assert answer.out == ""
    message = answer.err.strip().splitlines()[-1]
    assert message[-1] in ".?", message
    assert all(word in message for word in words), message
    assert "Traceback" not in answer.err


COMMANDS = [
    ["index", "{}", "--model", MODEL],
    ["embed", "{}", "--out", "v.npy", "--model", MODEL],
    ["train", "{}", "--model", MODEL],
    ["evaluate", "{}", "--model", MODEL],
    ["compare", "{}", "--a", MODEL, "--b", MODEL],
    ["demo", "--images", "{}", "--model", MODEL],
]
# Those that take something else than images.
OTHERS = [
    ["report", "{}"],
    ["serve", "{}"],
    ["serve", "--run", "{}"],
    ["export", "--model", "{}", "--out", "m.onnx"],
    ["train", "--resume", "{}"],
]


def filled(words: list[Any], folder: str) -> list[str]:
    return [folder if word == "{}" else str(word) for word in words]


@pytest.mark.parametrize("words", COMMANDS + OTHERS, ids=lambda words: words[0])
def test_a_missing_folder(words: list[Any], cli: Cli, tmp_path: Path) -> None:
    refused(cli(*filled(words, "nowhere")), "nowhere")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("words", COMMANDS + OTHERS, ids=lambda words: words[0])
def test_an_empty_folder(words: list[Any], cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(cli(*filled(words, "empty")), "empty")
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_missing_images_and_indexes_of_a_search(cli: Cli, birds: Path, tmp_path: Path) -> None:
    query = birds / "class-00" / "0.jpg"
    refused(cli("search", query), "There is no index yet")
    refused(cli("search", query, "--index", "nowhere"), "nowhere")
    assert cli("index", birds, "--model", MODEL, "--index", "here").code == 0
    refused(cli("search", "nowhere.jpg", "--index", "here"), "nowhere.jpg")
    (tmp_path / "empty").mkdir()
    refused(cli("search", "empty", "--index", "here"), "empty")
    refused(cli("search", query, "--index", "empty"), "lookalike index empty")
    (tmp_path / "notes.txt").write_text("no image")
    refused(cli("search", "notes.txt", "--index", "here"), "notes.txt", "holds text")
    refused(cli("search", query, "--index", "here", "--less", "notes.txt"), "notes.txt", "holds text")


def test_one_class_only(cli: Cli, tmp_path: Path) -> None:
    make_images(tmp_path / "birds", classes=1, images=6)
    refused(cli("train", "birds", "--model", MODEL), "birds", "1 class")
    refused(cli("evaluate", "birds", "--model", MODEL), "birds", "1 class", "at least 2")
    refused(cli("compare", "birds", "--a", MODEL, "--b", MODEL), "birds", "1 class", "at least 2")
    assert [p.name for p in tmp_path.iterdir()] == ["birds"]
    shown = cli("demo", "--images", "birds", "--model", MODEL)  # nothing to train on, something to search in
    assert shown.code == 0 and "not trained: `birds/` holds 1 class" in shown.out


def test_classes_of_one_image(cli: Cli, tmp_path: Path) -> None:
    make_images(tmp_path / "birds", classes=6, images=1)
    refused(cli("train", "birds", "--model", MODEL), "birds")
    refused(cli("evaluate", "birds", "--model", MODEL), "birds", "at least 2")
    refused(cli("compare", "birds", "--a", MODEL, "--b", MODEL), "birds", "at least 2")
    assert [p.name for p in tmp_path.iterdir()] == ["birds"]
    shown = cli("demo", "--images", "birds", "--model", MODEL)
    assert shown.code == 0 and "not trained: " in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "./nowhere"], "nowhere"),
        (["--model", MODEL, "--device", "gpu"], "cuda, mps or xpu"),
        (["--model", "efficientnet_lite00"], "did you mean `efficientnet_lite0`?"),
    ],
    ids=["model", "device", "name"],
)
def test_a_run_that_cannot_begin_leaves_nothing(words: list[Any], message: str, cli: Cli, birds: Path) -> None:
    before = listing(birds.parent)
    refused(cli("train", birds, *words), message)
    refused(cli("train", birds, *words, "--out", "mine"), message)
    assert listing(birds.parent) == before


def test_a_place_that_is_taken_is_reported_before_the_work(cli: Cli, birds: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for words in COMMANDS[2:5]:
        refused(cli(*filled(words, str(birds)), "--out", "mine"), "mine", "not empty")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_misspelt_settings_methods_and_devices(cli: Cli, birds: Path) -> None:
    refused(cli("train", birds, "--set", "optimizer.momentun=1"), "`optimizer.momentun`", "did you mean `momentum`?")
    refused(cli("train", birds, "--method", "supconn"), "did you mean `supcon`?")
    refused(cli("train", birds, "--recipe", "defaullt"), "did you mean `default`?")
    refused(cli("embed", birds, "--out", "v.npy", "--device", "cudda"), "did you mean `cuda`?")
    refused(cli("embed", birds, "--out", "v.npy", "--model", "efficientnet_lite00"), "efficientnet_lite0")
    assert not Path("runs").exists() and not Path("v.npy").exists()


def test_an_index_of_another_model(cli: Cli, birds: Path, tmp_path: Path) -> None:
    import lookalike as la

    other = la.Embedder.from_pretrained(MODEL, pooling="max")
    other.save_pretrained(tmp_path / "other")
    assert cli("index", birds, "--model", MODEL, "--index", "here").code == 0
    query = birds / "class-00" / "0.jpg"
    refused(cli("search", query, "--index", "here", "--model", tmp_path / "other"), "This index was made with model")
    assert cli("search", query, "--index", "here", "--json").json["hits"][0]["identical"] is True


def test_a_truncated_checkpoint(cli: Cli, birds: Path) -> None:
    words = ["train", birds, "--model", MODEL, "--steps", "2", "--out", "run", "--no-report"]
    assert cli(*words, "--set", "head.embedding_dim=8", "--set", "log.tensorboard=false").code == 0
    last = Path("run/checkpoints/last.pt")
    last.write_bytes(last.read_bytes()[:-2000])
    Path("run/result.json").unlink()  # as if it had been killed before its end
    model = Path("run/model/model.safetensors").read_bytes()
    refused(cli("train", "--resume", "run"), "last.pt", "damaged")
    assert Path("run/model/model.safetensors").read_bytes() == model


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_truncated_model(file: str, cli: Cli, birds: Path, tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    whole = (tmp_path / "model" / file).read_bytes()
    (tmp_path / "model" / file).write_bytes(whole[: len(whole) // 2])
    before = listing(tmp_path)
    for words in COMMANDS:
        words = ["model" if word == MODEL else word for word in words]
        refused(cli(*filled(words, str(birds))), "model", "damaged")
    refused(cli("export", "--model", "model", "--out", "m.onnx"), "model", "damaged")
    assert listing(tmp_path) == before


def test_a_truncated_index(cli: Cli, birds: Path, tmp_path: Path) -> None:
    assert cli("index", birds, "--model", MODEL, "--index", "./here").code == 0
    query = birds / "class-00" / "0.jpg"
    for name in ("lookalike.db", "generations/1/model/model.safetensors", "generations/1/vectors-1.f32"):
        shutil.copytree("here", "cut")
        path = Path("cut", name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        refused(cli("search", query, "--index", "./cut"), "damaged")
        if "model" not in name:
            refused(cli("serve", "./cut"), "damaged")
        shutil.rmtree("cut")


FULL = [
    ["embed", "{}", "--out", "v.npy", "--model", MODEL],
    ["index", "{}", "--model", MODEL],
    [
        "train",
        "{}",
        "--model",
        MODEL,
        "--steps",
        "2",
        "--set",
        "head.embedding_dim=8",
        "--set",
        "log.tensorboard=false",
    ],
    ["evaluate", "{}", "--model", MODEL, "--out", "measured"],
    ["compare", "{}", "--a", MODEL, "--b", MODEL, "--out", "compared"],
    ["export", "--model", MODEL, "--out", "m.onnx"],
]


@pytest.mark.parametrize("words", FULL, ids=lambda words: words[0])
def test_a_full_disk(words: list[Any], cli: Cli, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(cli(*filled(words, str(birds))), "is full")
    left = [p for p in tmp_path.rglob("*") if p.is_file() and birds not in p.parents]
    assert left == []
    assert cli(*filled(words, str(birds))).code == 0, "with space again, it works"


def test_a_full_disk_under_a_report(cli: Cli, birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("evaluate", birds, "--model", MODEL, "--out", "run").code == 0
    assert cli("report", "run").code == 0
    whole = Path("run/report.html").read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused(cli("report", "run", "--no-images"), "is full")
    assert Path("run/report.html").read_bytes() == whole, "the old one is still there"


@pytest.mark.parametrize("words", COMMANDS[1:5], ids=lambda words: words[0])
def test_ctrl_c_leaves_nothing_half_written(
    words: list[Any], cli: Cli, birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.models import Embedder

    def stopped(self: Embedder, *images: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    before = listing(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "encode", stopped)
        patch.setattr(Embedder, "features", stopped)
        answer = cli(*filled(words, str(birds)))
    assert answer.code == 130 and answer.out == ""
    assert answer.err.strip().splitlines()[-1].startswith("Stopped.")
    assert listing(tmp_path) == before


def test_ctrl_c_in_the_middle_of_an_index(
    cli: Cli, birds: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.models import Embedder

    def stopped(self: Embedder, *images: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "encode_crops", stopped)
        answer = cli("index", birds, "--model", MODEL)
    assert answer.code == 130
    assert answer.err.strip().splitlines()[-1].startswith("Stopped.")
    done = cli("index", birds, "--model", MODEL, "--json").json
    assert done["images"] == 16
    assert not list(home.rglob("*.part"))


def test_nothing_is_written_into_the_image_folder(cli: Cli, birds: Path) -> None:
    before = listing(birds)
    for words in COMMANDS[:2] + COMMANDS[3:4]:
        assert cli(*filled(words, str(birds))).code == 0
    assert listing(birds) == before


def test_unreadable_images_are_named_and_the_rest_goes_on(cli: Cli, birds: Path) -> None:
    (birds / "class-00" / "broken.jpg").write_bytes(b"\xff\xd8\xff not an image")
    (birds / "class-01" / "2.jpg").write_bytes((birds / "class-01" / "2.jpg").read_bytes()[:300])
    answer = cli("embed", birds, "--out", "v.npy", "--model", MODEL, "--json")
    assert answer.code == 0
    names = {Path(failure["name"]).name for failure in answer.json["failures"]}
    assert names == {"broken.jpg", "2.jpg"}
    assert len(json.loads(Path("v.json").read_text())["path"]) == 15
    refused(cli("embed", birds, "--out", "w.npy", "--model", MODEL, "--on-error", "raise"), ".jpg")
    assert not Path("w.npy").exists() and not list(Path().glob(".w*"))


def test_control_characters_of_file_names_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    name = "evil\x1b]0;title\x07\x1b[2J.jpg"
    folder = make_images(tmp_path / "birds", classes=1, images=2)
    (folder / name).write_bytes(b"no image")
    for words in (["embed", folder, "--out", "v.npy", "--model", MODEL], ["search", folder / name, "--index", "none"]):
        answer = cli(*words)
        assert "\x1b" not in answer.out + answer.err and "\x07" not in answer.out + answer.err
    assert "evil\\u001b]0;title\\u0007" in cli("embed", folder, "--out", "v.npy", "--model", MODEL).out
    document = cli("embed", folder, "--out", "v.npy", "--model", MODEL, "--json").json
    assert name in document["failures"][0]["name"], "JSON keeps the name"


def test_embed_writes_no_vectors_that_are_not_numbers(cli: Cli, birds: Path, tmp_path: Path) -> None:
    import torch

    from lookalike.models import Embedder

    model = Embedder.from_pretrained(MODEL)
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(float("nan"))
    model.save_pretrained(tmp_path / "damaged")
    refused(cli("embed", birds, "--out", "v.npy", "--model", tmp_path / "damaged"), "NaN", "damaged")
    assert not Path("v.npy").exists() and not Path("v.json").exists()
