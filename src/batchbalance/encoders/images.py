"""Image files as RGB images of Pillow."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from batchbalance.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def read_image(path: Path) -> "Image.Image":
    """Read an image in RGB, rotated as its EXIF tag says; transparent parts become white.

    Raises:
        FileFormatError: if it is damaged, or has neither 8 nor 16 bits a channel.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtraError("reading image files", "image") from error
    try:
        with Image.open(path) as opened:
            opened.load()
            image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise FileFormatError(f"image {path} must have 8 or 16 bits a channel, got mode {image.mode}")
        if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return image.convert("RGB")
    except (FileFormatError, FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise a dozen types for a damaged file
        raise FileFormatError(f"image {path} is damaged or of another format{_detail(error, path)}") from error


def require_pillow() -> None:
    """Raise MissingExtraError if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("reading image files", "image") from error


def _detail(error: Exception, path: Path) -> str:
    """Return what Pillow's error adds to the message that the file cannot be read."""
    text = str(error).replace(repr(str(path)), "it").replace(repr(path), "it")
    return "" if text == "cannot identify image file it" else f": {text or type(error).__name__}"
