"""Base classes of random transforms that draw one entry of a bank and a strength, such as a style and its alpha."""

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
    """Base class of a random transform of one image. Each call draws an entry of a bank (a list) and a strength.

    `amounts` is the (lowest, highest) strength, drawn uniformly from MONAI's random state `self.R`.
    """

    def __init__(self, bank: Sequence[Any] | Tensor, prob: float, amounts: tuple[float, float]) -> None:
        RandomizableTransform.__init__(self, prob=prob)
        self.bank, self.amounts = bank, amounts
        self._donor, self._amount = 0, 0.0

    def transform(self, entry: Any, amount: float) -> Transform:
        """Return the deterministic transform for one entry of the bank and one strength."""
        raise TypeError(f"{type(self).__name__} must override transform(entry, amount)")

    def randomize(self, data: Any = None) -> None:
        """Draw whether to act, the entry and the strength; a call with `randomize=False` uses this draw again."""
        super().randomize(None)
        if not self._do_transform:
            return
        self._donor = int(self.R.randint(len(self.bank)))
        self._amount = float(self.R.uniform(*self.amounts))

    def __call__(self, img: NdarrayOrTensor, randomize: bool = True) -> NdarrayOrTensor:
        """With the given probability, apply a random entry's transform; `randomize` False repeats the last draw."""
        img = convert_to_tensor(img, track_meta=get_track_meta())
        if randomize:
            self.randomize()
        if not self._do_transform:
            return img
        return self.transform(self.bank[self._donor], self._amount)(img)


class RandFromBankd(RandomizableTransform, MapTransform):
    """Base class of random transforms of a dictionary of images. All images of a sample get the same random draw."""

    backend = [TransformBackends.TORCH]

    def __init__(
        self, keys: KeysCollection, array_transform: RandFromBank, prob: float, allow_missing_keys: bool
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        RandomizableTransform.__init__(self, prob=prob)
        self.array_transform = array_transform

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> RandFromBankd:
        super().set_random_state(seed, state)
        self.array_transform.set_random_state(seed, state)
        return self

    def __call__(self, data: Mapping[Hashable, NdarrayOrTensor]) -> dict[Hashable, NdarrayOrTensor]:
        d = dict(data)
        self.randomize(None)
        if not self._do_transform:
            for key in self.key_iterator(d):
                d[key] = convert_to_tensor(d[key], track_meta=get_track_meta())
            return d
        self.array_transform.randomize()
        for key in self.key_iterator(d):
            d[key] = self.array_transform(d[key], randomize=False)
        return d
