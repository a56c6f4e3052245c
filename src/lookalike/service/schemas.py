"""What the endpoints answer, for `/openapi.json`; the answers are not validated again when they are sent."""

from __future__ import annotations

import re
from types import GenericAlias
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, RootModel, create_model
from pydantic.json_schema import models_json_schema


class Answer(BaseModel):
    """A JSON answer; tests check that there are no further fields."""

    model_config = ConfigDict(extra="forbid")


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


def _answer(name: str, text: str, /, *, base: type[BaseModel] = Answer, **fields: Any) -> Any:
    """An answer that is only described; a field whose type is in a tuple may be missing."""
    types: Any = {
        field: (kind[0] | None, None) if isinstance(kind, tuple) else (kind, ...) for field, kind in fields.items()
    }
    return create_model(name, __base__=base, __doc__=text, **types)


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


# fmt: off
Details = _answer("ErrorDetails", "Status and reason of a refused request.", status=int, message=str)
Error = _answer("Error", "The answer to every refused request.", error=Details)
Session = _answer("Session", "Rights of the caller; `keys`: whether this server requires keys.",
    rights=Literal["none", "read", "write"], locked=bool, keys=bool)
Section = _answer("Section", "A month (`2024-08`; empty: no date) or folder.", name=str, count=int)
Browse = _answer("Browse",
    "All images in order; `ratios` are widths by heights, times 100; `taken`: by the date of EXIF.", version=str,
    sections=_list(Section), ratios=list[int], taken=bool)
Point = _answer("Point", "A point of the map with its card.", base=Card, i=int)
Place = _answer("Place", "Where an image lies on the map, from 0 to 1.", id=str, i=int, x=float, y=float)
File = _answer("File", "A file of a group; `keep` marks the one to keep.", base=Card, path=str, bytes=int, width=int,
    height=int, date=str | None, has_location=bool, keep=bool)
Group = _answer("Group", "Files that show the same.", id=str, kind=str, keep=str, reason=str, bytes=int,
    files=_list(File))
Unread = _answer("Unread", "A file that could not be read, and why.", path=str, reason=str)
NotMoved = _answer("NotMoved", "A file that stayed where it was, and why.", path=str, why=str)
Batch = _answer("Batch", "Files that were moved together to `folder`; `left` stayed where they were.", id=str, when=str,
    folder=str, files=int, bytes=int, state=Literal["moved", "partly", "back"], left=_list(NotMoved))
Measured = _answer("Measured", "A metric of one of the models of a run, with its 95 % interval.", base=BaseModel,
    name=str, value=float, low=(float,), high=(float,))
RunSummary = _answer("RunSummary", "A run; `best`, `first` (step 0), `last` and `curve` are its metric over the steps.",
    name=str, method=str, created=str | None, state=Literal["new", "running", "stopped", "finished", "damaged"],
    step=int | None, steps=int | None, metric=str | None, best=float | None, best_step=int | None, last=float | None,
    frozen=float | None, measured=_list(Measured), first=float | None, verdict=str, curve=list[float],
    resume=str | None, report=bool, side=str)
Series = _answer("Series", "A logged figure by step.", name=str, x=list[int], y=list[float])
RunDetails = _answer("RunDetails", "A run with all logged figures.", base=RunSummary, series=_list(Series))
Report = _answer("Report", "A report, at `/reports/{name}`.", name=str, method=str, created=str, verdict=str)
Generation = _answer("Generation",
    "A state of the index made with one model; `recall` of its graph, `ece` of its calibration.", number=int, live=bool,
    model=ModelInfo, images=int, complete=bool, created=str, updated=str, recall=float | None, ece=float | None)
ModelChoice = _answer("ModelChoice", "A model to switch to: a trained run with its best metric, or a default one.",
    name=str, kind=Literal["run", "default"], metric=str | None, best=float | None)
Counts = _answer("Counts", "Groups, their files, and the bytes that can be freed.", groups=int, files=int, bytes=int)
Duplicates = _answer("Duplicates",
    "The last search for duplicates; `reason`: why files cannot be moved, `folder`: where to they would.",
    state=Literal["none", "running", "ready"], when=str | None, images=int | None, can_move=bool, reason=str,
    folder=str, counts=GenericAlias(dict, (str, Counts)) | None, job=Job | None)
Map = _answer("Map",
    "State of the map; once there is one also its number `gen`, its `n` points and the labels of their colors.",
    state=Literal["none", "drawing", "ready"], job=Job | None, gen=(int,), previous=(int,), n=(int,), method=(str,),
    neighbor_recall=(list[float],), labels=(list[str],), columns=(list[str],))
# fmt: on


class Live(Answer):
    """The generation that answers now."""

    live: int


# Answers of endpoints below `/api/v1`; those that are not named here answer with a binary or an image.
ANSWERS: dict[str, Any] = {
    "GET /info": Info,
    "GET /indexes": Indexes,
    "GET /search": Search,
    "POST /search": Search,
    "GET /items": Items,
    "GET /items/{name}": Card,
    "DELETE /queries/{name}": _answer("Forgotten", "An upload was deleted.", forgotten=bool),
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
    "GET /index/unreadable": _answer("Unreadable", "Files that could not be read.", files=_list(Unread)),
    "POST /jobs/{name}/stop": Job,
    "GET /runs": _answer("Runs", "Runs, newest first.", runs=_list(RunSummary)),
    "GET /runs/{name}": RunDetails,
    "GET /reports": _answer("Reports", "Reports of runs, newest first.", reports=_list(Report)),
    "GET /duplicates": Duplicates,
    "POST /duplicates/find": Job,
    "GET /duplicates/groups": _answer("Groups", "A page of groups.", kind=str, total=int, groups=_list(Group)),
    "POST /duplicates/move": Batch,
    "POST /duplicates/dismiss": _answer("Dismissed", "A group was marked.", group=str, dismissed=bool),
    "GET /duplicates/history": _answer("History", "Batches of moved files.", batches=_list(Batch)),
    "POST /duplicates/history/{name}/undo": _answer("Undone", "Files moved back.", moved=int, left=_list(NotMoved)),
    "GET /map": Map,
    "POST /map/draw": Job,
    "GET /map/{gen}/codes/{column}": _answer("Names", "Values of a column.", column=str, names=list[str]),
    "GET /map/{gen}/point/{i}": Card,
    "GET /map/{gen}/points": _answer("Points", "Cards of points.", points=_list(Point)),
    "GET /map/{gen}/locate": _answer("Places", "Positions of images.", points=_list(Place)),
    "GET /generations": _answer(
        "Generations", "Generations, and the models to switch to.", live=int, generations=_list(Generation),
        models=_list(ModelChoice),
    ),
    "POST /switch": RootModel[Job | Live],
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
