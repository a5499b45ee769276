"""What the random transforms share that draw one entry of a bank, and how far to go towards it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection, NdarrayOrTensor
from monai.data.meta_obj import get_track_meta
from monai.transforms import MapTransform, RandomizableTransform, Transform
from monai.utils import convert_to_tensor
from monai.utils.enums import TransformBackends
from torch import Tensor


class RandFromBank(RandomizableTransform):
    """Draws whether, from which entry, and how far; a subclass says in `transform` what is done then.

    Args:
        bank: one or more entries.
        prob: probability of applying the transform.
        amounts: (lowest, highest), drawn uniformly.
    """

    def __init__(self, bank: Sequence[Any] | Tensor, prob: float, amounts: tuple[float, float]) -> None:
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


class RandFromBankd(RandomizableTransform, MapTransform):
    """Dictionary-based: one coin, one draw for all keys."""

    backend = [TransformBackends.TORCH]

    def __init__(self, keys: KeysCollection, drawn: RandFromBank, prob: float, allow_missing_keys: bool) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        RandomizableTransform.__init__(self, prob=prob)
        self.drawn = drawn

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> RandFromBankd:
        super().set_random_state(seed, state)
        self.drawn.set_random_state(seed, state)
        return self

    def __call__(self, data: Mapping[Hashable, NdarrayOrTensor]) -> dict[Hashable, NdarrayOrTensor]:
        d = dict(data)
        self.randomize(None)
        if not self._do_transform:
            for key in self.key_iterator(d):
                d[key] = convert_to_tensor(d[key], track_meta=get_track_meta())
            return d
        self.drawn.randomize()
        for key in self.key_iterator(d):
            d[key] = self.drawn(d[key], randomize=False)
        return d
