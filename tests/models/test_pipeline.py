"""`encode`: everything it accepts, in order, in bounded memory, from threads and after a fork."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import LookalikeError
from lookalike.data import RandomView, Table, UnreadableImage, prepare, read_table
from lookalike.models import Embedder, Failure
from lookalike.models.inference import pipeline
from tests.helpers import make_image


@pytest.fixture
def rows(model: Embedder, files: list[Path]) -> np.ndarray:
    return model.encode(files, runtime="torch")


def test_unit_rows_in_order(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    assert rows.dtype == np.float32
    assert rows.shape == (12, model.dim)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert len(np.unique(rows.round(6), axis=0)) == 12  # or the order could not be seen
    backwards = model.encode(files[::-1], runtime="torch", batch_size=5)
    np.testing.assert_allclose(backwards[::-1], rows, atol=1e-6)
    one_by_one = np.stack([model.encode(file, runtime="torch") for file in files])
    np.testing.assert_allclose(one_by_one, rows, atol=1e-6)


def kinds(files: list[Path]) -> dict[str, object]:
    arrays = [np.asarray(Image.open(file)) for file in files]
    return {
        "texts": [str(file) for file in files],
        "bytes": [file.read_bytes() for file in files],
        "pil": [Image.open(file) for file in files],
        "arrays": arrays,
        "one array": np.stack(arrays),
        "objects": np.array(files, dtype=object),
        "generator": (file for file in files),
        "tuple": tuple(files),
        "table": read_table(files[0].parent.parent),
    }


@pytest.mark.parametrize(
    "kind", ["texts", "bytes", "pil", "arrays", "one array", "objects", "generator", "tuple", "table"]
)
def test_everything_it_accepts(model: Embedder, files: list[Path], rows: np.ndarray, kind: str) -> None:
    got = model.encode(kinds(files)[kind], runtime="torch")
    # Pillow and simplejpeg carry different versions of the same decoder.
    np.testing.assert_allclose(got, rows, atol=2e-3 if kind in ("pil", "arrays", "one array") else 1e-6)


def test_one_image_gives_one_vector(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    for one in (files[3], str(files[3]), files[3].read_bytes()):
        np.testing.assert_allclose(model.encode(one), rows[3], atol=1e-5)
    assert model.encode([files[3]]).shape == (1, model.dim)


def test_no_images(model: Embedder) -> None:
    assert model.encode([]).shape == (0, model.dim)
    assert model.encode(iter([])).shape == (0, model.dim)
    rows, failures = model.encode([], on_error="skip")
    assert (rows.shape, failures) == ((0, model.dim), [])


def test_boxes_of_a_table_are_cut_out(model: Embedder, files: list[Path]) -> None:
    names = [file.name for file in files[:3]]
    boxes = {"x_1": [8, 8, 8], "y_1": [4, 4, 4], "x_2": [40, 40, 40], "y_2": [36, 36, 36]}
    table = Table.from_columns({"path": names, **boxes}, name="boxed", root=files[0].parent)
    got = model.encode(table, runtime="torch")
    cut = [np.asarray(Image.open(file))[4:36, 8:40] for file in files[:3]]
    np.testing.assert_allclose(got, model.encode(cut, runtime="torch"), atol=2e-3)
    assert np.abs(got - model.encode(files[:3], runtime="torch")).max() > 1e-2


def test_the_square_is_what_pillow_makes_of_it() -> None:
    from lookalike.data import Preprocess

    for size, crop, shape in ((48, 0.875, (64, 80)), (96, 0.875, (64, 64)), (32, 1.0, (128, 96))):
        pre = Preprocess(size=size, crop=crop)
        data = make_image(1, width=shape[1], height=shape[0])
        off = np.abs(pipeline.load_crop(data, pre).astype(int) - prepare(data, pre).astype(int))
        assert off.mean() < 0.6
        assert np.quantile(off, 0.99) <= 3


def test_generators_are_streamed(model: Embedder) -> None:
    """Images are made while earlier ones are embedded, never all at once."""
    alive: list[int] = []
    most = 0

    class Counted(bytes):
        def __del__(self) -> None:
            alive.pop()

    def image_stream() -> Iterator[bytes]:
        nonlocal most
        buffer = io.BytesIO()
        Image.fromarray(make_image(0)).save(buffer, "JPEG")
        for _ in range(400):
            alive.append(1)
            most = max(most, len(alive))
            yield Counted(buffer.getvalue())

    rows = model.encode(image_stream(), runtime="torch", batch_size=8)
    assert rows.shape == (400, model.dim)
    assert most <= 8 * 5


def test_an_unreadable_image_stops_with_its_name(model: Embedder, files: list[Path]) -> None:
    files[7].write_bytes(b"nonsense")
    with pytest.raises(UnreadableImage, match=files[7].name):
        model.encode(files)
    with pytest.raises(LookalikeError, match=r"gone\.jpg"):
        model.encode(["gone.jpg"])


def test_skipping_lists_the_failures(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    files[2].write_bytes(files[2].read_bytes()[:60])
    files[9].unlink()
    for runtime in ("torch", "openvino"):
        got, failures = model.encode(files, on_error="skip", runtime=runtime, batch_size=4)
        assert [failure.index for failure in failures] == [2, 9]
        assert failures[1] == Failure(9, str(files[9]), "no such file or directory")
        np.testing.assert_allclose(got, np.delete(rows, [2, 9], 0), atol=1e-5)


def test_a_batch_of_nothing_but_failures(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    for file in files[4:8]:
        file.write_bytes(b"")
    got, failures = model.encode(iter(files), on_error="skip", batch_size=4, runtime="torch")
    assert len(failures) == 4
    np.testing.assert_allclose(got, np.delete(rows, range(4, 8), 0), atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"batch_size": 0}, "batch_size"),
        ({"runtime": "openvno"}, "did you mean `openvino`"),
        ({"precision": "int8"}, "not a precision"),
    ],
)
def test_bad_options(model: Embedder, files: list[Path], bad: dict[str, object], message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        model.encode(files, **bad)


@pytest.mark.parametrize("bad", [7, None, {"a": 1}, [7], [None]])
def test_things_that_are_no_images(model: Embedder, bad: object) -> None:
    with pytest.raises(LookalikeError, match="pass paths, bytes"):
        model.encode(bad)


def test_a_folder_is_no_image(model: Embedder, files: list[Path]) -> None:
    with pytest.raises(LookalikeError, match="read_table"):
        model.encode(files[0].parent)


def test_an_error_in_the_users_generator_comes_through(model: Embedder, files: list[Path]) -> None:
    def image_stream() -> Iterator[Path]:
        yield from files
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        model.encode(image_stream())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lookalike-decode")]


def test_a_training_model_is_left_as_it_was(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    model.train()
    statistics = model.backbone.bn1.running_mean.clone()
    np.testing.assert_allclose(model.encode(files), rows, atol=1e-6)
    assert model.training
    assert torch.equal(model.backbone.bn1.running_mean, statistics)


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_from_many_threads(model: Embedder, files: list[Path], rows: np.ndarray, runtime: str) -> None:
    def work(number: int) -> float:
        order = np.random.default_rng(number).permutation(len(files))
        got = model.encode([files[i] for i in order], runtime=runtime, batch_size=1 + number % 9)
        return float(np.abs(got - rows[order]).max())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(work, range(18))) < 1e-5


FORK = """
    import os, sys, threading, time
    import numpy as np
    print("once")
    from lookalike.models import Embedder

    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=48)
    files = sys.argv[1:]
    for runtime in ("torch", "openvino"):
        expected = model.encode(files, runtime=runtime)
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                model.encode(files, runtime=runtime)
        thread = threading.Thread(target=busy)
        thread.start()  # the fork must find us in the middle of another thread's work
        time.sleep(0.2)
        for end in (os._exit, sys.exit):
            child = os.fork()
            if child == 0:
                end(0 if np.abs(model.encode(files, runtime=runtime) - expected).max() < 1e-5 else 5)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(runtime, code, np.abs(model.encode(files, runtime=runtime) - expected).max() < 1e-5, flush=True)
        stop.set()
        thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="not run here: fork")
def test_after_a_fork(files: list[Path], tmp_path: Path) -> None:
    """In a script without `if __name__ == "__main__"`: there are no processes that would run it again."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(FORK))
    around = {**os.environ, "LOOKALIKE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(script), *map(str, files[:4])]
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.split("\n") == ["once", *["torch 0 True"] * 2, *["openvino 0 True"] * 2, ""], done


def test_decoding_goes_on_while_the_model_runs(model: Embedder) -> None:
    """Reading ahead is bounded: no more than a few batches wait for a slow runtime."""
    from lookalike.data.image_reader import PREFETCH
    from lookalike.models.inference.inputs import image_stream

    drawn: list[int] = []

    def source() -> Iterator[np.ndarray]:
        for number in range(200):
            drawn.append(number)
            yield make_image(number % 3)

    batches = pipeline.ImageLoader(model.preprocess).batches(image_stream(source()).items, 4, 2)
    next(batches)
    time.sleep(0.05)
    assert len(drawn) == 4 * PREFETCH
    batches.close()


def test_more_threads_decode_only_when_the_runtime_waits(model: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.models.inference.inputs import image_stream

    def threads_used(slow_decoder: bool) -> int:
        workers: set[int] = set()
        real = pipeline.load_crop

        def decode(*arguments: object) -> np.ndarray:
            workers.add(threading.get_ident())
            time.sleep(0.005 if slow_decoder else 0)
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "load_crop", decode)
            source = image_stream([make_image(0)] * 100)
            for _ in pipeline.ImageLoader(model.preprocess).batches(source.items, 4, 3):
                time.sleep(0 if slow_decoder else 0.06)
        return len(workers)

    assert threads_used(slow_decoder=True) > 1
    assert threads_used(slow_decoder=False) == 1


def test_views_are_seeded(model: Embedder, files: list[Path]) -> None:
    view = RandomView(model.preprocess)

    def draw(seed: int) -> np.ndarray:
        return model.features(files, view=view, seed=seed, runtime="torch", batch_size=5)

    assert np.array_equal(draw(1), draw(1))
    assert np.abs(draw(1) - draw(2)).max() > 1e-3
    assert np.abs(draw(1) - model.features(files, runtime="torch")).max() > 1e-3


def test_a_view_of_another_size_is_refused(model: Embedder, files: list[Path], make: Callable[..., Embedder]) -> None:
    with pytest.raises(LookalikeError, match="gives images of 64 px"):
        model.features(files, view=RandomView(make(size=64).preprocess))


def test_pooled_features_are_not_normalized(model: Embedder, files: list[Path], rows: np.ndarray) -> None:
    pooled = model.features(files, runtime="torch")
    lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 1e-3
    np.testing.assert_allclose(pooled / lengths, rows, atol=1e-6)


@pytest.mark.device("cuda")
def test_on_cuda(files: list[Path], make: Callable[..., Embedder], rows: np.ndarray) -> None:
    np.testing.assert_allclose(make(device="cuda").encode(files), rows, atol=1e-3)


@pytest.mark.device("mps")
def test_on_mps(files: list[Path], make: Callable[..., Embedder], rows: np.ndarray) -> None:
    np.testing.assert_allclose(make(device="mps").encode(files), rows, atol=1e-3)


@pytest.mark.device("xpu")
def test_on_xpu(files: list[Path], make: Callable[..., Embedder], rows: np.ndarray) -> None:
    np.testing.assert_allclose(make(device="xpu").encode(files), rows, atol=1e-3)
