"""`/openapi.json` says what is answered: schemas of all answers, the form of errors, and how keys are sent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from lookalike.core.run import Run
from lookalike.service import schemas
from tests.service.conftest import error_message
from tests.service.test_middleware import encoded, send
from tests.service.test_open_index import wait

API = "/api/v1"
OURS = {"X-Lookalike": "1"}


def test_every_operation_is_described(client: Any) -> None:
    document = client.get("/openapi.json").json()
    known = set(document["components"]["schemas"])
    assert "HTTPValidationError" not in known and document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["security"] == [{}, {"key": []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            good = next(status for status in answers if status[0] == "2")
            media, content = next(iter(answers[good]["content"].items()))
            if media == "application/json":
                assert content["schema"]["$ref"].rpartition("/")[2] in known, (method, path)
            assert set(answers) == {good, "4XX", "5XX"}, (method, path)
            assert answers["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")
    text = str(document)
    assert all(f"'#/components/schemas/{name}'" in text for name in known)


def test_answers_are_as_described(client: Any) -> None:
    """Each kind of answer, with neither a missing nor a further field."""
    upload = send(client, encoded()).json()
    for kind in ("index/update", "duplicates/find", "map/draw"):
        wait(client, client.post(f"{API}/{kind}", headers=OURS).json())
    card = client.get(f"{API}/items?sample=1").json()["items"][0]
    gen = client.get(f"{API}/map").json()["gen"]
    schemas.NewKey.model_validate(client.post(f"{API}/keys", json={"name": "shop"}, headers=OURS).json())
    seen = 0
    for operation, model in schemas.ANSWERS.items():
        method, _, path = operation.partition(" ")
        name = "unfinished" if path.startswith("/runs/") else card["id"]
        path = path.format(name=name, column="label", gen=gen, i=0, number=1)
        if method != "GET":
            continue
        query = {"/search": f"like={card['id']}&k=5", "/facets/label/typical": "value=class-01"}
        query |= {f"/map/{gen}/points": "i=0&i=1", f"/map/{gen}/locate": f"id={card['id']}"}
        query |= {"/browse/items": f"version={client.get(f'{API}/browse').json()['version']}"}
        query |= {"/facets": f"q={upload['query']['id']}"}
        answer = client.get(f"{API}{path}?{query.get(path, '')}")
        assert answer.status_code == 200, (path, answer.text)
        TypeAdapter(model).validate_python(answer.json())
        seen += 1
    schemas.Search.model_validate(upload)
    assert seen > 20


def test_every_state_of_a_run_is_as_described(client: Any, runs: Path) -> None:
    finished, damaged = (Run.create("supcon", {"steps": 20}, path=runs / name) for name in ("finished", "damaged"))
    finished.log(step=0, loss=1.0, **{"validation/recall@1": 0.5})
    value = {"value": 0.7, "low": 0.6, "high": 0.8, "level": 0.95}
    finished.write_result(finished=True, best_step=0, side="test", measured={"trained": {"recall@1": value}})
    (damaged.path / "config.yaml").write_text("steps: [")
    try:
        rows = schemas.ANSWERS["GET /runs"].model_validate(client.get(f"{API}/runs").json()).runs
        assert {"finished", "damaged"} <= {row.state for row in rows}
        details = schemas.RunDetails.model_validate(client.get(f"{API}/runs/finished").json())
        assert details.measured[0].low == 0.6 and {one.name for one in details.series} == {
            "loss",
            "validation/recall@1",
        }
    finally:
        for run in (finished, damaged):
            shutil.rmtree(run.path)


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [("GET", "/items/none", 404), ("GET", "/search?k=0", 422), ("GET", "/search", 400), ("POST", "/keys", 403)],
)
def test_errors_have_one_form(client: Any, method: str, address: str, status: int) -> None:
    answer = client.request(method, f"{API}{address}")
    assert answer.status_code == status and error_message(answer)
    schemas.Error.model_validate(answer.json())


def test_an_upload_without_its_field_gets_an_error_that_names_it(client: Any) -> None:
    answer = client.post(f"{API}/search", files={"file": encoded()})
    assert answer.status_code == 422 and "as form field `image`" in error_message(answer)


@pytest.mark.parametrize(
    "text", ["label=class-01", "label:class-01", "label!=class-00", "path=class-01/*", "path!:class-00/*"]
)
def test_filters_are_written_as_on_the_command_line(client: Any, made: Any, text: str) -> None:
    from lookalike.searching import Index
    from lookalike.searching.filters import parse

    written = text.replace("!:", "!=").replace(":", "=", 1)
    with Index.open(made[1]) as index:
        expected = index.store.count(parse([written], index.columns))
    assert client.get(f"{API}/facets", params={"f": text}).json()["images"] == expected > 0


def test_a_box_is_in_pixels_or_in_fractions(client: Any) -> None:
    """Of an upload, of an image of the index, and of a stored upload, which has fewer pixels than it had."""
    data = {"image": encoded()}  # 64 × 48
    boxes = ("0,0,32,48", "0,0,0.5,1")
    sent = [client.post(f"{API}/search?box={box}&k=5", files=data).json() for box in boxes]
    assert sent[0]["hits"] == sent[1]["hits"]
    for reference in (f"q={sent[0]['query']['id']}", f"like={sent[0]['hits'][0]['id']}"):
        first, second = (client.get(f"{API}/search?{reference}&box={box}&k=5").json()["hits"] for box in boxes)
        assert first == second
    for wrong in ("0,0,65,48", "0,0,32", "32,0,0,48", "0,0,nan,1", "-1,0,32,48", "a,b,c,d"):
        answer = client.post(f"{API}/search?box={wrong}", files=data)
        assert answer.status_code == 422 and "in pixels of the image as it is seen" in error_message(answer)
