"""The names of places on the map, computed by the page's own script in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.helpers import ROOT

SCRIPT = """
import { findPlaces } from "%s/map/labels.js";
const codes = JSON.parse(process.argv[1]);
const n = codes.length, at = (seed) => Array.from({ length: n }, (_, i) => 32000 + ((i * seed) %% 1500));
const cloud = { n, x: Uint16Array.from(at(7)), y: Uint16Array.from(at(11)), codes: Uint16Array.from(codes) };
const found = findPlaces(cloud, { x: 0.5, y: 0.5, zoom: 1, width: 800, height: 600 });
console.log(JSON.stringify(found.map(({ code, share, count }) => ({ code, share, count }))));
"""


def places(codes: list[int]) -> list[dict[str, Any]]:
    script = SCRIPT % (ROOT / "src/lookalike/service/static").as_uri()
    command = ["node", "--input-type=module", "-e", script, json.dumps(codes)]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_only_a_majority_names_a_place() -> None:
    [place] = places([3] * 60 + list(range(40)))
    assert place["code"] == 3 and place["share"] > 0.5 and place["count"] == 100
    [place] = places([3] * 2 + list(range(10, 108)))
    assert place["code"] == 65535, "one in fifty does not: the place shows a thumbnail"
