"""Every command passes its options to the Python function of the same name, and prints the result."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import make_images

import lookalike
from lookalike.cli.commands import COMMANDS, _search
from lookalike.cli.generate import build, read_signature
from lookalike.cli.output import interval
from lookalike.core.errors import LookalikeError
from lookalike.searching.hits import Hits

HIDDEN = {"progress", "loss", "miner", "sampler", "transform", "callbacks"}  # for Python alone


class FakeResult:
    """What a function gave back."""

    lines = (("Images", "3"), ("Look", "lookalike serve x"))
    query, index = "q.jpg", "i"

    @property
    def hits(self) -> FakeResult:
        return self

    def to_json(self) -> dict[str, Any]:
        return {"found": 3}

    def __str__(self) -> str:
        return "three\nimages"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Stands in for the functions of the package; gives what each was called with."""
    calls: dict[str, dict[str, Any]] = {}
    for name in ("embed", "export", "evaluate", "compare", "index", "search", "train", "serve"):

        def stand_in(*, called_as: str = name, **options: Any) -> Any:
            calls[called_as] = options
            return FakeResult()

        monkeypatch.setitem(vars(lookalike), name, stand_in)
        if name == "embed":
            monkeypatch.setattr("lookalike.demo.demo", functools.partial(stand_in, called_as="demo"))
    return calls


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_its_python_function(name: str) -> None:
    """Names, defaults and help come from the function's own source: one entry under `Args:` for each option."""
    command = COMMANDS[name]
    signature, function = read_signature(command.function), command.load()
    actual = inspect.signature(function).parameters
    assert [p.name for p in signature.parameters] == list(actual)
    assert all(p.kind is p.KEYWORD_ONLY for p in actual.values()), "every argument is named"
    assert set(command.arguments) <= set(actual)
    assert signature.summary == (inspect.getdoc(function) or "").splitlines()[0]
    built = build(name, command)
    options = {param.name for param in built.params}
    assert set(actual) - HIDDEN <= options
    for parameter in signature.parameters:
        assert parameter.help or parameter.name in HIDDEN, f"`{parameter.name}` has no entry under Args:"
        declared = actual[parameter.name].default
        assert parameter.required == (declared is inspect.Parameter.empty)
        with contextlib.suppress(ValueError):  # a constant of its module
            assert parameter.default is None or ast.literal_eval(parameter.default) == declared


def test_an_option_that_may_be_repeated_also_has_its_singular() -> None:
    options = {param.name: param.opts for param in build("serve", COMMANDS["serve"]).params}
    assert options["host_names"] == ["--host-names", "--host-name"] and options["cors"] == ["--cors"]


@pytest.mark.parametrize(("one", "other"), [("evaluate", "compare"), ("train", "pretrain")])
def test_options_that_two_commands_share_are_the_same(one: str, other: str) -> None:
    first, second = ({p.name: p for p in read_signature(COMMANDS[name].function).parameters} for name in (one, other))
    different = {"method", "recipe", "data"} if one == "train" else set()
    for name in first.keys() & second.keys() - different:
        assert first[name] == second[name]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("index f --model m --index i --dry-run", {"model": "m", "index": "i", "dry_run": True}),
        ("index f --no-calibrate --store local", {"calibrate": False, "store": "local"}),
        ("search q.jpg -k 3 --filter label=a --filter x=b", {"k": 3, "filters": ["label=a", "x=b"]}),
        ("search q.jpg --box 1,2,30,40 --all", {"box": (1.0, 2.0, 30.0, 40.0), "all": True}),
        ("search q.jpg --more a.jpg --less b.jpg", {"more": ["a.jpg"], "less": ["b.jpg"]}),
        (
            "train d --set optimizer.lr=3e-4 --set max_grad_norm=1",
            {"settings": {"optimizer": {"lr": 3e-4}, "max_grad_norm": 1}},
        ),
        ("train d --learning-rate 1e-4", {"learning_rate": 1e-4}),
        ("train d --steps 5 --seed 7 --dry-run", {"steps": 5, "seed": 7, "dry_run": True}),
        ("train --resume runs/x --device cuda", {"resume": "runs/x", "device": "cuda"}),
        ("evaluate d --model m --weights w.pth --knn --probe", {"weights": "w.pth", "knn": True, "probe": True}),
        ("evaluate d --model m --recall-at 1,5 --nmi", {"recall_at": (1, 5), "nmi": True, "model": "m"}),
        ("compare d --a x --b y --leave-out-copies", {"a": "x", "b": "y", "leave_out_copies": True}),
        ("demo --images d --seed 3", {"images": "d", "seed": 3}),
    ],
)
def test_options_arrive(line: str, expected: dict[str, Any], cli, called: dict[str, Any]) -> None:
    answer = cli(*line.split())
    assert answer.code == 0, answer.err
    assert expected.items() <= called[line.split()[0]].items()


@pytest.mark.parametrize("words", [["search", "q.jpg"], ["index", "f"], ["evaluate", "d"], ["demo"], ["train", "d"]])
def test_words_for_people_and_one_document_for_programs(words: list[str], cli, called: dict[str, Any]) -> None:
    assert cli(*words, "--json").json == {"found": 3}
    spoken = cli(*words)
    assert "three" in spoken.out
    assert spoken.err == ""


def test_the_demo_ends_with_the_search_and_what_to_do_next(
    cli, called: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookalike.demo.command", lambda: ".venv/bin/lookalike")
    lines = cli("demo").out.splitlines()
    assert lines[0] == "$ .venv/bin/lookalike search q.jpg --index i", "as it can be typed here"
    assert lines[1] == "  three"
    assert lines[-1] == "Look     lookalike serve x"
    assert len(lines) <= 12


def test_a_note_on_the_answers_of_a_folder_stands_once() -> None:
    answers = [Hits(f"{n}.jpg", [], 9, 1.0, note="Rough." if n < 2 else "", one_of_many=True) for n in range(3)]
    lines = _search(answers, {}).lines
    assert lines.count("Rough.") == 1 and [f"{n}.jpg" in lines for n in range(3)] == [True] * 3


def test_quiet_keeps_answers_and_drops_reports_of_work(cli, called: dict[str, Any]) -> None:
    assert cli("search", "q.jpg", "-q").out == "three\nimages\n"
    assert cli("index", "f", "-q").out == ""
    assert cli("index", "f", "-q", "--json").json == {"found": 3}


def test_json_is_alone_on_stdout_whatever_libraries_print(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    def noisy(**options: Any) -> FakeResult:
        print("a library's remark")
        ctypes.CDLL(None).puts(b"a remark of C")
        return FakeResult()

    monkeypatch.setitem(vars(lookalike), "index", noisy)
    answer = cli("index", "f", "--json")
    assert answer.json == {"found": 3}
    assert "a library's remark" in answer.err and "a remark of C" in answer.err


def test_levels(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.core.progress import say, warn

    def talking(**options: Any) -> FakeResult:
        say("said"), warn("warned"), say("detail", verbose=True)
        return FakeResult()

    monkeypatch.setitem(vars(lookalike), "index", talking)
    assert cli("index", "f").err == "said\nWarning: warned\n"
    assert cli("index", "f", "-v").err == "said\nWarning: warned\ndetail\n"
    assert cli("index", "f", "-q").err == ""


def test_a_users_error_is_reported_even_when_quiet(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(**options: Any) -> None:
        raise LookalikeError("`birds/` holds 1 class;\n  training needs at least 2.")

    monkeypatch.setitem(vars(lookalike), "train", wrong)
    answer = cli("train", "birds", "-q", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "`birds/` holds 1 class; training needs at least 2.\n"


@pytest.mark.parametrize("text", ["", "1,,2", "0", "x", "1.5"])
def test_lists_of_numbers_are_checked(text: str, cli, called: dict[str, Any]) -> None:
    answer = cli("evaluate", "d", "--recall-at", text)
    assert answer.code == 2
    assert answer.err.startswith(f"`--recall-at` is `{text}`")


def test_training_is_summed_up_in_a_few_lines(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = {
        "method": "ms",
        "model": "efficientnet_lite0",
        "steps": 400,
        "best_step": 350,
        "images": {"train": 1680, "validation": 240, "test": 720},
        "seconds": {"check": 9.0, "features": 150.0, "train": 41.2, "measure": 3.0, "report": 2.0},
        "selected": "trained",
        "verdict": "Training helped.",
        "measured": {n: {"recall@1": {"value": v}} for n, v in (("starting model", 0.642), ("trained", 0.721))},
        "differences": {"starting model": {"recall@1": {"difference": 0.079, "low": 0.061, "high": 0.096}}},
    }
    run = lookalike.Run.create("ms", {}, path="runs/a")
    run.write_result(**result)
    monkeypatch.setitem(vars(lookalike), "train", lambda **options: run)
    lines = cli("train", "d").out.splitlines()
    assert "Recall@1   starting model 0.642  trained 0.721  +7.9 (6.1 to 9.6)" in lines
    assert "Time       check 9 s, features 2 min, train 41 s, measure 3 s, report 2 s" in lines
    assert len(lines) <= 12
    assert lines[-1] == "Next       lookalike index FOLDER --model runs/a"
    assert cli("train", "d", "--json").json["selected"] == "trained"
    (run.path / "trained").mkdir()  # the starting model was kept, and the trained one lies beside it
    assert cli("train", "d").out.splitlines()[-1] == "Next       lookalike index FOLDER --model runs/a/trained"


def test_recipes_are_listed_shown_and_copied(cli) -> None:
    message = cli("recipes").out
    assert (
        "default" in message and "paper_test" in message and "--recipe NAME" in message and "--config NAME" in message
    )
    assert "adapt MODEL --target FOLDER --config tent.yaml" in cli("recipes", "copy", "tent").out
    assert cli("recipes", "list", "--json").json == cli("recipes", "--json").json
    assert (
        cli("recipes", "show", "default").out
        == cli("recipes", "show", "default", "--json").json["text"].rstrip() + "\n"
    )
    assert cli("recipes", "copy", "default", "mine.yaml").code == 0
    assert cli("recipes", "copy", "default", "yours.yaml").code == 0
    assert Path("mine.yaml").read_text() == Path("yours.yaml").read_text()
    assert cli("recipes", "copy", "default", "mine.yaml").code == 2
    assert "did you mean `default`" in cli("recipes", "show", "defualt").err


def test_the_cache_is_listed_and_cleared(cli, home: Path) -> None:
    from lookalike.core import folders

    entry = folders.cache("pixels") / "x"
    entry.mkdir()
    (entry / "data").write_bytes(b"x" * 5000)
    listed = cli("cache", "ls", "--json").json
    assert listed["bytes"] == 5000 and listed["entries"][0]["kind"] == "pixels"
    assert "5.0 kB" in cli("cache", "ls").out
    assert cli("cache", "clear", "--dry-run", "--json").json == {"freed": 0, "would_free": 5000}
    refused = cli("cache", "clear")
    assert refused.code == 2 and "--yes" in refused.err and entry.exists()
    assert "did you mean `pixels`" in cli("cache", "clear", "--kind", "pixel", "--yes").err
    assert cli("cache", "clear", "--yes", "--json").json == {"freed": 5000}
    assert not entry.exists()


def test_doctor_prints_one_line_per_check(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.doctor import Check, DoctorReport

    checks = [Check("torch", "ok", "2.13", "699 MB"), Check("heif", "missing", "HEIC", "27 MB", "pip install x")]
    monkeypatch.setattr("lookalike.doctor.doctor", lambda: DoctorReport(checks))
    answer = cli("doctor")
    assert answer.code == 0
    assert answer.out.splitlines()[1] == "missing heif   HEIC · 27 MB · pip install x"
    assert "license" in answer.out
    needed = [Check("torch", "missing", "not installed", required=True)]
    monkeypatch.setattr("lookalike.doctor.doctor", lambda: DoctorReport(needed))
    answer = cli("doctor", "--json")
    assert answer.code == 4 and answer.json["ok"] is False


def test_a_difference_has_one_kind_of_minus() -> None:
    assert interval(-0.04, -0.06, 0.02, points=True) == "−4.0 (−6.0 to 2.0)"
    assert interval(0.041, 0.029, 0.052, points=True) == "+4.1 (2.9 to 5.2)"
    assert interval(0.612, 0.6, 0.624) == "0.612 (0.600–0.624)"


def test_the_question_before_files_are_moved_reads_the_named_columns(cli: Any, tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", classes=2, images=1)
    (images / "copy.jpg").write_bytes((images / "class-00" / "0.jpg").read_bytes())
    names = ["class-00/0.jpg", "class-01/0.jpg", "copy.jpg"]
    (images / "t.csv").write_text("\n".join(["where,kind,note", *(f"{name},a,b" for name in names)]))
    answer = cli("duplicates", images / "t.csv", "--image-column", "where", "--label-column", "kind", "--move")
    assert answer.code == 2 and answer.err.startswith("Move 1 file "), answer.err
