"""One suite over every kind of data: the same images give the same table, vectors, audit and index."""

from __future__ import annotations

import importlib.util
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.kinds import CLASSES, IN_MEMORY, MAKERS, arrow_table, make_photos, rows_of
from tests.helpers import ROOT

import lookalike as la
from lookalike.core.errors import LookalikeError
from lookalike.data import Table, audit, content_id, decode, read_table, thumbnail
from lookalike.data.readers import SOURCES, expand
from lookalike.data.readers.columns import unused_split
from lookalike.models import Embedder
from lookalike.training.settings import DataSettings
from lookalike.training.split import divide


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("kinds") / "photos")


@pytest.fixture(scope="module")
def model() -> Embedder:
    return Embedder.from_pretrained("resnet10_small", weights="random", size=32)


@pytest.fixture(scope="module", params=[name for name in SOURCES if name in MAKERS])
def source(request: pytest.FixtureRequest, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made, options = MAKERS[request.param](photos, tmp_path_factory.mktemp(request.param))
    return request.param, made, options


def docs_generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_content(table: Table) -> dict[str, int]:
    return {content_id(decode(table.open_bytes(i))): i for i in range(len(table))}


def test_every_kind_in_the_documents_is_tested() -> None:
    assert set(SOURCES) == {*MAKERS, "hub"}  # tests/data/test_hub.py
    assert f"| {SOURCES['parquet'][0]} |" in docs_generator().data_sources()


def test_images_and_labels_are_those_of_the_files(source: Any, photos: Path) -> None:
    _, made, options = source
    table = read_table(made, **options)
    expected = by_content(read_table(photos))
    found = by_content(table)
    assert found.keys() == expected.keys() and len(table) == 24
    labels = read_table(photos).column("label")
    assert {i: table.column("label")[i] for i in found.values()} == {found[c]: labels[i] for c, i in expected.items()}
    assert table.labels()[1] == CLASSES
    assert len(set(table.column("row_id"))) == 24
    assert read_table(made, **options).fingerprint() == table.fingerprint()


def test_vectors_are_those_of_the_files(source: Any, photos: Path, model: Embedder) -> None:
    _, made, options = source
    table = read_table(made, **options)
    expected, order = model.encode(read_table(photos)), by_content(read_table(photos))
    vectors = model.encode(table)
    for content, row in by_content(table).items():
        np.testing.assert_allclose(vectors[row], expected[order[content]], atol=1e-6)


def test_audit_thumbnails_and_copies(source: Any) -> None:
    name, made, options = source
    table = read_table(made, **options)
    result = audit(table, near=False)
    assert len(result.table) == 24 and result.table.has("content_id") and not result.unreadable
    assert thumbnail(table.open_bytes(3), 32).startswith(b"\xff\xd8")
    some = table.take(np.array([5, 2]))
    assert some.open_bytes(0) == table.open_bytes(5)
    if name != "torch":  # its class is the test's own
        assert pickle.loads(pickle.dumps(some)).open_bytes(1) == table.open_bytes(2)


def test_an_index_shows_them_later(source: Any, photos: Path, model: Embedder, tmp_path: Path) -> None:
    name, made, options = source
    if not isinstance(made, (str, Path)):
        with pytest.raises(LookalikeError, match="in memory"):
            la.index(folder=made, index=tmp_path / "index")
        assert name.startswith(("datasets", *IN_MEMORY))
        return
    options = {"root": "/", **options} if name == "csv" else options  # it lists files elsewhere
    la.index(folder=made, model=model, index=tmp_path / "index", calibrate=False, progress=False, **options)
    query = rows_of(photos)[7][0]
    hits = la.search(query=query, index=tmp_path / "index", k=1)
    with la.Index.open(tmp_path / "index") as index:
        data = index.open_bytes(index.store.get([hits.hits[0].id])[0])
    assert data == query.read_bytes() and hits.hits[0].payload["label"] == query.parent.name
    again = la.index(folder=made, index=tmp_path / "index", calibrate=False, progress=False, **options)
    assert (again.new, again.changed, again.deleted) == (0, 0, 0)


def test_duplicates_are_found_inside_tables(photos: Path, tmp_path: Path) -> None:
    table = arrow_table(photos)
    pq.write_table(pa.concat_tables([table, table.slice(0, 2)]), tmp_path / "twice.parquet")
    options: dict[str, Any] = {"source": tmp_path / "twice.parquet", "kinds": ["identical"], "progress": False}
    assert [len(group.files) for group in la.duplicates(**options).groups] == [2, 2]
    moved = la.duplicates(move=True, **options).moved
    assert moved is not None and moved.files == 0  # what lies inside a table stays there


def test_lists_and_frames_hold_paths_images_or_arrays(photos: Path) -> None:
    import pandas

    files = [file for file, _ in rows_of(photos)]
    labels = [label for _, label in rows_of(photos)]
    arrays = [np.asarray(Image.open(file)) for file in files]
    images = [Image.fromarray(array) for array in arrays]
    sources: list[tuple[Any, dict[str, Any]]] = [
        (pandas.DataFrame({"photo": files, "species": labels}), {"image_column": "photo", "label_column": "species"}),
        (pandas.DataFrame({"image": images, "label": labels}).sample(frac=1, random_state=0), {}),
        ({"image": arrays, "label": labels}, {}),
        (images, {"labels": labels}),
        (list(zip(arrays, labels, strict=True)), {}),
        (np.stack(arrays), {"labels": labels}),
    ]
    for source, options in sources:
        table = read_table(source, **options)
        assert len(table) == 24 and table.labels()[1] == CLASSES and "__index_level_0__" not in table.names
        assert by_content(table).keys() == {content_id(array) for array in arrays}
    assert by_content(read_table(files)).keys() == {content_id(array) for array in arrays}  # without labels


def test_shards_in_folders_of_splits_in_lists_and_with_mapped_columns(photos: Path, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation")):
        (tmp_path / "shards" / split).mkdir(parents=True)
        with tarfile.open(tmp_path / "shards" / split / f"{number:03d}.tar", "w") as tar:
            for at, (file, label) in enumerate(rows_of(photos)[number::2]):
                for name, data in ((f"{at}.jpg", file.read_bytes()), (f"{at}.json", f'{{"bird": "{label}"}}'.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    shards = sorted((tmp_path / "shards").rglob("*.tar"))
    for source in (tmp_path / "shards", shards, f"{tmp_path}/shards/{{train/000,validation/001}}.tar"):
        table = read_table(source, label_column="bird")
        assert table.labels()[1] == CLASSES and table.labels("split")[1] == ["train", "val"]
    (shards[0].parent / "001.tar").write_bytes(shards[0].read_bytes())
    assert [path.name for path in expand(shards[0].parent / "{001..000}.tar")] == ["000.tar", "001.tar"]


def test_parquet_with_paths_alone_reads_the_files(photos: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": str(file.relative_to(photos))} for file, _ in rows_of(photos)]
    pq.write_table(pa.table({"scan": pa.array(rows, kind)}), photos / "paths.parquet")
    try:
        assert by_content(read_table(photos / "paths.parquet")).keys() == by_content(read_table(photos)).keys()
    finally:
        (photos / "paths.parquet").unlink()


# ---- columns -------------------------------------------------------------------------------------


def test_columns_are_mapped_and_values_of_the_split_too(photos: Path, tmp_path: Path) -> None:
    table = arrow_table(photos, struct=False).append_column("fold", pa.array([i % 3 for i in range(24)]))
    pq.write_table(table, tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet", label_column="species", split_column="fold:train=0,1,test=2")
    assert (read.column("split") == "test").tolist() == [i % 3 == 2 for i in range(24)]
    assert read_table(read, label_column="split").labels()[1] == ["test", "train"]
    with pytest.raises(LookalikeError, match="write `fold:train=A,B,test=C`"):
        read_table(tmp_path / "t.parquet", split_column="fold:0,1")
    with pytest.raises(LookalikeError, match=r"no column `specie`: it has species, fold; did you mean `species`"):
        read_table(tmp_path / "t.parquet", label_column="specie")


def test_a_missing_column_is_guessed(photos: Path, tmp_path: Path) -> None:
    pq.write_table(arrow_table(photos, struct=False), tmp_path / "t.parquet")
    for use in (lambda: la.evaluate(data=tmp_path / "t.parquet"), lambda: la.train(data=tmp_path / "t.parquet")):
        with pytest.raises(LookalikeError, match="`species` looks like labels: --label-column species"):
            use()
    lines = [f"{file},{file.parent.name}" for file, _ in rows_of(photos)]
    (tmp_path / "t.csv").write_text("\n".join(["scan,species", *lines]))
    with pytest.raises(LookalikeError, match="`scan` looks like images: --image-column scan"):
        read_table(tmp_path / "t.csv")
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "none.parquet")
    with pytest.raises(LookalikeError, match="no column of images; its columns are a, b"):
        read_table(tmp_path / "none.parquet")


def test_the_tables_own_split_is_used_and_said(
    photos: Path, tmp_path: Path, model: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    table = arrow_table(photos).append_column("split", pa.array(["train", "train", "test"] * 8))
    pq.write_table(table, tmp_path / "t.parquet")
    options: dict[str, Any] = {"data": tmp_path / "t.parquet", "model": model, "recall_at": (1,)}
    assert len(la.evaluate(**options).table) == 8
    assert "has a split of its own (16 train, 8 test): measured on `test`" in capsys.readouterr().err
    assert len(la.evaluate(split="all", **options).table) == 24
    settings = {"model": {"weights": "random", "size": 32}, "sampler": {"classes_per_batch": 2}}
    plan = la.train(data=tmp_path / "t.parquet", dry_run=True, steps=2, model="resnet10_small", settings=settings)
    assert plan is not None and "The split is the data's own: 16 train, 8 test" in capsys.readouterr().err


def test_a_split_with_names_of_its_own_is_said_and_can_be_mapped(photos: Path, tmp_path: Path) -> None:
    import datasets

    made, _ = MAKERS["datasets-dict"](photos, tmp_path)
    named = datasets.DatasetDict({"seen": made["train"], "unseen": made["test"]})
    table = read_table(named)
    assert table.labels("split")[1] == ["seen", "unseen"]
    message = "says what they stand for"
    assert f"--split-column split:train=seen,test=unseen {message}" in unused_split(table)
    assert any(message in note for note in divide(table, DataSettings()).notes)
    for source in (named, table):
        mapped = read_table(source, split_column="split:train=seen,test=unseen")
        assert mapped.labels("split")[1] == ["test", "train"] and not unused_split(mapped)
        assert divide(mapped, DataSettings()).rule == "table"
    half = datasets.DatasetDict({"train": made["train"], "unseen": made["test"]})
    assert len(divide(read_table(half), DataSettings()).test)  # not the part `train` alone
    assert not unused_split(read_table(photos))


# ---- damage --------------------------------------------------------------------------------------


def test_corrupt_bytes_in_a_row_are_named_and_the_rest_goes_on(photos: Path, tmp_path: Path, model: Embedder) -> None:
    table = arrow_table(photos, struct=False)
    images = table["jpg"].to_pylist()
    images[17] = b"\xff\xd8\xffbroken"
    for number, compression in enumerate(("none", "snappy")):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(table.set_column(0, "jpg", pa.array(images)), file, compression=compression)
        done = la.embed(source=file, out=tmp_path / "v.parquet", model=model, progress=False)
        assert done.count == 23 and [f.name for f in done.failures] == [f"{number}/{number}.parquet/row-17"]
        assert [row for row, _ in audit(read_table(file), near=False).unreadable] == [done.failures[0].name]


def test_a_torch_data_set_with_a_broken_image_goes_on(photos: Path, tmp_path: Path, model: Embedder) -> None:
    class Broken:
        def __len__(self) -> int:
            return 24

        def __getitem__(self, item: int) -> tuple[Any, int]:
            if item == 17:
                raise OSError("broken file")
            return np.full((8, 8, 3), item, np.uint8), item % 2

    done = la.embed(source=read_table(Broken()), out=tmp_path / "v.npy", model=model, progress=False)
    assert done.count == 23 and [f.name for f in done.failures] == ["Broken/Broken/row-17"]


def test_a_subset_has_the_names_of_its_data_set_and_labels_are_no_arrays(photos: Path, tmp_path: Path) -> None:
    from torch import eye
    from torch.utils.data import Subset

    made, _ = MAKERS["torch"](photos, tmp_path)
    assert read_table(Subset(made, [0, 7, 23])).column("label").tolist() == ["gull", "heron", "tern"]
    with pytest.raises(LookalikeError, match=r"has the shape \(4,\)"):
        read_table(Subset([(np.zeros((8, 8), np.uint8), row) for row in eye(4)], range(4)))


def test_data_sets_without_rows_and_those_saved_by_datasets_are_one_message(tmp_path: Path) -> None:
    import datasets

    with pytest.raises(LookalikeError, match="holds no data sets"):
        read_table(datasets.DatasetDict())
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(LookalikeError, match=r"pass `datasets.load_from_disk\(…\)`"):
        read_table(tmp_path)


def test_damaged_pages_are_one_message(photos: Path, tmp_path: Path) -> None:
    pq.write_table(arrow_table(photos), tmp_path / "t.parquet", compression="none", use_dictionary=False)
    whole = (tmp_path / "t.parquet").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(30):
        data = bytearray(whole)
        for place in rng.integers(4, 400, 4):  # in the headers of the first pages
            data[place] = rng.integers(256)
        (tmp_path / "t.parquet").write_bytes(data)
        try:
            table = read_table(tmp_path / "t.parquet")
            assert all(len(table.open_bytes(i)) < len(whole) for i in range(len(table)))
        except LookalikeError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "The list of images is empty"),
        ((["a.jpg"], [1, 2]), "1 paths and 2 labels"),
        (7, "is no data set"),
        ({"image": [b"x"], "label": [1, 2]}, "cannot be read"),
        ([3, 4], "holds paths, bytes or PIL images"),
        ("nowhere/at-all", "does not exist here, and the Hub cannot be reached"),
        ("nowhere-{0..3}.tar", "does not exist"),
    ],
)
def test_bad_sources_are_one_message(source: Any, message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        read_table(source)


def test_missing_shards_of_a_pattern_are_counted(photos: Path, tmp_path: Path) -> None:
    made, _ = MAKERS["webdataset"](photos, tmp_path)
    with pytest.raises(LookalikeError, match=r"names 2 files that do not exist"):
        read_table(made.replace("002", "004"))
    assert len(read_table(made.replace("{000..002}", "*"))) == 24


def test_rows_without_an_image_are_left_out(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = arrow_table(photos, struct=False)
    images = table["jpg"].to_pylist()
    images[3] = None
    for compression in ("none", "zstd"):
        pq.write_table(table.set_column(0, "jpg", pa.array(images)), tmp_path / "t.parquet", compression=compression)
        assert len(read_table(tmp_path / "t.parquet")) == 23
        assert "1 row without an image in" in capsys.readouterr().err


def test_a_data_set_of_gray_transparent_and_missing_images_and_missing_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    images = [Image.new(mode, (8, 8)) for mode in ("RGB", "L", "RGBA", "LA")]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    columns = {"image": [*images, None], "label": [0, None, 1, 1, 0]}
    made = datasets.Dataset.from_dict(columns, features=features)
    made.to_parquet(tmp_path / "t.parquet")
    for source in (made, tmp_path / "t.parquet"):
        table = read_table(source)
        assert table.column("label").tolist() == ["ant", None, "bee", "bee"]
        assert [decode(table.open_bytes(i)).shape for i in range(4)] == [(8, 8, 3)] * 4
        assert "1 row without an image in" in capsys.readouterr().err
    assert len(read_table(made.select([3, 1]))) == 2 and capsys.readouterr().err == ""


def test_lists_of_class_labels_are_read_by_their_names(tmp_path: Path) -> None:
    import datasets

    kind = datasets.Sequence(datasets.ClassLabel(names=["ant", "bee", "cow"]))
    features = datasets.Features({"image": datasets.Image(), "tags": kind})
    columns = {"image": [Image.new("RGB", (8, 8))] * 4, "tags": [[0, 2], [1], [], None]}
    made = datasets.Dataset.from_dict(columns, features=features)
    made.to_parquet(tmp_path / "t.parquet")
    for source in (made, tmp_path / "t.parquet"):
        matrix, names = read_table(source).label_matrix()
        assert names == ["ant", "bee", "cow"] and matrix.astype(int).tolist() == [
            [1, 0, 1],
            [0, 1, 0],
            [0] * 3,
            [0] * 3,
        ]


def test_series_and_missing_labels_of_several_kinds(photos: Path) -> None:
    import pandas
    import polars

    files = [str(file) for file, _ in rows_of(photos)][:4]
    for series in (pandas.Series(files), polars.Series(files)):
        assert len(read_table(series)) == 4
    labels = ["a", None, float("nan"), "b"]
    assert read_table(files, labels=labels).column("label").tolist() == ["a", None, None, "b"]
    assert Table.from_columns({"path": files, "label": labels}, name="t").labels()[0].tolist() == [0, -1, -1, 1]
    with pytest.raises(LookalikeError, match=r"column `label` cannot be read"):
        read_table({"path": files, "label": ["a", 1, "b", 2]})


def test_several_columns_of_images_are_named(tmp_path: Path) -> None:
    table = pa.table({"left": [b"x"], "right": [b"y"], "label": ["a"]})
    pq.write_table(table, tmp_path / "t.parquet")
    for source in (table, tmp_path / "t.parquet"):
        with pytest.raises(LookalikeError, match=r"several columns of images \(left, right\): --image-column left"):
            read_table(source)
    with pytest.raises(LookalikeError, match="column `image` cannot be read"):
        read_table({"image": [[[1, 2]]], "label": ["a"]})


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("page", [2000, 1_000_000])
def test_offsets_are_exact_in_every_form_of_page(
    photos: Path, tmp_path: Path, version: str, dictionary: bool, page: int
) -> None:
    file, whole = tmp_path / "t.parquet", arrow_table(photos)
    options: dict[str, Any] = {"use_dictionary": dictionary, "data_page_version": version, "data_page_size": page}
    pq.write_table(pa.concat_tables([whole, whole]), file, compression="none", row_group_size=31, **options)
    table = read_table(file)
    assert table.has("offset") and not table.has("shard_row")
    expected = [row["bytes"] for row in whole["image"].to_pylist()]
    assert [table.open_bytes(i) for i in range(48)] == expected * 2
