"""Every operation of /openapi.json with made-up arguments, and every address that gives out files: no answer is a 5xx,
and every refusal is a sentence.

schemathesis makes the requests; the long form (--slow) makes 400 of each kind, or as many as LOOKALIKE_FUZZ says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.service.conftest import error_message
from tests.service.test_middleware import encoded, send

# Work that takes long or changes what other cases rely on; each has tests of its own.
LEFT_OUT = ("/api/v1/switch", "/api/v1/index/update", "/api/v1/duplicates/find", "/api/v1/map/draw")
FILES = ("/thumb/{}/96.jpg", "/thumb/{}/{}.jpg", "/original/{}", "/query/{}.jpg", "/reports/{}", "/static/{}", "/{}")


def effort(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples < 50,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )


def judge(response: Any, what: str) -> None:
    assert response.status_code < 500 or response.status_code == 503, f"{what}: {response.status_code}"
    if response.status_code >= 400:
        assert error_message(response)


@pytest.fixture
def there(service: Any, client: Any) -> Iterator[dict[str, Any]]:
    """Arguments that name something: every second request uses them where it has such an argument."""
    client.get("/api/v1/map")
    deadline = time.monotonic() + 60
    while client.get("/api/v1/map").json()["state"] != "ready" and time.monotonic() < deadline:
        time.sleep(0.05)
    first = client.get("/api/v1/items?sample=1").json()["items"][0]
    query_id = send(client, encoded()).json()["query"]["id"]
    gen = client.get("/api/v1/map").json()["gen"]
    yield {
        "gen": gen,
        "name": first["id"],
        "like": first["id"],
        "q": query_id,
        "column": "label",
        "f": ["label:class-01"],
    }


def fuzz(service: Any, there: dict[str, Any], examples: int) -> int:
    import schemathesis

    from lookalike.service import create_app

    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(service))
    seen = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in LEFT_OUT:
            continue

        def check(case: Any) -> None:
            nonlocal seen
            seen += 1
            case.headers = {**(case.headers or {}), "X-Lookalike": "1"}
            if seen % 2:
                for parameters in (case.path_parameters, case.query):
                    parameters.update({name: there[name] for name in list(parameters or {}) if name in there})
            judge(case.call(), f"{case.method} {case.path} {case.path_parameters} {case.query}")

        effort(examples)(given(case=operation.as_strategy())(check))()
    return seen


def fuzz_files(client: Any, examples: int) -> None:
    word = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
        ["..", "../..", "/etc/passwd", "%2e%2e", "\0", "-1", "99999999999999999999", "u.0123456789abcdef", "~", "\\"]
    )

    @effort(examples)
    @given(st.sampled_from(FILES), st.lists(word, min_size=2, max_size=2), st.sampled_from(["", "/"]))
    def check(address: str, words: list[str], safe: str) -> None:
        path = address.format(*(quote(word, safe=safe) for word in words))
        answer = client.get(path if path.startswith("/") and not path.startswith("//") else "/x")
        judge(answer, path)
        assert b"root:" not in answer.content

    check()


def test_made_up_requests(service: Any, client: Any, there: dict[str, Any]) -> None:
    assert fuzz(service, there, 12) > 300
    fuzz_files(client, 200)


@pytest.mark.slow
def test_made_up_requests_for_longer(service: Any, client: Any, there: dict[str, Any]) -> None:
    examples = int(os.environ.get("LOOKALIKE_FUZZ", "400"))
    assert fuzz(service, there, examples) > 25 * examples
    fuzz_files(client, 10 * examples)
