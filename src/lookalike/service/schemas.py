"""What the endpoints answer, for `/openapi.json`; the answers are not validated again when they are sent."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.json_schema import models_json_schema


class Answer(BaseModel):
    """A JSON answer; tests check that there are no further fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetails(Answer):
    """Status and reason of a refused request."""

    status: int
    message: str


class Error(Answer):
    """The answer to every refused request."""

    error: ErrorDetails


class Card(Answer):
    """An image: its thumbnails are at `/thumb/{thumb}/{96|256|512|1024}.jpg`, the original is at `/original/{id}`."""

    id: str
    columns: dict[str, str | list[str]]
    thumb: str
    ratio: float
    color: str


class Hit(Card):
    """An image that was found; `probability` (from `low` to `high`) is null where the index is not calibrated."""

    score: float
    probability: float | None
    low: float | None
    high: float | None
    closer_than: float | None
    group: str | None
    sureness: str
    identical: bool
    copies: list[str]


class Verdict(Answer):
    """What the hits are worth, in words."""

    kind: str
    message: str
    detail: str
    note: str


class QueryInfo(BaseModel):
    """The query: of `kind` item also its card, of `kind` upload an `id` to search by again (`q`) and its `ratio`."""

    kind: Literal["upload", "item", "text", "none"]
    id: str | None


class Search(Answer):
    """Hits, best first."""

    query: QueryInfo
    verdict: Verdict
    images: int
    milliseconds: float
    filters: str
    hits: list[Hit]
    more: list[Card]
    less: list[Card]


class Items(Answer):
    """Some images."""

    items: list[Card]


class IndexInfo(Answer):
    """An index."""

    name: str
    images: int
    complete: bool
    updated: str
    columns: list[str]
    store: str
    generation: int


class ModelInfo(BaseModel):
    """A model; `fingerprint` tells two of one name apart."""

    name: str
    fingerprint: str


class ScoresInfo(Answer):
    """Whether probabilities are given, and if not, why."""

    calibrated: bool
    why: str
    note: str
    error: float | None
    pairs: int


class LimitsInfo(Answer):
    """Bytes of an upload, hits of a search, images to search by, and days for which uploads are kept."""

    upload: int
    hits: int
    examples: int
    keep_days: float


class Info(Answer):
    """The index, its model, the limits of this server, and what the caller may do."""

    version: str
    index: IndexInfo
    model: ModelInfo
    scores: ScoresInfo
    limits: LimitsInfo
    rights: Literal["none", "read", "write"]
    text: bool
    originals: bool
    metadata: bool


class ServedIndex(Answer):
    """One of the indexes of this server; `here` marks the one that answers this request."""

    name: str
    images: int
    here: bool
    updated: str
    model: str


class Indexes(Answer):
    """The indexes of this server."""

    indexes: list[ServedIndex]


class Job(Answer):
    """Work in the background."""

    id: str
    kind: str
    title: str
    phase: str
    done: int
    total: int | None
    seconds_left: int | None
    state: Literal["running", "finished", "stopped", "failed"]
    message: str
    result: dict[str, Any] | None


class StateIndex(Answer):
    """The index as it is now."""

    name: str
    images: int
    complete: bool
    updated: str
    generation: int
    model: str
    unreadable: int


class State(Answer):
    """The index, the running job, and the last jobs, newest first."""

    index: StateIndex
    job: Job | None
    jobs: list[Job]


class FacetValue(BaseModel):
    """A value of a column with its number of images, and of the nearest ones where there is a query (`near`)."""

    value: str
    count: int
    near: int | None = None


class Facet(Answer):
    """The values of a column."""

    column: str
    total: int
    values: list[FacetValue]


class Folder(Answer):
    """A folder with its number of images."""

    folder: str
    count: int


class Folders(Answer):
    """Folders."""

    folders: list[Folder]
    total: int


class RangeColumn(Answer):
    """A column that is filtered by bounds, as in `taken=2024-06..2024-08`."""

    column: str
    kind: Literal["date", "number"]


class Facets(Answer):
    """The first values of every column, columns that are filtered by bounds, and the folders."""

    images: int
    nearest: int | None
    facets: list[Facet]
    ranges: list[RangeColumn]
    folders: list[Folder]
    folders_total: int


class Section(Answer):
    """Images that follow each other: of a month (`2024-08`; empty: without a date) or a folder."""

    name: str
    count: int


class Browse(Answer):
    """All images in order; `ratios` are widths by heights, times 100; `taken`: by the date taken, not of the file."""

    version: str
    sections: list[Section]
    ratios: list[int]
    taken: bool


class Session(Answer):
    """Rights of the caller; `keys`: whether this server requires keys."""

    rights: Literal["none", "read", "write"]
    locked: bool
    keys: bool


class Key(Answer):
    """An API key without its secret."""

    id: str
    name: str
    rights: Literal["read", "write"]
    created: str
    used: str


class NewKey(Key):
    """A new API key; `key` is its secret."""

    key: str


class Keys(Answer):
    """The API keys."""

    keys: list[Key]
    required: bool


class Forgotten(Answer):
    """An upload was deleted."""

    forgotten: bool


class Point(Card):
    """A point of the map with its card."""

    i: int


class Place(Answer):
    """Where an image lies on the map, from 0 to 1."""

    id: str
    i: int
    x: float
    y: float


class File(Card):
    """A file of a group; `keep` marks the one to keep."""

    path: str
    bytes: int
    width: int
    height: int
    date: str | None
    has_location: bool
    keep: bool


class Group(Answer):
    """Files that show the same."""

    id: str
    kind: str
    keep: str
    reason: str
    bytes: int
    files: list[File]


def _answer(name: str, text: str, **fields: Any) -> Any:
    """An answer that is only described."""
    definitions: Any = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __base__=Answer, __doc__=text, **definitions)


Batch = create_model("Batch", __doc__="Files that were moved.", id=(str, ...), files=(int, ...))
Described = dict[str, Any]
Rights = Literal["none", "read", "write"]

# Answers of endpoints below `/api/v1`; those that are not named here answer with a binary or an image.
ANSWERS: dict[str, Any] = {
    "GET /info": Info,
    "GET /indexes": Indexes,
    "GET /search": Search,
    "POST /search": Search,
    "GET /items": Items,
    "GET /items/{name}": Card,
    "DELETE /queries/{name}": Forgotten,
    "GET /browse": Browse,
    "GET /browse/items": Items,
    "POST /browse/tags": _answer("Tagged", "Number of images, and all tags now.", images=int, tags=list[str]),
    "POST /browse/move": Batch,
    "GET /tags": _answer("Tags", "All tags, and the column to filter by them.", column=str, tags=list[str]),
    "GET /facets": Facets,
    "GET /facets/{column}": Facet,
    "GET /facets/{column}/typical": Items,
    "GET /folders": Folders,
    "GET /state": State,
    "POST /index/update": Job,
    "GET /index/unreadable": _answer("Unreadable", "Files that could not be read.", files=list[dict[str, str]]),
    "POST /jobs/{name}/stop": Job,
    "GET /runs": _answer("Runs", "Runs, newest first.", runs=list[Described]),
    "GET /runs/{name}": create_model("Run", __doc__="A run with its logged series.", series=(list[Described], ...)),
    "GET /reports": _answer("Reports", "Reports of runs, newest first.", reports=list[dict[str, str]]),
    "GET /duplicates": create_model(
        "Duplicates", __doc__="The last search for duplicates.", state=(str, ...), when=(str | None, ...),
        images=(int | None, ...), counts=(Described | None, ...), can_move=(bool, ...), reason=(str, ...),
        folder=(str, ...), job=(Job | None, ...),
    ),
    "POST /duplicates/find": Job,
    "GET /duplicates/groups": _answer("Groups", "A page of groups.", kind=str, total=int, groups=list[Group]),
    "POST /duplicates/move": Batch,
    "POST /duplicates/dismiss": _answer("Dismissed", "A group was marked.", group=str, dismissed=bool),
    "GET /duplicates/history": _answer("History", "Batches of moved files.", batches=list[Described]),
    "POST /duplicates/history/{name}/undo": _answer("Undone", "Files moved back.", moved=int, left=list[Described]),
    "GET /map": create_model("Map", __doc__="State and legend of the map.", state=(str, ...), job=(Job | None, ...)),
    "POST /map/draw": Job,
    "GET /map/{gen}/codes/{column}": _answer("Names", "Values of a column.", column=str, names=list[str]),
    "GET /map/{gen}/point/{i}": Card,
    "GET /map/{gen}/points": _answer("Points", "Cards of points.", points=list[Point]),
    "GET /map/{gen}/locate": _answer("Places", "Positions of images.", points=list[Place]),
    "GET /generations": _answer(
        "Generations", "Generations, and the models to switch to.", live=int, generations=list[Described],
        models=list[Described],
    ),
    "POST /switch": create_model("Switch", __doc__="A job, or the generation that is live now."),
    "DELETE /generations/{number}": _answer("Deleted", "A generation was deleted.", deleted=int),
    "GET /session": Session,
    "POST /session": Session,
    "DELETE /session": Session,
    "GET /keys": Keys,
    "POST /keys": NewKey,
    "DELETE /keys/{name}": _answer("Revoked", "A key was revoked.", revoked=str),
}  # fmt: skip


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Complete an OpenAPI document: what is answered, the one form of errors, and how keys are sent."""
    template = "#/components/schemas/{model}"
    models = [(model, "serialization") for model in dict.fromkeys([*ANSWERS.values(), Error])]
    references, schemas = models_json_schema(models, ref_template=template)  # type: ignore[arg-type]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            model = ANSWERS.get(f"{method.upper()} {path.removeprefix('/api/v1')}")
            good = next(status for status in answers if status[0] == "2")
            if binary := re.search(r"/mask$|\.(bin|jpg)$", path):
                media = "image/jpeg" if binary[1] == "jpg" else "application/octet-stream"
                answers[good]["content"] = {media: {"schema": {"type": "string", "format": "binary"}}}
            elif model is not None:
                answers[good]["content"] = {"application/json": {"schema": references[model, "serialization"]}}
            for status in [status for status in answers if status[0] in "45"]:
                del answers[status]
            for status, text in (("4XX", "The request is refused."), ("5XX", "The server is busy or has a fault.")):
                schema = references[Error, "serialization"]
                answers[status] = {"description": text, "content": {"application/json": {"schema": schema}}}
    used = document.setdefault("components", {}).setdefault("schemas", {})
    used |= schemas["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        used.pop(name, None)
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key of `lookalike keys new`, where one is needed"}
    }
    document["security"] = [{}, {"key": []}]
    return document
