"""What the page's own scripts compute, run in node: names of places on the map, and numbers as text."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.helpers import ROOT

STATIC = (ROOT / "src/lookalike/service/static").as_uri()
SCRIPT = """
import { findPlaces } from "%s/map/labels.js";
const codes = JSON.parse(process.argv[1]);
const n = codes.length, at = (seed) => Array.from({ length: n }, (_, i) => 32000 + ((i * seed) %% 1500));
const cloud = { n, x: Uint16Array.from(at(7)), y: Uint16Array.from(at(11)), codes: Uint16Array.from(codes) };
const found = findPlaces(cloud, { x: 0.5, y: 0.5, zoom: 1, width: 800, height: 600 });
console.log(JSON.stringify(found.map(({ code, fraction, count }) => ({ code, fraction, count }))));
"""
NUMBERS = """
import { explainScore } from "%s/components/score.js";
import { decimal, withMinus } from "%s/dom.js";
console.log(JSON.stringify([explainScore({ score: -0.25 }), decimal(-0.5), withMinus((-1.5e-7).toPrecision(4))]));
"""


def run(script: str, *arguments: str) -> Any:
    command = ["node", "--input-type=module", "-e", script, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def places(codes: list[int]) -> list[dict[str, Any]]:
    return list(run(SCRIPT % STATIC, json.dumps(codes)))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_only_a_majority_names_a_place() -> None:
    [place] = places([3] * 60 + list(range(40)))
    assert place["code"] == 3 and place["fraction"] > 0.5 and place["count"] == 100
    [place] = places([3] * 2 + list(range(10, 108)))
    assert place["code"] == 65535, "one in fifty does not: the place shows a thumbnail"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_negative_numbers_have_one_minus_sign() -> None:
    assert run(NUMBERS % (STATIC, STATIC)) == ["Similarity −0.25.", "−0.500", "−1.500e−7"]
