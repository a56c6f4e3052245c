"""Decode images of any supported format to upright sRGB pixels.

Plain JPEGs, nearly all images in practice, take a fast path: simplejpeg decodes them at an eighth, a quarter,
three eighths or half of their size where that is large enough. All others go through Pillow. Both paths give
the same colors and orientation. No global state is touched, so any number of threads may decode at once.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import PIL
import simplejpeg
from PIL import (  # a reader is known to Pillow once its module is imported
    AvifImagePlugin,  # noqa: F401
    ExifTags,
    Image,
    Jpeg2KImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import hash_bytes, read_bytes
from lookalike.data.icc import eight_bits, reduced, to_rgb, to_srgb

# Caches of decoded images are keyed by it; raise the number with every change that gives other pixels.
DECODER = f"1/pillow-{PIL.__version__}/simplejpeg-{'.'.join(simplejpeg.__version_info__)}"

# Beyond this a file is taken for a decompression bomb; LOOKALIKE_MAX_PIXELS changes it.
MAX_PIXELS = 200_000_000

# `prepare` decodes to at least this times the size it resizes to: nearly as fast as 1, and a quarter nearer
# to the full decode (docs/design/data.md).
MARGIN = 1.2

# Larger images are reduced by Pillow before their colors are converted if a small result is enough
# (docs/design/data.md).
LARGE = 24_000_000

# What is tried, and nothing else: Pillow's other readers call outside programs or guess without a signature.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF", "TIFF", "JPEG2000", "PPM")

Box: TypeAlias = Sequence[float]  # x1, y1, x2, y2 in pixels of the upright image at full size
Side: TypeAlias = Callable[[float, float], float]  # `min` for the short side, `max` for the long one
Source: TypeAlias = "bytes | str | Path | Image.Image | np.ndarray"
Loaded: TypeAlias = tuple[
    np.ndarray, int, int, float
]  # pixels, width and height of the full image, scale of the pixels

# A server decodes images that take much memory elsewhere; gets the arguments of `load`, None leaves it to this process.
isolate: Callable[[bytes, Box | None, float | None, Side], Loaded | None] | None = None

_FILTERS = {name: Image.Resampling[name.upper()] for name in ("bicubic", "bilinear", "lanczos")}
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}
_TURNS = ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"]
_TRANSPOSE = {turn: Image.Transpose[name] for turn, name in enumerate(_TURNS, 2)}  # by EXIF orientation

# Pillow's remarks on odd files are of no use to whoever reads a million of them: a file is read, or refused by name.
warnings.filterwarnings("ignore", module=r"PIL\.")


class UnreadableImage(LookalikeError):
    """An image that cannot be read.

    Args:
        reason: Why, as a short phrase that is the same for the same kind of damage.
        name: The file, for the message.

    Example:
        >>> print(UnreadableImage("it is cut short", "gull.jpg"))
        `gull.jpg` cannot be read: it is cut short.
    """

    def __init__(self, reason: str, name: object = None) -> None:
        self.reason, self.name = reason, name
        super().__init__(f"`{name}` cannot be read: {reason}." if name else f"An image cannot be read: {reason}.")


@dataclass(frozen=True)
class Preprocess:
    """Input format of a model: a center crop, resized to a square and normalized.

    Args:
        size: Side of the square in pixels.
        crop: Side of the crop as a fraction of the short side.
        interpolation: `bicubic`, `bilinear` or `lanczos`.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        squash: Whether height and width are resized apart from each other, so that nothing is cropped off.

    Example:
        >>> la.data.Preprocess(size=224, crop=1.0).to_json()["size"]
        224
    """

    size: int
    crop: float = 0.875
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    squash: bool = field(default=False, repr=False)  # fingerprints of models that crop were made without it

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 8192 or not 0 < self.crop <= 1:
            raise LookalikeError(f"Images of size {self.size} with crop {self.crop} cannot be made.")
        choose(self.interpolation, _FILTERS, "an interpolation")
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))

    @property
    def filter(self) -> Image.Resampling:
        return _FILTERS[self.interpolation]

    def to_json(self) -> dict[str, Any]:
        document = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return document if self.squash else {key: value for key, value in document.items() if key != "squash"}

    def region(self, width: float, height: float) -> tuple[float, float]:
        """Width and height of the centered part of an image that becomes the model's input."""
        if self.squash:
            return width * self.crop, height * self.crop
        return (side := min(width, height) * self.crop), side

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Preprocess:
        return cls(**document)


@dataclass
class _Image:
    """Upright sRGB pixels, `scale` times the size of the full image."""

    pixels: np.ndarray | Image.Image
    width: int
    height: int
    scale: float = 1.0

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.pixels) if isinstance(self.pixels, np.ndarray) else self.pixels

    def region(self, box: Box | None) -> tuple[float, float, float, float]:
        """Return the box, or the whole image, in the coordinates of `pixels`.

        The last column and row of a scaled JPEG are partial: positions follow from the true scale, not from the
        number of pixels, which is ten times closer to the full decode.
        """
        x1, y1, x2, y2 = _clip(box, self.width, self.height)
        return x1 * self.scale, y1 * self.scale, x2 * self.scale, y2 * self.scale

    def cut(self, box: Box | None) -> np.ndarray:
        if box is None:
            return self.pixels if isinstance(self.pixels, np.ndarray) else np.array(self.pixels)
        x1, y1, x2, y2 = self.region(box)
        return np.asarray(self.pixels)[math.floor(y1) : math.ceil(y2), math.floor(x1) : math.ceil(x2)].copy()


def decode(data: Source, *, box: Box | None = None, min_side: float | None = None) -> np.ndarray:
    """Decode an image to RGB: upright, sRGB, transparency over white, first frame or page.

    Args:
        data: Encoded bytes, a path, a PIL image or an array.
        box: Part of the image, as x1, y1, x2, y2 in pixels of the upright image.
        min_side: Lets a JPEG or a very large image be decoded smaller, to a short side (of the box, if
            there is one) of at least that.

    Returns:
        The pixels, uint8.

    Shape:
        - output: ``(H, W, 3)``.

    Raises:
        UnreadableImage: The image is damaged or of an unknown format.

    Example:
        >>> la.data.decode(np.zeros((4, 5), np.uint8)).shape
        (4, 5, 3)
    """
    return _load(data, box, min_side).cut(box)


def prepare(data: Source, pre: Preprocess, *, box: Box | None = None) -> np.ndarray:
    """Decode an image to the input of a model; crop and resize are one operation.

    Args:
        data: Encoded bytes, a path, a PIL image or an array.
        pre: The model's input format.
        box: Part of the image.

    Returns:
        The pixels, uint8, not yet normalized.

    Shape:
        - output: ``(size, size, 3)``.

    Example:
        >>> la.data.prepare(np.zeros((60, 80, 3), np.uint8), la.data.Preprocess(size=32)).shape
        (32, 32, 3)
    """
    image = _load(data, box, pre.size / pre.crop * MARGIN)
    x1, y1, x2, y2 = image.region(box)
    across, down = pre.region(x2 - x1, y2 - y1)
    left, top = (x1 + x2 - across) / 2, (y1 + y2 - down) / 2
    part = (left, top, left + across, top + down)
    return np.array(image.image.resize((pre.size, pre.size), pre.filter, box=part))


def shrink(data: Source, side: int, *, of: Side = min, box: Box | None = None) -> np.ndarray:
    """Decode an image to a short side (`of=max`: long side) of at most `side`; it is never enlarged."""
    image = _load(data, box, side * MARGIN, of)
    x1, y1, x2, y2 = region = image.region(box)
    ratio = side / of(x2 - x1, y2 - y1)
    if ratio >= 1:
        return image.cut(box)
    size = max(1, round((x2 - x1) * ratio)), max(1, round((y2 - y1) * ratio))
    return np.array(image.image.resize(size, Image.Resampling.BICUBIC, box=region))


def content_id(data: Source, *, box: Box | None = None) -> str:
    """Return a hash of the decoded pixels: the same for equal images, however they are stored.

    Args:
        data: Encoded bytes, a path, a PIL image or an array.
        box: Part of the image.

    Example:
        >>> len(la.data.content_id(np.zeros((4, 4, 3), np.uint8)))
        32
    """
    pixels = decode(data, box=box)
    return hash_bytes(str(pixels.shape), pixels.tobytes())


def load(data: bytes, box: Box | None, least: float | None, of: Side = min) -> Loaded:
    """Load an image as `decode` and `shrink` do before they cut and resize it."""
    image = _load(data, box, least, of)
    return np.asarray(image.pixels), image.width, image.height, image.scale


def _load(data: Source, box: Box | None, least: float | None, of: Side = min) -> _Image:
    """Load an image, smaller where that is faster, but with a short (or long) side of at least `least`."""
    if isinstance(data, np.ndarray):
        return _from_array(data)
    if isinstance(data, Image.Image):
        return _upright(data)
    if isinstance(data, (str, Path)):
        try:
            return _load(_read(Path(data)), box, least, of)
        except UnreadableImage as error:
            raise UnreadableImage(error.reason, data) from error.__cause__
    data = bytes(data)
    if isolate is not None and (isolated := isolate(data, box, least, of)):
        return _Image(*isolated)
    jpeg = data[:2] == b"\xff\xd8"
    if jpeg and (decoded := _jpeg(data, box, least, of)):
        return decoded
    image = open_header(data)
    if jpeg:
        _check_scans(data, *image.size)
    return _upright(image, box, least, of)


@contextlib.contextmanager
def _foreign_bytes() -> Iterator[None]:
    """Turn any exception of a decoder into `UnreadableImage`: on damaged files they raise almost anything."""
    try:
        yield
    except LookalikeError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage("it is not an image in a known format, or its beginning is damaged") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImage("it has more pixels than Pillow is set to accept") from error
    except Exception as error:
        reason = "the file is cut short" if "truncated" in str(error) else "the file is damaged"
        raise UnreadableImage(reason) from error


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
        raise UnreadableImage(reason[:1].lower() + reason[1:], path) from error


def _check_size(width: int, height: int) -> None:
    limit = os.environ.get("LOOKALIKE_MAX_PIXELS", "") or str(MAX_PIXELS)
    if not limit.isdigit():
        raise LookalikeError(f"LOOKALIKE_MAX_PIXELS is `{limit}`; it must be a whole number.")
    if width * height > int(limit):
        raise UnreadableImage(f"it has more than {int(limit):,} pixels (LOOKALIKE_MAX_PIXELS)")


def _check_scans(data: bytes, width: int, height: int) -> None:
    """Refuse hundreds of nearly empty progressive scans over a large image, which would take minutes."""
    if data.count(b"\xff\xda") * width * height > 100 * MAX_PIXELS:
        raise UnreadableImage("it has too many scans for its size")


def _clip(box: Box | None, width: int, height: int) -> tuple[float, float, float, float]:
    if box is None:
        return 0, 0, width, height
    if len(box) != 4:
        raise LookalikeError(f"A box is x1,y1,x2,y2 in pixels, not {_numbers(box)}.")
    x1, y1, x2, y2 = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
    if not (x1 < x2 and y1 < y2):
        error = UnreadableImage("its box lies outside the image or is empty")
        error.args = (f"The box {_numbers(box)} holds nothing of the image, which has {width} × {height} pixels.",)
        raise error
    return x1, y1, x2, y2


def _numbers(box: Box) -> str:
    return ",".join(f"{number:g}" for number in box)


# --- the fast path: simplejpeg ---


def _jpeg(data: bytes, box: Box | None, least: float | None, of: Side) -> _Image | None:
    """Decode with simplejpeg, or return None if it cannot: Pillow decides then."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if space not in ("YCbCr", "Gray", "RGB"):
        return None
    _check_size(width, height)
    _check_scans(data, width, height)
    exif, icc = jpeg_blocks(data)
    turn = orientation(exif) if exif else 1
    across, down = _turned(width, height, turn)
    eighths = 8
    if least:
        x1, y1, x2, y2 = _clip(box, across, down)
        minimum = 8 * least / of(x2 - x1, y2 - y1)
        eighths = next((m for m in (1, 2, 3, 4) if m >= minimum), 8)  # 5 to 7 take longer than the whole
    size = {"min_height": -(-height * eighths // 8), "min_width": -(-width * eighths // 8)} if eighths < 8 else {}
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", **size)
    except ValueError:
        return None
    decoded = _Image(pixels, across, down, eighths / 8)
    if icc:
        source = decoded.image.getchannel(0) if space == "Gray" else decoded.image
        converted = to_srgb(source, icc)
        decoded.pixels = pixels if converted is source else converted
    if turn in _TRANSPOSE:
        decoded.pixels = decoded.image.transpose(_TRANSPOSE[turn])
    return decoded


def jpeg_blocks(data: bytes) -> tuple[bytes, bytes]:
    """Return EXIF block and ICC profile of a JPEG, from the segments before its first scan."""
    exif, chunks, at = b"", [], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker in (0xDA, 0xD9):
            break
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xE1 and not exif and data[at + 4 : at + 10] == b"Exif\0\0":
            exif = data[at + 4 : at + 2 + length]
        elif marker == 0xE2 and data[at + 4 : at + 16] == b"ICC_PROFILE\0":
            chunks.append((data[at + 16], data[at + 18 : at + 2 + length]))
        at += 2 + max(length, 2)
    return exif, b"".join(chunk for _, chunk in sorted(chunks))


# --- all other images: Pillow ---


def open_header(data: bytes) -> Image.Image:
    """Open an image and read only its header."""
    if not data:
        raise UnreadableImage("the file is empty")
    if _is_text(data[:1024]):
        kind = "an SVG drawing" if b"<svg" in data[:1024] else "text"
        raise UnreadableImage(f"it holds {kind}, not pixels")
    with _foreign_bytes():
        if (file := _heif(data)) is not None:
            image: Image.Image = file.to_pillow()
            return image
        return Image.open(io.BytesIO(data), formats=FORMATS)


def format_of(data: bytes) -> str:
    """Return Pillow's name of the format, from the header."""
    return "HEIF" if heif_size(data) else str(open_header(data).format)


def heif_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a HEIC file from its header, or None for any other format."""
    return None if (file := _heif(data)) is None else file.size


def image_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the upright image from its header."""
    if size := heif_size(data):
        return size
    if data[:2] == b"\xff\xd8":
        with contextlib.suppress(ValueError):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            exif = jpeg_blocks(data)[0]
            return _turned(width, height, orientation(exif) if exif else 1)
    image = open_header(data)
    # `getexif` is avoided where possible: Pillow decodes a whole PNG to look for EXIF data.
    return _turned(*image.size, orientation(image if image.format == "TIFF" else image.info.get("exif", b"")))


def _heif(data: bytes) -> Any:
    """Open a HEIC file without decoding its pixels; None for any other format."""
    if data[4:8] != b"ftyp" or data[8:12] not in _HEIF_BRANDS or b"avif" in data[8:64]:
        return None
    try:
        import pillow_heif
    except ImportError as error:
        raise UnreadableImage("it is HEIC, which needs `pip install 'lookalike[heif]'`") from error
    with _foreign_bytes():
        file = pillow_heif.open_heif(io.BytesIO(data))
        _check_size(*file.size)
        return file


def _is_text(head: bytes) -> bool:
    """Whether a file is text; plain PPM, the one image format made of letters, starts with P."""
    if head[:1] == b"P" or re.search(rb"[\x00-\x08\x0e-\x1a\x7f]", head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last letter may be cut
    except UnicodeDecodeError:
        return False
    return True


def _upright(image: Image.Image, box: Box | None = None, least: float | None = None, of: Side = min) -> _Image:
    _check_size(*image.size)
    with _foreign_bytes():
        image.load()
    turn = orientation(image)
    width, height = _turned(*image.size, turn)
    factor = 1
    if least and width * height > LARGE:
        x1, y1, x2, y2 = _clip(box, width, height)
        factor = max(1, math.floor(of(x2 - x1, y2 - y1) / least))
    plain = image.mode == "RGB" and not image.has_transparency_data
    rgb = to_rgb(image) if factor == 1 and (plain or width * height <= LARGE) else reduced(image, factor)
    if turn in _TRANSPOSE:
        rgb = rgb.transpose(_TRANSPOSE[turn])
    return _Image(rgb, width, height, 1 / factor)


def _turned(width: int, height: int, turn: int) -> tuple[int, int]:
    return (height, width) if turn in (5, 6, 7, 8) else (width, height)


def orientation(source: bytes | Image.Image) -> int:
    """Return the EXIF orientation of an image or an EXIF block; 1 (upright) if it cannot be read."""
    try:
        if isinstance(source, bytes):
            exif = Image.Exif()
            exif.load(source)
        else:
            exif = source.getexif()
        return int(exif.get(ExifTags.Base.Orientation, 1))
    except Exception:  # a broken EXIF block raises almost anything, and is no reason to lose the image
        return 1


def _from_array(array: np.ndarray) -> _Image:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise UnreadableImage(f"an array of shape {array.shape} is not height × width × 1, 3 or 4")
    if array.dtype == np.uint16:
        array = eight_bits(array)
    elif array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1:
        array = (array * 255 + 0.5).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise UnreadableImage(f"an array of {array.dtype} is not uint8, uint16, or floats from 0 to 1")
    if array.shape[2] == 4:
        return _upright(Image.fromarray(array, "RGBA"))
    pixels = np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
    return _Image(pixels, pixels.shape[1], pixels.shape[0])
