"""Upper bounds on similarities, for more candidates than there is memory for all their similarities."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.batches.targets import Targets

MAX_KEPT = 256  # similarities of a candidate that are kept at most


class KeptRows:
    """Bounds on κ of candidates to those targets that a candidate can still add to, once these are few.

    Args:
        num: the number of candidates.
        num_targets: T.
        room: bytes of memory to use.

    Attributes:
        is_kept: (num,) whether the bounds of a candidate are kept.
    """

    def __init__(self, num: int, num_targets: int, room: int) -> None:
        kind = torch.int16 if num_targets < 2**15 else torch.int32
        self._width = min(MAX_KEPT, room // (num * (kind.itemsize + torch.float16.itemsize)))
        self.is_kept = torch.zeros(num, dtype=torch.bool)
        self._counts = torch.zeros(num, dtype=torch.int16)
        self._columns = torch.empty(num, self._width, dtype=kind)
        self._values = torch.empty(num, self._width, dtype=torch.float16)

    def keep(self, positions: Int[Tensor, " p"], bounds: Float[Tensor, "p T"], so_far: Float[Tensor, " T"]) -> None:
        """Keep the bounds above the cover so far of those candidates that have few of them."""
        if int((bounds[:: max(1, len(bounds) // 4)] > so_far).sum(dim=1).amin()) > self._width:
            return  # so few would fit that it is not worth a look at all of them
        rows, columns = (bounds > so_far).nonzero().T.cpu()
        counts = torch.bincount(rows, minlength=len(bounds))
        places = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
        fits = counts <= self._width
        is_kept = fits[rows]
        rows, columns, places = rows[is_kept], columns[is_kept], places[is_kept]
        kept = torch.zeros(len(bounds), self._width, dtype=torch.float16)
        values = bounds[rows.to(bounds.device), columns.to(bounds.device)]
        kept[rows, places] = (values * (1 + 2.0**-10) + 2.0**-24).half().cpu()  # float16 rounds by at most 2^-11
        targets = torch.zeros(len(bounds), self._width, dtype=self._columns.dtype)
        targets[rows, places] = columns.to(targets.dtype)
        some = positions[fits]
        self._values[some], self._columns[some], self.is_kept[some] = kept[fits], targets[fits], True
        self._counts[some] = counts[fits].to(torch.int16)

    def gains(
        self, positions: Int[Tensor, " p"], targets: Targets, covered: Float[Tensor, " T"]
    ) -> Float[Tensor, " p"]:
        """Return upper bounds on the gains of kept candidates."""
        so_far, shares = targets.floor(covered).cpu(), targets.shares.to(targets.dtype).cpu()
        found = []
        for some in positions.split(max(1, 2**18 // max(1, self._width))):
            width = int(self._counts[some].amax())
            columns = self._columns[some, :width].int().flatten()
            left = self._values[some, :width].to(targets.dtype) - so_far.index_select(0, columns).view(len(some), width)
            found.append(left.clamp_min_(0).mul_(shares.index_select(0, columns).view_as(left)).sum(dim=1))
        return targets.scaled(torch.cat(found))
