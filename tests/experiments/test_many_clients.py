"""Runs whose sites' people are handed out to clients, and runs with a validation site."""

import json
from pathlib import Path

import pytest
import torch
from conftest import read_csv
from quick_patches import make_quick_patches
from safetensors.torch import load_file

from medfed import train
from medfed.config.schema import load
from medfed.experiments.evaluation import evaluate
from medfed.experiments.setup import build_experiment
from medfed.federation.rounds import federate
from medfed.outputs.figures import curves
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_table import closing_table


@pytest.fixture(scope="module")
def patches(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "camelyon17_phantom"
    make_quick_patches(root, patches_per_site=15, patients_per_site=15)
    return root


@pytest.fixture(scope="module")
def config(tmp_path_factory, patches) -> Path:
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(f"""
seed: 3
data: {{name: camelyon17, root: {patches}, image_size: 24, sites: [hospital_1, hospital_2, hospital_3, hospital_5],
  validation_ratio: 0.2, test_ratio: 0.2}}
network: {{name: densenet, init_features: 4, growth_rate: 2, blocks: [1, 1]}}
method: {{name: fedavg}}
training: {{batch_size: 6, learning_rate: 0.01, optimizer_state: reset}}
federation: {{unseen_site: hospital_5, validation_site: hospital_3, selection: validation_site, rounds: 3, clients: 12,
  clients_per_round: 4, partition: heterogeneous, mixing: 0}}
""")
    return path


def run(config, out, *settings: str, more=()) -> int:
    arguments = [word for setting in settings for word in ("--set", setting)]
    return train.main([str(config), "--out", str(out), "--quiet", "--device", "cpu", *arguments, *more])


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert run(config, out) == 0
    return out


def roles(scores) -> str:
    return ", ".join(sorted({f"{row['site'].removeprefix('hospital_')} {row['role']}" for row in scores}))


def assert_same_bytes(run, other, *names):
    for name in names:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def test_clients_train_and_sites_are_scored_and_the_summary_describes_the_clients(finished):
    trained = {row["site"] for row in read_csv(finished / "ledger.csv") if row["kind"] == "train"}
    assert len(trained) > 4 and all(site.startswith("client_") for site in trained)
    assert roles(read_csv(finished / "cases.csv")) == "1 seen, 2 seen, 3 validation, 5 unseen"
    scored = [row["site"] for row in read_csv(finished / "cases.csv") if row["metric"] == "p_normal"]
    assert scored.count("hospital_3") == scored.count("hospital_5") == 15
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["clients"]["n"] == 12 and summary["clients"]["per_round"] == 4
    assert summary["clients"]["partition"] == "heterogeneous 0"
    assert summary["source_sites"] == ["hospital_1", "hospital_2"] and summary["validation_site"] == "hospital_3"
    assert "client_" not in json.dumps(summary)
    assert "fewer than training.batch_size 6" in "".join(summary["notices"])
    sites = {(line["role"], line["site"]) for line in summary["scores"] if line["site"] != "average"}
    seen = {("seen", "hospital_1"), ("seen", "hospital_2")}
    assert sites == {*seen, ("validation", "hospital_3"), ("unseen", "hospital_5")}


def test_clients_hold_every_training_and_validation_case_of_the_source_sites_once(finished):
    held = json.loads((finished / "clients.json").read_text())
    result = [case for client in held.values() for part in client.values() for case in part]
    tested = {f"{row['site']}/{row['image']}" for row in read_csv(finished / "cases.csv") if row["role"] == "seen"}
    known = json.loads((finished / "data.json").read_text())["cases"]
    assert len(result) == len(set(result)) and not set(result) & tested
    assert set(result) | tested == {case for case in known if not case.startswith("hospital_3/")}
    for client in held.values():
        assert len({case.partition("/")[0] for part in client.values() for case in part}) == 1


def test_the_best_round_of_the_validation_site_is_the_result(finished):
    history = RunFolder(finished).history()
    best = max(history, key=lambda row: (row["validation_site_score"], -row["round"]))
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["selected_round"] == best["round"] and summary["selection"] == "validation_site"
    keys = {"role": "validation", "site": "hospital_3", "metric": "accuracy"}
    (measured,) = (line["mean"] for line in summary["scores"] if keys.items() <= line.items())
    assert measured == pytest.approx(100 * best["validation_site_score"])


LOCAL_BN = (
    "method.name=fedbn federation.validation_site= federation.selection=last federation.clients=6 "
    "federation.clients_per_round=2 federation.rounds=2"
).split()


@pytest.fixture(scope="module")
def with_local_bn(config, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "fedbn"
    assert run(config, out, *LOCAL_BN) == 0
    return out


def test_clients_keep_their_batch_norm_and_all_sites_are_scored_with_its_average(config, with_local_bn):
    """The exported weights are the average over the clients that trained, weighted by their numbers of images."""
    loaded = load(config, LOCAL_BN)
    simulation = build_experiment(loaded, None, True)
    *_, last = federate(simulation.sites[0].method, simulation.engine, simulation.start, loaded.federation, 3)
    trained = [site for site in simulation.sites if last.state.took_part.get(site.name)]
    name = next(n for n in sorted(trained[0].local_keys) if n.endswith("running_mean"))
    entries = [site.local_entries()[name].double() * len(site.training) for site in trained]
    expected = sum(entries[1:], entries[0]) / sum(len(site.training) for site in trained)
    assert 2 <= len(trained) < 6 and not torch.equal(entries[0], entries[1])
    weights = load_file(with_local_bn / "model.safetensors")
    assert torch.allclose(weights[name].double(), expected, atol=1e-6)
    assert roles(evaluate(simulation, last.state.weights, True).rows) == "1 seen, 2 seen, 3 seen, 5 unseen"
    assert torch.allclose(simulation.network.state_dict()[name].double(), expected, atol=1e-6)


def test_a_resumed_training_with_the_clients_own_batch_norm_gives_the_same_bits(config, with_local_bn, tmp_path):
    assert run(config, tmp_path / "run", *LOCAL_BN, "federation.rounds=1") == 0
    assert run(config, tmp_path / "run", *LOCAL_BN, more=("--resume", "--accept-config-change")) == 0
    names = ("model.safetensors", "cases.csv", "ledger.csv", "history.csv", "clients.json")
    assert_same_bytes(tmp_path / "run", with_local_bn, *names)


@pytest.mark.slow
def test_worker_processes_give_the_same_bits_with_the_clients_own_batch_norm(config, with_local_bn, tmp_path):
    assert run(config, tmp_path / "run", *LOCAL_BN, more=("--jobs", "2")) == 0
    assert_same_bytes(tmp_path / "run", with_local_bn, "model.safetensors", "cases.csv")


def test_the_closing_table_describes_the_clients_in_one_line_and_who_is_scored_with_what(
    config, finished, with_local_bn, capsys
):
    output = closing_table(json.loads((with_local_bn / "summary.json").read_text()))
    assert "Each client keeps entries" in output and "all sites are scored with the average of the clients'" in output
    assert run(config, finished, more=("--resume",)) == 0
    output = capsys.readouterr().out
    assert "\n12 clients of 2 sites, 4 per round, partition: heterogeneous 0\n" in output
    assert "hospital_3 (VALIDATION)" in output and "client_" not in output


DIRICHLET = ["federation.partition=dirichlet", "federation.mixing=0.1", "federation.min_images=50"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["federation.clients=99"], ("federation.clients: 99 clients share", "expected at most")),
        (["data.sites=[]", "federation.validation_site=hospital_9"], ("no site 'hospital_9'", "hospital_1")),
        (["federation.validation_site="], ("federation.selection: 'validation_site' needs federation.validation",)),
        (DIRICHLET, ("no sample of Dirichlet(0.5)", "at least 50")),
    ],
)
def test_mistakes_are_one_line_before_anything_is_written(config, tmp_path, capsys, settings, words):
    assert run(config, tmp_path / "run", *settings) == 2
    (output,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in output for word in words), output
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_figure_with_a_hundred_curves_has_a_short_legend():
    history = [
        {"round": n, "train_loss": 1.0, "validation_score": 0.5, "validation_site_score": 0.4}
        | {f"train_loss/client_{k:03d}": k / 100 for k in range(100)}
        for n in (1, 2)
    ]
    loss, score = curves.training_curves(history, "real data").axes
    names = [text.get_text() for text in loss.get_legend().get_texts()]
    assert names == ["lowest to highest of 100 clients", "mean over clients"]
    assert [text.get_text() for text in score.get_legend().get_texts()] == ["validation site", "mean over sites"]
