"""Tests of membership inference against trained weights."""

import pytest
import safetensors.torch
import torch

from medfed.auditing import membership
from medfed.auditing.membership import membership_in_model, read_weights, true_positive_rate, verdict
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation, disc_slices


def test_an_overfitted_model_reveals_its_patients_and_an_untrained_one_does_not(monkeypatch):
    """Noise instead of images: only a network that knows the images by heart can find their masks."""
    toy = ToySegmentation(n_images=12)
    site = toy.engine(FedAvg()).local_sites[0]
    rng = torch.Generator().manual_seed(0)
    groups = [disc_slices(name, 12) for name in ("members", "others")]
    for group in groups:
        group.images.copy_(torch.rand(group.images.shape, generator=rng))
        blocks = torch.rand(12, 1, 4, 4, generator=rng) > 0.5
        group.labels.copy_(blocks.repeat_interleave(8, 2).repeat_interleave(8, 3))
    site.training, held_out = groups
    start = {name: entry.clone() for name, entry in site.network.state_dict().items()}
    monkeypatch.setattr("medfed.auditing.updates.SIDE", 16)
    monkeypatch.setattr(membership, "OVERFIT_RATE", 0.02)
    monkeypatch.setattr(membership, "OVERFIT_STEPS", 60)
    result = membership_in_model(site, held_out, start, start)
    assert result["overfitted"]["auc"] > 0.9
    assert result["untrained"]["low"] <= 0.5 <= result["untrained"]["high"]
    assert result["loss"]["auc"] == result["untrained"]["auc"]
    assert result["calibrated"]["auc"] == 0.5  # no loss changed
    assert (result["members"], result["others"]) == (6, 6) and result["loss"]["tpr"] == {}
    assert "not better than chance" in verdict(result)
    assert all(torch.equal(start[name], entry) for name, entry in site.network.state_dict().items())


def test_nothing_is_measured_without_weights_or_with_one_patient(toy):
    site = toy.engine(FedAvg()).local_sites[0]
    start = site.network.state_dict()
    assert membership_in_model(site, toy.samples("a", 4), start, None) is None
    assert membership_in_model(site, toy.samples("a", 2), start, start) is None
    assert membership_in_model(site, None, start, start) is None


def test_the_true_positive_rate_counts_members_above_the_allowed_false_alarms():
    """Of 20 others, 2 may be above the threshold: it is the third highest score, 17; two of three members are above."""
    others = torch.arange(20.0)
    assert true_positive_rate(torch.tensor([30.0, 17.5, 17.0]), others, 0.1) == pytest.approx(2 / 3)
    assert true_positive_rate(torch.tensor([18.5]), others, 0.0) == 0


def scores(auc: float, low: float, high: float) -> dict[str, float]:
    return {"auc": auc, "low": low, "high": high}


def test_the_verdict_needs_both_controls():
    chance, high = scores(0.5, 0.3, 0.7), scores(0.95, 0.8, 1.0)
    result = {"loss": high, "calibrated": chance, "untrained": chance, "overfitted": high}
    assert "reveals who took part" in verdict(result)
    assert "too weak here to say anything" in verdict({**result, "overfitted": chance})
    assert "not better than chance" in verdict({**result, "untrained": high})  # the patients differed before
    assert "reveals who took part" in verdict({**result, "untrained": high, "calibrated": high})


def test_weights_are_read_from_a_run_or_a_file_and_mistakes_are_one_sentence(toy, tmp_path, small_config):
    network, config = toy.network(FedAvg()), load(small_config)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file(network.state_dict(), file)
    for path in (tmp_path, file):
        read = read_weights(path, network, config)
        assert all(torch.equal(read[name], entry) for name, entry in network.state_dict().items())
    with pytest.raises(UserError, match="is missing; expected the folder of a finished run"):
        read_weights(tmp_path / "none", network, config)
    safetensors.torch.save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(UserError, match="do not fit the network of the config"):
        read_weights(file, network, config)
    safetensors.torch.save_file(network.state_dict(), file)
    (tmp_path / "config.yaml").write_text(small_config.read_text())
    read_weights(tmp_path, network, config)
    # Another seed divides the patients differently, so that members and others would be mixed up.
    with pytest.raises(UserError, match="was trained with seed 3, but the config has 4, so other patients"):
        read_weights(tmp_path, network, load(small_config, ["seed=4"]))
