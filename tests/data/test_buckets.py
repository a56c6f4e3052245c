"""Images, tables and shards in a real S3 bucket, read in place; storage that answers 503 and cuts what is sent."""

import io
import os
import tarfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import fs
from tests import bucket_server

import lookalike as la
from lookalike.core import files, storage
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.files import atomic_file
from lookalike.core.storage import list_names, location
from lookalike.data import parquet_images

pytestmark = pytest.mark.needs("s3")


def jpeg(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 50, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


IMAGES = {f"{label}/{number}é #1%20+?.jpg": jpeg(ord(label) + number) for label in "ab" for number in range(3)}
FIRST = IMAGES["a/0é #1%20+?.jpg"]
LISTED = [f"{name},{name[0]}" for name in IMAGES]


@pytest.fixture(scope="module")
def data(bucket: bucket_server.Server) -> str:
    """A bucket with the same images as a folder, in tar and in Parquet shards."""
    files = {f"photos/{name}": content for name, content in IMAGES.items()} | {"photos/readme.xyz": b"-"}
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number, (name, content) in enumerate(IMAGES.items()):
            for ending, part in (("jpg", content), ("cls", name[0].encode())):
                member = tarfile.TarInfo(f"{number:03d}.{ending}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    files |= {f"tars/train-00{number}.tar": tar.getvalue() for number in range(2)}
    rows = pa.table({"image": [{"bytes": c, "path": n} for n, c in IMAGES.items()], "label": [n[0] for n in IMAGES]})
    for compression in ("none", "snappy"):
        parquet = io.BytesIO()
        pq.write_table(rows, parquet, compression=compression, row_group_size=4)
        files[f"{compression}/train-0.parquet"] = parquet.getvalue()
    files["tables/listed.csv"] = "\n".join(["path,label", *LISTED]).encode()
    files |= {f"tables/{name}": content for name, content in IMAGES.items()}
    for name, content in files.items():
        location(f"s3://data/{name}").write_bytes(content)
    return "s3://data"


SOURCES = {
    "photos": 6, "tars": 12, "tars/train-000.tar": 6, "tars/train-{000..001}.tar": 12, "tars/train-*.tar": 12,
    "none": 6, "snappy/train-0.parquet": 6, "tables/listed.csv": 6,
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_images_in_a_bucket_are_read_in_place(data: str, name: str) -> None:
    table = la.read_table(f"{data}/{name}")
    assert len(table) == SOURCES[name] and table.labels()[1] == ["a", "b"]
    assert str(table.root).startswith("s3://data/")
    assert table.open_bytes(0) == FIRST
    assert list(map(table.open_bytes, range(6))) == list(IMAGES.values())


def test_a_local_table_lists_urls_and_tables_are_saved_to_buckets(data: str) -> None:
    Path("urls.csv").write_text("\n".join(["path,label", *(f"{data}/photos/{line}" for line in LISTED)]))
    table = la.read_table("urls.csv")
    assert str(table.root) == "s3://data/photos" and table.open_bytes(0) == FIRST
    table.save(f"{data}/saved/table.parquet")
    again = la.read_table(f"{data}/saved/table.parquet")
    assert again.arrow.equals(table.arrow) and again.open_bytes(5) == IMAGES["b/2é #1%20+?.jpg"]


def test_an_image_costs_two_requests_and_one_in_a_shard_no_more_than_its_part(
    bucket: bucket_server.Server, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, requests = os.urandom(500_000), []
    location(f"{data}/large/a.jpg").write_bytes(large)
    monkeypatch.setattr(files, "MAX_SPARSE", 100_000)  # there are no holes in a bucket
    with bucket_server.failing(bucket.port, lambda head, _: requests.append(head)) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name, images, most in (("large", [large], 2), ("tars/train-000.tar", IMAGES.values(), 7)):
            table = la.read_table(f"{data}/{name}")
            requests.clear()
            assert [table.open_bytes(row) for row in range(len(table))] == list(images)
            assert len(requests) <= most, requests
        table = la.read_table(f"{data}/snappy")
        requests.clear()
        assert [table.open_bytes(row) for row in range(6)] == list(IMAGES.values())
        assert len(requests) <= 4, "the size, the footer, and two row groups"


@pytest.mark.parametrize("statistics", [True, False])
def test_a_table_with_compressed_images_in_a_bucket_is_read_without_its_images(
    statistics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(storage, "_filesystem", lambda *_: local)
    bucket = f"bucket-{statistics}"
    (tmp_path / bucket / "data").mkdir(parents=True)
    images = [{"bytes": os.urandom(200_000), "path": f"{i}.jpg"} for i in range(40)]
    images[7] = None if not statistics else images[7]  # type: ignore[call-overload]
    rows = pa.table({"image": images, "label": ["a", "b"] * 20})
    pq.write_table(rows, tmp_path / bucket / "data/t.parquet", row_group_size=10, write_statistics=statistics)
    count, most = [], []
    read, group = storage.RemoteFile.readinto, parquet_images.read_group

    def readinto(self: storage.RemoteFile, buffer: bytearray) -> int:
        count.append(read(self, buffer))
        return count[-1]

    def read_group(*arguments: Any) -> pa.ChunkedArray:
        most.append(pa.total_allocated_bytes())
        return group(*arguments)

    monkeypatch.setattr(storage.RemoteFile, "readinto", readinto)
    monkeypatch.setattr(parquet_images, "read_group", read_group)
    table = la.read_table(f"s3://{bucket}/data")
    size = (tmp_path / bucket / "data/t.parquet").stat().st_size
    if statistics:
        assert len(table) == 40 and sum(count) < 1_500_000 < size / 5 and not most
    else:  # one row group after the other
        assert len(table) == 39 and len(most) == 4 and max(most) - most[0] < 1_500_000
    assert table.open_bytes(3) == images[3]["bytes"]


@pytest.mark.parametrize(
    "url, message",
    [
        ("s3://data/nothing", "does not exist"),
        ("s3://data/tables/none.csv", "does not exist"),
        ("s3://no-such-bucket/x", "does not exist"),
        ("s3://", "is no place in a bucket"),
        ("s3://data/../x", "is no place in a bucket"),
        ("s3://data/tars/train-{000..003}.tar", "names 2 files that do not exist"),
    ],
)
def test_what_is_not_in_a_bucket_is_one_sentence(data: str, url: str, message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        la.read_table(url)


def test_an_image_that_is_gone_is_missing_and_a_server_that_is_gone_is_not(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location(f"{data}/some/a/1.jpg").write_bytes(FIRST)
    table = la.read_table(f"{data}/some")
    location(f"{data}/some/a/1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match="no such object"):
        table.open_bytes(0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(storage, "ATTEMPTS", 1)
    with pytest.raises(Unavailable):
        table.open_bytes(0)


def test_storage_that_is_busy_or_cuts_what_is_sent_ends_with_whole_objects(
    bucket: bucket_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(300_000)
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)

    def fails(line: str, number: int) -> str | None:
        return "503" if number in (1, 4) else "cut" if line.startswith("PUT") and number == 2 else None

    with bucket_server.failing(bucket.port, fails) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        path = location("s3://data/busy/whole.bin")
        path.write_bytes(content)
        assert path.read_bytes() == content
        assert list_names(path.parent) == {"whole.bin": len(content)}


def test_an_embed_job_ends_with_whole_parts_behind_storage_that_fails(
    data: str, bucket: bucket_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request in seven is answered 503, and of those that send, one in five is cut in half."""
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    model = la.Embedder.from_pretrained("test_efficientnet", weights="random", size=32)

    def fails(line: str, number: int) -> str | None:
        return "503" if number % 7 == 3 else "cut" if line.startswith(("PUT", "POST")) and number % 5 == 2 else None

    whole = {}
    for name, port in (("plain", bucket.port), ("failing", None)):
        out = f"{data}/embedded/{name}"
        with bucket_server.failing(bucket.port, fails if port is None else lambda *_: None) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port or proxy}")
            done = la.embed(source=f"{data}/photos", out=out, model=model, block=2, runtime="torch", progress=False)
        assert done.count == 6 and done.parts == 3
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.port}")
        assert la.embed(source=f"{data}/photos", out=out, verify=True).count == 6
        whole[name] = {path.name: path.read_bytes() for path in location(out).rglob("part-*")}
    assert whole["plain"] == whole["failing"]


def test_a_file_or_stream_of_which_a_part_is_lost_is_sent_again_or_refused(
    bucket: bucket_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it took all, and has half: the first time, or always."""
    path, lost = location("s3://data/lossy/file.bin"), []
    real = storage.RemotePath._fs.fget(path)  # type: ignore[attr-defined]

    class Lossy:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def get_file_info(self, place: str) -> object:
            info = real.get_file_info(place)
            lost.append(place)
            return info if len(lost) > 1 and not always else type("Half", (), {"size": info.size // 2})

    monkeypatch.setattr(storage.RemotePath, "_fs", Lossy())
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    always = False
    with atomic_file("s3://data/lossy/file.bin") as part:
        part.write_bytes(bytes(1000))
    assert len(lost) == 2
    always = True
    with pytest.raises(Unavailable, match="arrived with 500 of 1,000 bytes"), atomic_file(str(path)) as part:
        part.write_bytes(bytes(1000))
    with pytest.raises(Unavailable, match="arrived with 2 of 4 bytes"), path.writing() as file:  # type: ignore[attr-defined]
        file.write(b"tail")
    monkeypatch.undo()


def test_a_mirror_is_sent_by_a_thread_and_its_owner_at_once_and_says_what_fails(
    bucket: bucket_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    mirror = storage.Mirror(storage.RemotePath("s3://data/mirrored/run"), folder)
    with mirror.following(0.001):
        for number in range(40):
            (folder / f"{number}.txt").write_text(str(number))
            if number > 4:
                (folder / f"{number - 5}.txt").unlink()
            mirror.send()
    assert set(list_names(location("s3://data/mirrored/run"))) == {f"{number}.txt" for number in range(35, 40)}
    assert capsys.readouterr().err == ""

    sent = threading.Event()

    def broken() -> None:
        sent.set()
        raise RuntimeError("disk on fire")

    with monkeypatch.context() as patch, mirror.following(0.001):
        patch.setattr(mirror, "send", broken)
        assert sent.wait(20)
        time.sleep(0.1)
        patch.undo()
    assert "is behind its copy" in (err := capsys.readouterr().err) and "disk on fire" in err


def test_a_stream_that_fails_leaves_nothing_half(bucket: bucket_server.Server) -> None:
    path = location("s3://data/streams/half.bin")
    with pytest.raises(ZeroDivisionError), path.writing() as file:  # type: ignore[attr-defined]
        file.write(b"half")
        raise ZeroDivisionError
    assert not path.exists()


def test_wrong_keys_are_one_sentence_without_the_keys(
    bucket: bucket_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    storage._filesystem.cache_clear()
    with pytest.raises(Unavailable, match=r"ACCESS_DENIED|signature") as caught:
        location("s3://data/ready").read_bytes()
    storage._filesystem.cache_clear()
    assert "not-the-secret" not in str(caught.value)


def test_keys_that_are_no_paths_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["a/1.jpg", "a/../../../etc/passwd.jpg", "a//2.jpg", "./3.jpg", "b/4.jpg"]
    infos = [fs.FileInfo(f"bucket/x/{key}", fs.FileType.File, size=1) for key in keys]
    stub = SimpleNamespace(get_file_info=lambda _: infos)
    monkeypatch.setattr(storage, "_filesystem", lambda *_: stub)
    names = [path.as_posix() for path in location("s3://bucket/x").rglob("*")]
    assert names == ["s3://bucket/x/a/1.jpg", "s3://bucket/x/b/4.jpg"]
    assert "3 keys in `s3://bucket/x` are left out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_hundred_thousand_keys_are_listed_in_seconds(bucket: bucket_server.Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    place = location("s3://data/many")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: (place / f"{n % 100:02d}/{n:06d}.jpg").write_bytes(b"x"), range(100_000)))
    table = la.read_table("s3://data/many")
    assert len(table) == 100_000 and len(table.labels()[1]) == 100
