"""Image files for a browser: raster images only, of a limited size, inside the folders of the project."""

import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchbalance.encoders.images import read_image
from batchbalance.errors import FileFormatError

MOST_PIXELS = 80_000_000
SMALL_PIXELS = 320
KEPT = 500  # small images in memory
# What all browsers show; other formats are sent as PNG.
MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp", "BMP": "image/bmp"}


@dataclass(frozen=True)
class Picture:
    """An image to send: a file as it is, or bytes."""

    media_type: str
    content: bytes


class Pictures:
    """Reads the images of some folders, and keeps small ones.

    Args:
        roots: gives the folders; files elsewhere, also by way of links, are refused.
    """

    def __init__(self, roots: Callable[[], Sequence[Path]]) -> None:
        self._roots = roots
        self._small: OrderedDict[tuple[Path, str], Picture] = OrderedDict()
        self._lock = threading.Lock()

    def full(self, path: Path) -> Picture:
        """Return an image in its own size.

        Raises:
            FileFormatError: if it is not in the folder, not a raster image, damaged, or too large.
        """
        inside = self._inside(path)
        kind = checked_format(inside)
        if kind in MEDIA_TYPES:
            return Picture(MEDIA_TYPES[kind], inside.read_bytes())
        return _encoded(inside, None)

    def small(self, path: Path) -> Picture:
        """Return a small image for a tile; errors as in `full`."""
        inside = self._inside(path)
        key = inside, version(inside)
        with self._lock:
            if key in self._small:
                self._small.move_to_end(key)
                return self._small[key]
        checked_format(inside)
        made = _encoded(inside, SMALL_PIXELS)
        with self._lock:
            self._small[key] = made
            while len(self._small) > KEPT:
                self._small.popitem(last=False)
        return made

    def _inside(self, path: Path) -> Path:
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in map(Path.resolve, self._roots())):
            raise FileFormatError("This file is outside the folder of the images.")
        if not real.is_file():
            raise FileFormatError("This file no longer exists.")
        return real


def version(path: Path) -> str:
    """Return a text that changes when the file changes."""
    try:
        stat = path.stat()
    except OSError:
        return "gone"
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def checked_format(path: Path) -> str:
    """Return the format of an image by its content; refuses what is too large to show."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            (width, height), kind = image.size, image.format or ""
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise FileFormatError(f"This image is too large to show: more than {MOST_PIXELS:,} pixels.") from error
    except Exception as error:  # Pillow's readers raise a dozen types for a damaged file
        raise FileFormatError("This file is damaged, or not an image that can be shown.") from error
    if width * height > MOST_PIXELS:
        raise FileFormatError(f"This image is too large to show: {width:,} × {height:,} pixels.")
    return kind


def _encoded(path: Path, size: int | None) -> Picture:
    image = read_image(path)
    if size is not None:
        image.thumbnail((size, size))
    out = io.BytesIO()
    kind = "PNG" if size is None or max(image.size) < 100 else "JPEG"
    image.save(out, kind, quality=85)
    return Picture(MEDIA_TYPES[kind], out.getvalue())
