"""Images changed a little each time they are seen: the random crop and flip that CIFAR is usually trained with."""

import torch
from torch import Tensor

from batchbalance.posteriors.training.calling import Batch, described

PADDING = 4
AUGMENTATIONS = ("none", "crop-flip")


def crop_and_flip(images: Batch, *, generator: torch.Generator, padding: int = PADDING) -> Tensor:
    """Pad each image with zeros, crop it at a random place, and mirror it with probability ½.

    Zero is the mean colour if the images are normalised. The random numbers are drawn on the CPU, so that they are the
    same on every device: first the (n, 2) places, down and right, from 0 to 2·padding, then the (n,) flips.

    Args:
        images: (n, channels, height, width).
        generator: for the places and the flips.
        padding: pixels on each side.
    """
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ValueError(
            "`augmentation` must be 'none' unless inputs are images (N, channels, height, width), got "
            f"{described(images)}"
        )
    num, _, height, width = images.shape
    places = torch.randint(2 * padding + 1, (num, 2), generator=generator).to(images.device)
    flipped = torch.randint(2, (num,), generator=generator).bool().to(images.device)
    across = torch.arange(width, device=images.device).expand(num, width)
    across = torch.where(flipped[:, None], across.flip(1), across)
    rows = places[:, :1] + torch.arange(height, device=images.device)  # (n, h) of the padded image
    columns = places[:, 1:] + across  # (n, w)
    padded = torch.nn.functional.pad(images, (padding, padding, padding, padding))
    which = torch.arange(num, device=images.device)
    return padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
