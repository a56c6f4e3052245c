"""The blocks of a report: every package writes its `Section` as JSON, and `reporting` renders it.

    run.write_section("table", Section(title="Retrieval metrics", order=20, blocks=[Grid(...), Lines(...)]))

Lists may be NumPy arrays. NaN and infinity are refused: leave the row out, or use `None` in a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, Field, model_validator

# Where a section stands in the report; other sections take numbers between.
VERDICT, TABLE, CHANGED, WORST, CALIBRATION, CURVES, CLASSES, MAP, AUDIT, SETTINGS = range(10, 110, 10)


def _plain(value: Any) -> Any:
    """Return NumPy arrays and scalars as Python values, and replace what UTF-8 cannot encode in texts."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_numpy(cls, data: Any) -> Any:
        return {name: _plain(value) for name, value in data.items()} if isinstance(data, dict) else data


Floats = Annotated[list[float], BeforeValidator(_plain)]
Ints = Annotated[list[int], BeforeValidator(_plain)]


class _Interval(_Part):
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval needs both `low` and `high`")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"the interval {self.low} to {self.high} is upside down")
        return self


class Value(_Interval):
    """A number with its confidence interval.

    `signed` prints a plus sign, too, and `unit` follows the number ("points", "%").
    """

    value: float
    digits: int = Field(default=3, ge=0, le=8)
    signed: bool = False
    unit: str = ""
    level: float = Field(default=0.95, gt=0, lt=1)
    """How often such an interval should hold."""

    @classmethod
    def of(cls, interval: Any, **options: Any) -> Value:
        """Return the value of anything with `value`, `low` and `high`, such as `evaluation.bootstrap.Interval`."""
        return cls(value=interval.value, low=interval.low, high=interval.high, **options)

    def number(self, value: float | None = None) -> str:
        return number(self.value if value is None else value, self.digits, signed=self.signed)

    def __str__(self) -> str:
        text = f"{self.number()} {self.unit}".rstrip()
        if self.low is None or self.high is None:
            return text
        return f"{text} ({self.number(self.low)} to {self.number(self.high)})"


Cell = Annotated[Value | str | bool | int | float | None, BeforeValidator(_plain)]


class Image(_Part):
    """A thumbnail: `file` is what `Run.store_image` returned, `alt` its label or file name."""

    file: str = Field(pattern=r"^[0-9a-f]{32}\.jpg$")
    alt: str
    label: str = ""


class _Block(_Part):
    title: str = ""
    note: str = ""
    folded: bool = False  # shown closed, behind its title


class Figure(_Part):
    """One large number of the verdict."""

    label: str
    value: Cell
    note: str = ""


class Verdict(_Block):
    """The conclusion in one sentence; `line` is the small print: data, date, seeds, load."""

    kind: Literal["verdict"] = "verdict"
    message: str
    figures: list[Figure] = []
    line: str = ""
    tone: Literal["better", "same", "worse", "plain"] = "plain"


class Text(_Block):
    """Plain paragraphs, separated by empty lines."""

    kind: Literal["text"] = "text"
    text: str


class Code(_Block):
    """A command or a file, shown verbatim."""

    kind: Literal["code"] = "code"
    text: str


class Facts(_Block):
    """Names and values, one per line."""

    kind: Literal["facts"] = "facts"
    rows: list[tuple[str, Cell]]


class Grid(_Block):
    """A table; `whisker` names a column of `Value`s that is also drawn, on one axis, beside the rows."""

    kind: Literal["grid"] = "grid"
    columns: list[str]
    rows: list[list[Cell]]
    whisker: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells for {len(self.columns)} columns")
        if self.whisker is not None and self.whisker not in self.columns:
            raise ValueError(f"there is no column `{self.whisker}` to draw")
        return self


class Bar(_Part):
    """One bar of `Bars`."""

    name: str
    value: float
    note: str = ""


class Whisker(Bar, _Interval):
    """One row of `Whiskers`: a value and its interval."""


class Whiskers(_Block):
    """Values with intervals, one per row, on one axis; `reference` is a dashed line (0 for differences)."""

    kind: Literal["whiskers"] = "whiskers"
    rows: list[Whisker]
    label: str = ""
    reference: float | None = None


class Series(_Part):
    """One curve of `Lines`, with an optional band."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    dashed: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("a band needs both `low` and `high`")
        if any(len(v) != len(self.x) for v in (self.y, self.low, self.high) if v is not None):
            raise ValueError(f"the lists of the line `{self.name}` are not equally long")
        return self


class Mark(_Part):
    """A labeled position on the x axis, such as the best step."""

    x: float
    label: str


class Lines(_Block):
    """Curves; a dashed series with a single point is drawn as a level across the chart."""

    kind: Literal["lines"] = "lines"
    x_label: str
    y_label: str
    series: list[Series]
    marks: list[Mark] = []


class Hit(_Part):
    """One search result; `ok` says whether it is relevant, if that is known."""

    image: Image
    ok: bool | None = None  # None: nothing is known
    score: float
    probability: float | None = Field(default=None, ge=0, le=1)


class HitList(_Part):
    """The results of one model."""

    name: str
    hits: list[Hit]


class HitRow(_Part):
    """A query and the results of each model."""

    query: Image
    lists: list[HitList]
    note: str = ""


class Hits(_Block):
    """Queries with their results; the first rows are kept if the report would become too large."""

    kind: Literal["hits"] = "hits"
    rows: list[HitRow]


class Arrow(_Interval):
    """A change of one class; `low` and `high`, where known, are the interval of `after`."""

    name: str
    before: float
    after: float
    count: int = Field(default=0, ge=0)


class Arrows(_Block):
    """Changes from before to after, one per row; the 30 lowest and 30 highest are drawn, the rest is collapsed."""

    kind: Literal["arrows"] = "arrows"
    rows: list[Arrow]
    label: str = ""
    before: str = "frozen"
    after: str = "trained"


class Bin(_Interval):
    """One bin of a reliability diagram."""

    p: float = Field(ge=0, le=1)
    observed: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)
    count: int = Field(ge=0)


class Reliability(_Block):
    """A reliability diagram with intervals; `ece` is the expected calibration error."""

    kind: Literal["reliability"] = "reliability"
    bins: list[Bin]
    ece: Value | float


class Panel(_Part):
    """One panel of a map: the coordinates of all points."""

    title: str
    x: Floats
    y: Floats


class Scatter(_Block):
    """A map: the same points in one or two panels.

    `codes` (−1: none) index `names`; `images` gives some points, by their index, a thumbnail.
    """

    kind: Literal["scatter"] = "scatter"
    panels: list[Panel] = Field(min_length=1, max_length=2)
    codes: Ints
    names: list[str]
    images: dict[int, Image] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        n = len(self.codes)
        if any(len(v) != n for panel in self.panels for v in (panel.x, panel.y)):
            raise ValueError("the panels and codes of a map are not equally long")
        if n and not (min(self.codes) >= -1 and max(self.codes) < len(self.names)):
            raise ValueError("a code of the map has no name")
        if any(not 0 <= i < n for i in self.images):
            raise ValueError("an image of the map belongs to no point")
        return self


class HeatPanel(_Part):
    """One square matrix of a `Heat` block."""

    title: str
    values: list[Floats]


class Heat(_Block):
    """Up to three square matrices side by side, drawn as colors; row and column n are `names[n]`.

    Each panel has its own scale from 0 to its largest value; negative values have another color.
    """

    kind: Literal["heat"] = "heat"
    names: list[str]
    panels: list[HeatPanel] = Field(min_length=1, max_length=3)
    x_label: str = ""
    y_label: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        n = len(self.names)
        if any(len(panel.values) != n or any(len(line) != n for line in panel.values) for panel in self.panels):
            raise ValueError(f"a panel is not {n} × {n}, as its names are")
        return self


class Bars(_Block):
    """A bar chart."""

    kind: Literal["bars"] = "bars"
    rows: list[Bar]
    label: str = ""


Block = Annotated[
    Verdict | Text | Code | Facts | Grid | Whiskers | Lines | Hits | Arrows | Reliability | Scatter | Heat | Bars,
    Field(discriminator="kind"),
]


class Section(_Part):
    """A part of the report; `order` is its position (10 verdict ... 100 settings)."""

    title: str
    order: int
    blocks: list[Block]


def text_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *body)]


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """Return a number as text, such as `0.612`, `−1.20` or `5,924`: with a real minus sign and no negative zero."""
    form = "," if isinstance(value, int) and abs(value) > 1 << 60 else f",.{digits}f"  # too large to be a float
    text = f"{value:{'+' if signed else ''}{form}}"
    if value and not any(c in "123456789" for c in text) and text[0] in "+-":
        text = text[1:]
    return text.replace("-", "−")


def log_lines(
    log: Sequence[Mapping[str, Any]],
    label: str,
    names: Mapping[str, str],
    *,
    title: str = "",
    note: str = "",
    dashed: Sequence[str] = ("memory/floor",),
) -> Lines:
    """A chart of values of the log over the steps; what was never logged is left out.

    Args:
        log: Rows of the log.
        label: Label of the y axis.
        names: Name in the chart of each logged value.
        title: Title of the chart.
        note: Note below it.
        dashed: Values that are drawn as dashed lines.
    """
    series = []
    for key, name in names.items():
        rows = [row for row in log if key in row]
        if rows:
            x, y = ([row[column] for row in rows] for column in ("step", key))
            series.append(Series(name=name, x=x, y=y, dashed=key in dashed))
    return Lines(x_label="step", y_label=label, series=series, title=title, note=note)
