from dataclasses import replace

import pytest
import torch
from conftest import tiny_yaml

from medfed.config.schema import load_text
from medfed.experiments.evaluation import evaluate, unseen_bn_of, unseen_weights
from medfed.experiments.run import run
from medfed.experiments.setup import build_experiment
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.metrics.mask_metric import compute_mask_metrics
from medfed.outputs.bundle.model_card import card_notes
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_table import closing_table
from medfed.tasks.scoring import MASK_METRICS
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToySegmentation

FIRST = "conv_0.adn.N.running_mean"


def config(root, unseen_bn: str, *more: str, norm: str = "batch"):
    method = f"{{name: fedbn, unseen_bn: {unseen_bn}}}"
    text = tiny_yaml(root).replace("{name: elcfs, alpha: 0.1, min_patients: 1}", method)
    loaded = load_text(text, f"{unseen_bn}.yaml", ["federation.rounds=1", *more])
    return replace(loaded, network=SmallUNet(norm=norm))


def trained(root, unseen_bn: str, *more: str):
    result = config(root, unseen_bn, *more)
    simulation = build_experiment(result, None, True)
    (done,) = federate(result.method, simulation.engine, simulation.start, result.federation, result.seed)
    return simulation, done.state.weights


def test_each_unseen_bn_policy_scores_the_unseen_site_with_its_weights(small_phantom):
    scores = {}
    for unseen_bn in ("average", "batch_stats"):
        simulation, weights = trained(small_phantom, unseen_bn)
        assert unseen_bn_of(simulation.engine.local_sites) == unseen_bn
        findings = evaluate(simulation, weights, True)
        rows = findings.rows
        _check_masks_are_those_of_the_scores(simulation, findings)
        held = simulation.network.state_dict()
        own = {site.name: site.local_entries()[FIRST] for site in simulation.engine.local_sites}
        assert torch.equal(held[FIRST], unseen_weights(simulation.engine.local_sites, weights)[FIRST])
        assert not any(torch.equal(held[FIRST], entry) for entry in own.values())
        scores[unseen_bn] = {role: [row["dice"] for row in rows if row["role"] == role] for role in ("seen", "unseen")}
    seen, unseen = ([result[role] for result in scores.values()] for role in ("seen", "unseen"))
    assert seen[0] == seen[1] and unseen[0] != unseen[1]


def test_a_figure_shows_the_mask_of_the_adapted_network(small_phantom):
    simulation, weights = trained(small_phantom, "average", "evaluation.tent=true")
    findings = evaluate(simulation, weights, True)
    _check_masks_are_those_of_the_scores(simulation, findings)
    case = simulation.unseen["UCL"][0]
    simulation.network.load_state_dict(unseen_weights(simulation.engine.local_sites, weights))
    plain = simulation.task.predict(simulation.network, simulation.dataset.load(case))
    assert not torch.equal(findings.masks[case.name].unpack(), plain)


def _check_masks_are_those_of_the_scores(simulation, findings):
    volumes = {case.name: simulation.dataset.load(case) for cases in simulation.unseen.values() for case in cases}
    of_unseen = {row["image"]: row["dice"] for row in findings.rows if row["role"] == "unseen"}
    assert of_unseen.keys() == findings.masks.keys() == volumes.keys()
    for patient, dice in of_unseen.items():
        mask, volume = findings.masks[patient].unpack(), volumes[patient]
        reference = volume.mask[0].as_tensor()
        assert compute_mask_metrics(MASK_METRICS, mask[0], reference, volume.spacing_mm)["dice"] == dice


@pytest.mark.parametrize(
    "unseen_bn, transductive, told",
    [
        ("average", False, "the unseen site with the average of the source sites' entries"),
        ("batch_stats", True, "BatchNorm used the statistics of each batch of test images"),
    ],
)
def test_results_report_what_is_transductive(tmp_path, small_phantom, unseen_bn, transductive, told):
    folder = RunFolder(tmp_path / "run")
    run(config(small_phantom, unseen_bn), folder, quiet=True)
    result = folder.read_summary()
    assert result["transductive"] is transductive and result["sites_kept_entries"]
    assert told in closing_table(result) and ("TRANSDUCTIVE" in closing_table(result)) is transductive
    assert ("TRANSDUCTIVE" in card_notes(result)) is transductive
    assert "The bundle contains the average" in card_notes(result)


@pytest.mark.filterwarnings("ignore:.*no BatchNorm")
def test_without_batch_norm_nothing_is_transductive(small_phantom):
    result = build_experiment(config(small_phantom, "batch_stats", norm="instance"), None, True)
    assert unseen_bn_of(result.engine.local_sites) == ""


@pytest.fixture
def batch_norm_toy():
    return ToySegmentation(architecture=SmallUNet(norm="batch"))


def test_an_unseen_site_gets_the_average_of_the_local_entries_and_else_the_global_weights(batch_norm_toy, fedavg):
    toy = batch_norm_toy
    engine, weights = toy.engine(fedavg), toy.start(fedavg).weights
    assert unseen_bn_of(engine.local_sites) == "" and unseen_weights(engine.local_sites, weights) == weights
    engine = toy.engine(fedavg, local_batch_norm=True)
    assert unseen_bn_of(engine.local_sites) == "average"
    (done,) = federate(fedavg, engine, toy.start(fedavg), Federation(rounds=1), 0)
    result, local = unseen_weights(engine.local_sites, done.state.weights), engine.local_sites[0].local_keys
    name = next(n for n in local if n.endswith("running_mean"))
    kept = torch.stack([site.memory["local/" + name] for site in engine.local_sites])
    assert torch.allclose(result[name], kept.mean(dim=0)) and not torch.allclose(result[name], done.state.weights[name])
    shared = [n for n in result if n not in local]
    assert shared and all(torch.equal(result[n], done.state.weights[n]) for n in shared)
