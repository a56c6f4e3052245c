"""Every operation of /openapi.json with made-up arguments: no answer is a 5xx, and every refusal is a sentence.

schemathesis makes the requests; the long form (--slow) makes many more.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.service.conftest import sentence

# Work that takes long or changes what other cases rely on; each has tests of its own.
LEFT_OUT = ("/api/v1/switch", "/api/v1/index/update", "/api/v1/duplicates/find", "/api/v1/map")


def fuzz(service: Any, examples: int) -> int:
    import schemathesis

    from lookalike.service import create_app

    app = create_app(service)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.startswith(LEFT_OUT):
            continue

        def check(case: Any) -> None:
            nonlocal seen
            case.headers = {**(case.headers or {}), "X-Lookalike": "1"}
            response = case.call()
            seen += 1
            assert response.status_code < 500 or response.status_code == 503, f"{case.method} {case.path}"
            if response.status_code >= 400:
                assert sentence(response)

        test = settings(
            max_examples=examples,
            deadline=None,
            derandomize=examples < 50,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            database=None,
        )(given(case=operation.as_strategy())(check))
        test()
    return seen


def test_made_up_requests(service: Any) -> None:
    assert fuzz(service, 12) > 200


@pytest.mark.slow
def test_made_up_requests_for_longer(service: Any) -> None:
    fuzz(service, 400)
