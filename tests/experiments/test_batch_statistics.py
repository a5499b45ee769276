import torch

from medfed.experiments.unseen_batch_norm import with_batch_statistics
from medfed.testing.small_unet import SmallUNet


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return SmallUNet(norm="batch").build(1, 1)


def test_it_computes_what_training_mode_computes_and_learns_nothing():
    one, images = network().eval(), torch.rand(3, 1, 32, 32)
    before = {name: entry.clone() for name, entry in one.state_dict().items()}
    result = with_batch_statistics(one)(images)
    plain = one(images)
    assert not torch.allclose(result, plain) and all(torch.equal(e, before[n]) for n, e in one.state_dict().items())
    assert torch.allclose(result, one.train()(images), atol=1e-5)


def test_a_prediction_depends_on_the_other_images_also_after_eval():
    one, images = with_batch_statistics(network()).eval(), torch.rand(3, 1, 32, 32)
    assert not torch.allclose(one(images)[0], one(torch.cat([images[:1], 1 - images[1:]]))[0])
