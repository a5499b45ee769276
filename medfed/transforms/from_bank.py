"""What the random transforms share that draw one entry of a bank, and how far to go towards it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monai.config import NdarrayOrTensor
from monai.data.meta_obj import get_track_meta
from monai.transforms import RandomizableTransform, Transform
from monai.utils import convert_to_tensor


class RandFromBank(RandomizableTransform):
    """Draws whether, from which entry, and how far; a subclass says in `transform` what is done then.

    Args:
        bank: one or more entries.
        prob: probability of applying the transform.
        amounts: (lowest, highest), drawn uniformly.
    """

    def __init__(self, bank: Sequence[Any], prob: float, amounts: tuple[float, float]) -> None:
        RandomizableTransform.__init__(self, prob=prob)
        self.bank, self.amounts = bank, amounts
        self._donor, self._amount = 0, 0.0

    def transform(self, entry: Any, amount: float) -> Transform:
        raise TypeError(f"{type(self).__name__} must say which transform it draws for")

    def randomize(self, data: Any = None) -> None:
        """Draw anew; on the CPU, from MONAI's `self.R`."""
        super().randomize(None)
        if not self._do_transform:
            return
        self._donor = int(self.R.randint(len(self.bank)))
        self._amount = float(self.R.uniform(*self.amounts))

    def __call__(self, img: NdarrayOrTensor, randomize: bool = True) -> NdarrayOrTensor:
        """img: as for the transform that is drawn for; randomize: draw anew, or use the last draw again."""
        img = convert_to_tensor(img, track_meta=get_track_meta())
        if randomize:
            self.randomize()
        if not self._do_transform:
            return img
        return self.transform(self.bank[self._donor], self._amount)(img)
