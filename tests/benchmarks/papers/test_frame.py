from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers import ROOT

from benchmarks import papers
from benchmarks.papers import PAPERS, Claim, ClaimContext, ClaimOutcome, claims_of, document, reproduce, results_of
from benchmarks.papers.document import page
from lookalike.core.errors import LookalikeError

VERDICTS = set(papers.Verdict.__args__)  # type: ignore[attr-defined]


class Killed(Exception):
    pass


@pytest.fixture
def paper(home: Path, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A paper of two claims; the second consists of three jobs and can be killed before the last."""
    state = types.SimpleNamespace(calls=[], kill=False)

    def work(seed: int) -> float:
        if state.kill and seed == 2:
            raise Killed
        state.calls.append(seed)
        return seed / 10

    def first(context: ClaimContext) -> ClaimOutcome:
        return ClaimOutcome("not testable at this scale", note="needs a GPU")

    def second(context: ClaimContext) -> ClaimOutcome:
        gains = [context.job(f"gain-s{seed}", work, seed=seed) for seed in range(3)]
        return ClaimOutcome("reproduced", {"gain": {"mean": sum(gains) / 3, "seeds": gains}}, "")

    module = types.ModuleType("toy_paper")
    module.CLAIMS = [  # type: ignore[attr-defined]
        Claim("big", "toy", "It scales.", "76.1", "not at all", "8 GPUs", first),
        Claim("gain", "toy", "It gains | a lot.", "+3.1", "3 seeds on CUB", "100 epochs", second),
    ]
    monkeypatch.setitem(sys.modules, "toy_paper", module)
    monkeypatch.setattr(papers, "PAPERS", {"toy": "toy_paper"})
    monkeypatch.setattr(document, "PAPERS", {"toy": "toy_paper"})
    return state


def test_verdicts_are_stored_with_their_proof(paper: object) -> None:
    result = reproduce(paper="toy")
    assert [(r.key, r.verdict) for r in result] == [("big", "not testable at this scale"), ("gain", "reproduced")]
    stored = json.loads(Path("results/toy.json").read_text())
    assert [c["key"] for c in stored["claims"]] == ["big", "gain"]
    assert stored["claims"][1]["figures"]["gain"]["seeds"] == [0.0, 0.1, 0.2]
    assert {"when", "command", "versions", "machine", "seconds"} <= set(stored["claims"][0]["proof"])


def test_a_killed_run_goes_on_where_it_stopped(paper: types.SimpleNamespace) -> None:
    paper.kill = True
    with pytest.raises(Killed):
        reproduce(paper="toy")
    assert paper.calls == [0, 1]
    assert [r.verdict for r in results_of("toy")] == ["not testable at this scale", "not run"]
    paper.kill = False
    reproduce(paper="toy", only="gain")
    assert paper.calls == [0, 1, 2]
    assert [r.verdict for r in results_of("toy")] == ["not testable at this scale", "reproduced"]
    for file in Path("results/cells/toy").glob("gain-*.json"):
        file.unlink()
    reproduce(paper="toy", only=["gain"])
    assert paper.calls == [0, 1, 2, 0, 1, 2]


def test_scales_do_not_share_their_jobs(paper: types.SimpleNamespace) -> None:
    reproduce(paper="toy", only="gain")
    reproduce(paper="toy", only="gain", scale="paper")
    assert paper.calls == [0, 1, 2] * 2
    assert results_of("toy")[1].scale == "paper"


def test_what_does_not_exist_is_named(paper: object) -> None:
    for call in (
        lambda: reproduce(paper="tyo"),
        lambda: reproduce(paper="toy", only="gian"),
        lambda: reproduce(paper="toy", scale="smal"),
    ):
        with pytest.raises(LookalikeError, match="did you mean"):
            call()


def test_the_page_shows_every_claim_run_or_not(paper: object) -> None:
    assert "| big | It scales. | 76.1 |  | **not run** |" in page()
    reproduce(paper="toy")
    text = page()
    assert "| big | It scales. | 76.1 | needs a GPU | **not testable at this scale** |" in text
    assert r"| gain | It gains \| a lot. | +3.1 |  | **reproduced** |" in text
    assert "| [toy](#toy) | 1 |  |  |  | 1 |  |  |" in text and "/results/toy.json)" in text
    assert text == page(), "the same files give the same page"


def test_questions_come_first_and_a_closed_gate_takes_the_verdict(paper: object) -> None:
    module = sys.modules["toy_paper"]
    big, gain = module.CLAIMS  # type: ignore[attr-defined]
    gate = lambda figures: [] if figures["gain"]["mean"] > 0.05 else ["the arms did not learn"]  # noqa: E731
    module.CLAIMS = [big, replace(gain, question=True, gate=gate)]  # type: ignore[attr-defined]
    assert [r.verdict for r in reproduce(paper="toy", only="gain")] == ["reproduced"]
    text = page()
    assert r"| It gains \| a lot. | 3 seeds on CUB |  | **yes** |" in text and text.index("a lot") < text.index(
        "scales"
    )
    module.CLAIMS[1] = replace(module.CLAIMS[1], gate=lambda figures: ["the arms did not learn"])  # type: ignore[attr-defined]
    assert results_of("toy")[1].verdict == "not testable at this scale", "a gate judges what is stored"
    assert "| Cannot be tested: the arms did not learn. | **not testable at this scale** |" in page()


def test_the_page_shows_stored_benchmarks(tmp_path: Path, paper: object) -> None:
    bars = [
        {"name": "speed", "value": 4.123456, "bound": 3.5, "better": "higher", "ok": True},
        {"name": "memory", "value": 1.5, "bound": 1.0, "better": "lower", "ok": False},
    ]
    saved = {"name": "toy", "machine": {"load": 0.1, "threads": 2, "cpu": "x"}, "bars": bars, "when": "2026-01-01"}
    (tmp_path / "bench-toy.json").write_text(json.dumps(saved))
    text = page(tmp_path)
    assert "/results/bench-toy.json) | 1 of 2 | memory: 1.5 (≤ 1) | 2026-01-01, 2 threads |" in text
    forced = {**saved, "bars": [{**bar, "ok": False} for bar in bars]}
    for stored in (forced, {**saved, "forced": True}):
        (tmp_path / "bench-toy.json").write_text(json.dumps(stored))
        assert "/results/bench-toy.json) | not judged: busy machine |  | 2026-01-01, 2 threads |" in page(tmp_path)


def test_numbers_have_one_minus_sign_and_a_zero_has_none() -> None:
    text = "step 5 -0.0000 (-0.0012 to +0.0000); −0.00, −0.5, -1e-3, (−0.0 to -20); CIFAR-10 of 2026-11-19 by --all"
    expected = "step 5 0.0000 (−0.0012 to 0.0000); 0.00, −0.5, −1e-3, (0.0 to −20); CIFAR-10 of 2026-11-19 by --all"
    assert document._minus(text) == expected


def test_the_page_is_short() -> None:
    text = page(ROOT / "results")
    assert len(text.splitlines()) <= 250
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == text, "run python tools/docs.py"
    assert document._short("; ".join(["a" * 90] * 4)) == "; ".join(["a" * 90] * 2) + " …"


@pytest.mark.parametrize("name", list(PAPERS))
def test_every_paper_has_claims_and_what_is_stored_fits_them(name: str) -> None:
    result = claims_of(name)
    keys = [claim.key for claim in result]
    assert keys and len(set(keys)) == len(keys)
    assert all(claim.paper == name and claim.statement and claim.small and claim.at_scale for claim in result)
    stored = ROOT / "results" / f"{name}.json"
    if stored.exists():
        rows = json.loads(stored.read_text())["claims"]
        assert {row["key"] for row in rows} <= set(keys)
        assert {row["verdict"] for row in rows} <= VERDICTS
