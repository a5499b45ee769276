import pytest
import torch

from medfed.tasks.results import PackedMask


@pytest.mark.parametrize("shape", [(1, 5, 3, 1), (2, 8, 8, 4), (0, 3), (7,)])
def test_a_packed_mask_comes_back_bit_for_bit(shape):
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.6).to(torch.uint8)
    again = PackedMask.pack(mask).unpack()
    assert again.dtype == torch.uint8 and torch.equal(again, mask)


def test_an_organ_takes_few_bytes():
    mask = torch.zeros(1, 256, 256, 20, dtype=torch.uint8)
    mask[:, 80:160, 90:170, 5:15] = 1
    assert len(PackedMask.pack(mask).packed) < mask.numel() / 100
