"""Random crop and flip against plain loops over pixels."""

import pytest
import torch

from batchbalance.posteriors.training.calling import crop_and_flip


def by_loops(images, places, flips, padding):
    """Pixel by pixel: where in the image it comes from, or 0 from beyond its edge."""
    num, channels, height, width = images.shape
    result = torch.zeros_like(images)
    for n in range(num):
        for c in range(channels):
            for i in range(height):
                for j in range(width):
                    source_i = i + int(places[n][0]) - padding
                    source_j = (width - 1 - j if flips[n] else j) + int(places[n][1]) - padding
                    if 0 <= source_i < height and 0 <= source_j < width:
                        result[n, c, i, j] = images[n, c, source_i, source_j]
    return result


@pytest.mark.parametrize(("shape", "padding"), [((20, 3, 5, 7), 2), ((8, 1, 6, 4), 4)])
def test_every_pixel_against_loops(shape, padding):
    images = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    found = crop_and_flip(images, generator=torch.Generator().manual_seed(3), padding=padding)
    stream = torch.Generator().manual_seed(3)
    places = torch.randint(2 * padding + 1, (shape[0], 2), generator=stream).tolist()
    flips = torch.randint(2, (shape[0],), generator=stream).tolist()
    assert {0, 1} == set(flips)
    assert torch.equal(found, by_loops(images, places, flips, padding))
    assert not torch.equal(found, images)


def test_all_places_and_both_sides_are_equally_likely():
    marked = torch.zeros(4000, 1, 3, 3)
    marked[:, :, 1, 0] = 1  # off the middle, so that a flip shows
    mean = crop_and_flip(marked, generator=torch.Generator().manual_seed(1), padding=1).mean(dim=0)[0]
    # The row lands on each of three; the column on 0, 1 or beyond, and after a flip on 2, 1 or beyond.
    for row in mean.tolist():
        for value, expected in zip(row, (1 / 18, 1 / 9, 1 / 18), strict=True):
            assert abs(value - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5


def test_rows_of_features_are_refused():
    with pytest.raises(ValueError, match=r"images \(N, channels, height, width\), got a batch of shape \(3, 2\)"):
        crop_and_flip(torch.zeros(3, 2), generator=torch.Generator())
