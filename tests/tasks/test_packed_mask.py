import pytest
import torch

from medfed.tasks.results import PackedMask


@pytest.mark.parametrize("shape", [(1, 5, 3, 1), (2, 8, 8, 4), (0, 3), (7,)])
def test_a_packed_mask_is_unpacked_unchanged(shape):
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.6).to(torch.uint8)
    unpacked = PackedMask.pack(mask).unpack()
    assert unpacked.dtype == torch.uint8 and torch.equal(unpacked, mask)


def test_the_mask_of_an_organ_needs_few_bytes():
    mask = torch.zeros(1, 256, 256, 20, dtype=torch.uint8)
    mask[:, 80:160, 90:170, 5:15] = 1
    assert len(PackedMask.pack(mask).packed) < mask.numel() / 100
