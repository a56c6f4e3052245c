"""Endpoints of administration: models and generations, browser sessions, API keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Request, Response

from lookalike.searching import generations
from lookalike.searching import manifest as manifests
from lookalike.service import tasks
from lookalike.service.api.common import Body, IndexDep, ServiceDep, fields, tagged
from lookalike.service.auth import cookie_name, rights_of
from lookalike.service.http_errors import Problem, answered_with

router = APIRouter(prefix="/api/v1", tags=["settings"])
Text = Annotated[str, pydantic.Field(max_length=500)]


class Switch(Body):
    """Either a model to embed with, or an existing generation."""

    model: Text | None = None
    generation: int | None = None


class NewKey(Body):
    """Name and rights of a new key."""

    name: Text
    rights: Literal["read", "write"] = "read"


class Session(Body):
    """The key that a session is opened with."""

    key: Text


@router.get("/generations")
def list_generations(request: Request, service: ServiceDep, live: IndexDep) -> Response:
    """The generations of the index, which one is live, and the models that it can be switched to."""
    manifest = manifests.read(live.index.path)
    rows = []
    for one in manifest.generations:
        ece = generations.calibration_error(live.index.path, one.number)
        measured = {"recall": one.graph.get("recall"), "ece": ece, "live": one.number == manifest.live}
        known = fields(one, "number", "images", "complete", "created", "updated")
        rows.append(known | measured | {"model": one.model.model_dump()})
    return tagged(request, {"live": manifest.live, "generations": rows, "models": service.reports.models()})


@router.post("/switch", status_code=202)
def switch(service: ServiceDep, live: IndexDep, body: Switch) -> dict[str, Any]:
    """Switch to a generation at once, or embed with another model first (a job); no request fails meanwhile."""
    if (body.model is None) == (body.generation is None):
        raise Problem(422, "Give either `model` or `generation`.")
    if body.model is not None:
        path = service.reports.model(body.model)
        return service.jobs.start("switch", f"Switching to {body.model}", tasks.switch, service, path).to_json()
    generations.switch(index=live.index.path, to=body.generation)
    if not service.follower.wait_until_live():
        message = f"Generation {body.generation} is still in use; it becomes live as soon as it is free."
        raise Problem(409, message, retry_after=5)
    return {"live": service.index.generation.number}


@router.delete("/generations/{number}")
def drop(live: IndexDep, number: int) -> dict[str, Any]:
    """Delete a generation that is not live."""
    generations.drop_generation(live.index.path, number)
    return {"deleted": number}


@router.get("/session")
def session(request: Request, service: ServiceDep) -> dict[str, Any]:
    """Rights of the caller (`none`, `read` or `write`); `locked` means that a key is required."""
    rights = rights_of(request.scope)
    return {"rights": rights, "locked": rights == "none", "keys": service.keys.required}


@router.post("/session")
def open_session(request: Request, response: Response, service: ServiceDep, body: Session) -> dict[str, Any]:
    """Exchange a key for a session cookie that scripts cannot read; it ends with the browser."""
    key = service.keys.verify(body.key)
    if key is None:
        raise Problem(401, "This key is unknown or was revoked.")
    secure = request.url.scheme == "https"
    token = service.keys.open_session(key)
    name = cookie_name(request.headers.get("host", ""))
    response.set_cookie(name, token, httponly=True, samesite="strict", secure=secure, path="/")
    return {"rights": key.rights, "locked": False, "keys": service.keys.required}


@router.delete("/session")
def close_session(request: Request, response: Response, service: ServiceDep) -> dict[str, Any]:
    """End the session of this browser."""
    name = cookie_name(request.headers.get("host", ""))
    service.keys.close_session(request.cookies.get(name, ""))
    response.delete_cookie(name, httponly=True, samesite="strict", path="/")
    return {"rights": "none" if service.keys.required else "write", "locked": service.keys.required}


@router.get("/keys")
def keys(service: ServiceDep) -> dict[str, Any]:
    """The keys without their secrets; requires write access."""
    return {"keys": [key.public() for key in service.keys.list()], "required": service.keys.required}


@router.post("/keys", status_code=201)
def new_key(service: ServiceDep, body: NewKey) -> dict[str, Any]:
    """Create a key; its secret `key` is returned only this once."""
    key, secret = service.keys.create(body.name, body.rights)
    return key.public() | {"key": secret}


@router.delete("/keys/{name}")
def revoke(service: ServiceDep, name: str) -> dict[str, Any]:
    """Revoke a key; its sessions end too."""
    with answered_with(404):
        return {"revoked": service.keys.revoke(name).id}
