"""The rows of a comparison without a federation (`pooled`, `local`), and rows with the effort of another method."""

import json
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from conftest import read_csv, small_yaml
from safetensors.torch import load_file

from medfed import evaluate, report
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.experiments import comparison as module
from medfed.experiments.arguments import varied_texts
from medfed.experiments.comparison import plan_comparison
from medfed.experiments.grid import folds_of, rows_of
from medfed.experiments.sites import assign_patients
from medfed.federation.privacy import Privacy
from medfed.outputs.report.ledger import WITHOUT_FEDERATION
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import row_of

SITES = ["BMC", "HK", "UCL"]


def folds(config, *methods, vary=(), validates=MappingProxyType({})):
    return folds_of(config, Path("out"), rows_of(config, methods, varied_texts(vary)), 1, SITES, ["UCL"], validates)


@pytest.fixture
def config(tiny_config):
    return load(tiny_config, ["federation.local_epochs=3", "training.batch_size=4"])


def patients(config, part="train"):
    splits, clients, _ = assign_patients(config.data, config.federation, config.seed, "")
    return {
        name: {(case.site, case.name) for case in getattr(held, part)}
        for name, held in (clients or splits).items()
        if held.train
    }


def test_pooled_is_one_client_with_the_training_patients_of_all_source_sites(config):
    fedavg, pooled = (fold.config for fold in folds(config, "fedavg", "pooled"))
    (held,) = patients(pooled).values()
    assert held == set.union(*patients(fedavg).values()) and {site for site, _ in held} == {"BMC", "HK"}
    assert pooled.method_name == "fedavg" and pooled.federation.rounds == fedavg.federation.rounds
    assert (pooled.federation.local_epochs, pooled.training.batch_size) == (3, 4)


def test_local_has_a_run_for_each_source_site_with_the_patients_that_the_site_has_in_the_federation(config):
    fedavg, *local = folds(config, "fedavg", "local")
    assert [fold.row.run_label for fold in local] == ["local at BMC", "local at HK"]
    assert [fold.folder.path.parts[1] for fold in local] == ["local-BMC", "local-HK"]
    assert {fold.row.label for fold in local} == {"local"} and {fold.site for fold in local} == {"UCL"}
    for part in ("train", "validation", "test"):
        apart = {site: held for fold in local for site, held in patients(fold.config, part).items()}
        assert apart == patients(fedavg.config, part)
    assert local[0].config.data.sites == ("BMC", "UCL")


def test_a_site_that_does_not_participate_and_the_validation_site_train_in_no_row(config):
    one = folds(config, "local", vary=["federation.participating=1,2"])
    assert [fold.row.run_label.partition(", ")[0] for fold in one] == ["local"] * 3, "one site, then two"
    (only,) = folds(config, "local", validates={"UCL": "HK"})
    assert only.row.trained_at == "BMC" and only.config.data.sites == ("BMC", "HK", "UCL")
    assert list(patients(only.config)) == ["BMC"]


def test_rows_without_a_federation_have_no_settings_of_messages_and_one_row_for_all_their_values(tiny_config):
    federation = ["federation.clients=3", "federation.quorum=1", "federation.clients_per_round=2"]
    config = load(tiny_config, ["privacy.clip=1", "privacy.noise=1", *federation])
    checks = ["federation.on_bad_update=stop,drop", "federation.largest_count=5,6"]
    vary = ["federation.clients=2,3", "training.batch_size=4,8", *checks]
    result = folds(config, "fedavg", "pooled", "local", vary=vary)
    pooled_or_local = [fold for fold in result if fold.row.arrangement != "federated"]
    labels = list(dict.fromkeys(fold.row.label for fold in result))
    assert len(labels) == 16 + 2 + 2
    assert labels[16:] == [f"{name}, training.batch_size={n}" for name in ("pooled", "local") for n in (4, 8)]
    for fold in pooled_or_local:
        federation = fold.config.federation
        assert (federation.on_bad_update, federation.largest_count) == ("stop", 100)
        assert fold.config.privacy == Privacy() and not federation.quorum and not federation.clients_per_round
        assert federation.clients == (1 if fold.row.arrangement == "pooled" else 0)
    references = [row for row in {fold.row for fold in pooled_or_local} if row.is_reference_of(result[0].row)]
    assert {row.varied for row in references} == {("training.batch_size=4",)}


@pytest.mark.parametrize(
    ("row", "epochs", "batch"),
    [
        ("fedavg@steps=ccst:k=2", 6, 4),  # each image in two styles: twice the steps of 4 images
        ("fedavg@steps=ccst", 6, 4),  # k is 3, but two sites train
        ("fedavg@steps=stable_fdg:attention=false", 6, 8),  # as many steps, of twice the images
        ("fedavg@steps=ccst:k=2+elcfs:views=2", 18, 12),
        ("pooled@steps=fedavg", 3, 8),  # two sites: batches of both, so that the steps are those of one
        ("pooled@steps=ccst:k=2", 6, 8),
        ("local@steps=ccst:k=2", 6, 4),
    ],
)
def test_equal_effort_is_more_epochs_and_larger_batches(config, row, epochs, batch):
    fold = folds(config, row)[0]
    assert (fold.config.federation.local_epochs, fold.config.training.batch_size) == (epochs, batch)
    assert fold.config.method_name == "fedavg" and fold.row.label == row


def planned(config, tmp_path, *methods, vary=(), **settings):
    """The reference of each row, and the plan."""
    varied = varied_texts(vary)
    plan = plan_comparison(config, tmp_path / "out", methods, varied=varied, sites=["UCL"], quiet=False, **settings)
    return {fold.row.label: fold.row.equal_effort for fold in plan.folds}, plan


def test_each_distinct_effort_above_fedavgs_has_one_row_of_fedavg(config, tmp_path, capsys):
    """ELCFS and StableFDG take twice the images in as many steps, CCST with two styles twice the steps."""
    methods = ("fedavg", "elcfs", "stable_fdg:attention=false", "ccst:k=1", "ccst:k=2", "local", "swa")
    rows, plan = planned(config, tmp_path, *methods)
    effort, styles = "fedavg@steps=elcfs", "fedavg@steps=ccst:k=2"
    added = {"elcfs": effort, "stable_fdg:attention=false": effort, "ccst:k=2": styles}
    assert rows == dict.fromkeys([*methods, effort, styles], "") | added
    assert f"({effort}; {styles}) adds 2 to 8 runs" in capsys.readouterr().err
    reread = {row_of(json.loads(json.dumps(asdict(fold.row)))) for fold in plan.folds}
    assert reread == {fold.row for fold in plan.folds}


def test_no_row_is_added_if_it_is_not_wanted_or_the_baseline_is_another_one(config, tmp_path):
    assert planned(config, tmp_path, "fedavg", "elcfs", equal_effort=False)[0] == {"fedavg": "", "elcfs": ""}
    assert planned(config, tmp_path, "elcfs", "swa")[0] == {"elcfs": "", "swa": ""}, "nothing to compare with"
    assert planned(config, tmp_path, "fedavg", "elcfs", "swa", baseline="swa")[0].keys() == {"fedavg", "elcfs", "swa"}


def test_a_row_that_the_user_names_is_the_reference_and_varied_settings_have_their_own(config, tmp_path, capsys):
    rows, _ = planned(config, tmp_path, "fedavg", "elcfs", "fedavg@steps=stable_fdg:attention=false")
    assert rows["elcfs"] == "fedavg@steps=stable_fdg:attention=false" and len(rows) == 3
    assert "Equal effort" not in capsys.readouterr().err, "nothing is added"
    rows, _ = planned(config, tmp_path, "fedavg", "ccst", vary=["method.k=1,2", "training.batch_size=4,8"])
    assert rows["ccst, method.k=2, training.batch_size=8"] == "fedavg@steps=ccst:k=2, training.batch_size=8"
    assert rows["ccst, method.k=1, training.batch_size=8"] == ""
    assert "fedavg@steps=ccst:k=2, training.batch_size=4" in rows


def test_a_reference_that_cannot_be_run_is_named_and_does_not_stop_the_comparison(config, tmp_path):
    name = "fedavg@steps=stable_fdg:attention=false,oversampling=0.3"
    rows, plan = planned(config, tmp_path, "fedavg", name.partition("=")[2])
    assert list(rows.values()) == ["", name] and name not in rows
    ((refused, why),) = plan.incompatible.items()
    assert refused == name and "expected whole numbers" in why
    method = "stable_fdg:attention=false,oversampling=0.5"
    rows, plan = planned(config, tmp_path, "fedavg", method, vary=["federation.local_epochs=2,1"])
    assert [label for label in rows if "@" in label] == [f"fedavg@steps={method}, federation.local_epochs=2"]
    assert list(plan.incompatible) == [f"fedavg@steps={method}, federation.local_epochs=1"]
    # a validation site does not train: of three sites, one trains, so that CCST has no other style
    assert set(planned(config, tmp_path, "fedavg", "ccst", leave_two_out=True)[0]) == {"fedavg", "ccst"}
    assert len(planned(config, tmp_path, "fedavg", "ccst")[0]) == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("fedavg@steps=pooled", "with a federated method"),
        ("fedavg@steps=fedavg@steps=ccst", "with a federated method"),
        ("poolled", "Did you mean 'pooled'"),
        ("elcfs@steps=ccst", "no method 'elcfs@steps=ccst'"),
        ("fedavg@epochs=ccst", "expected fedavg@steps=METHOD"),
        ("fedavg@steps=", "expected fedavg@steps=METHOD"),
        ("pooled:k=1", "'pooled' is FedAvg without a federation; it has no settings"),
        ("elcfs+local", "'local' is FedAvg without a federation"),
        ("fedavg@steps=cst", "Did you mean 'ccst'"),
        ("ccst:k", "ccst:k: k: expected key=value"),
        ("ccst:name=fedavg", "a name among the settings"),
        ("fedavg@steps=stable_fdg:attention=false,oversampling=0.3", "expected whole numbers"),
    ],
)
def test_a_wrong_row_is_one_sentence(config, row, words):
    with pytest.raises(UserError) as error:
        folds(config, row)
    assert words in str(error.value) and str(error.value).startswith("--methods "), error.value


def test_all_stands_for_every_method_next_to_rows_without_a_federation(config, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "compatible_methods", lambda config, dataset: (["fedavg", "fedprox"], {}))
    _, plan = planned(config, tmp_path, "all", "local")
    assert [fold.row.label for fold in plan.folds] == ["fedavg", "fedprox", "local", "local"]


def compare(config, out, *more: str) -> int:
    always = "--leave-one-site-out --sites UCL --quiet --device cpu --jobs 1 --set federation.rounds=1".split()
    return evaluate.main([str(config), *always, "--out", str(out), *more])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, small_phantom) -> Path:
    """FedAvg, pooled and local, one round each, at the unseen site UCL."""
    folder = tmp_path_factory.mktemp("references")
    (folder / "small.yaml").write_text(small_yaml(small_phantom))
    assert compare(folder / "small.yaml", folder / "out", "--methods", "fedavg", "local", "pooled") == 0
    return folder


def folder(comparison: Path, row: str) -> Path:
    return comparison / "out" / row / "unseen_UCL" / "seed_3"


def test_one_round_of_fedavg_is_the_average_of_the_models_of_the_sites_alone(comparison):
    """Both sites have two training patients of six slices, so both have the weight 1/2."""
    folders = (folder(comparison, row) for row in ("fedavg", "local-BMC", "local-HK"))
    fedavg, bmc, hk = (load_file(path / "model.safetensors") for path in folders)
    assert not all(torch.equal(bmc[name], hk[name]) for name in fedavg)
    for name, entry in fedavg.items():
        torch.testing.assert_close(entry, (bmc[name] + hk[name]) / 2, rtol=0, atol=1e-6)


def test_nothing_is_in_the_ledger_of_a_row_without_a_federation_and_the_costs_say_what_moves(comparison):
    for row, is_empty in (("fedavg", False), ("pooled", True), ("local-BMC", True)):
        assert (not list(RunFolder(folder(comparison, row)).ledger())) == is_empty
    costs = {row["method"]: row for row in read_csv(comparison / "out" / "cost.csv")}
    sent = {name: (row["sent"], row["up"] == "") for name, row in costs.items()}
    assert sent == {"fedavg": ("updates", False), "pooled": ("images moved", True), "local": ("nothing sent", True)}
    assert {float(row["images"]) for row in costs.values()} == {24.0}, "two sites of 12 slices, one epoch"
    assert (float(costs["fedavg"]["steps"]), float(costs["pooled"]["steps"])) == (1, 2), "12 and 24 in batches of 16"


def test_resuming_repeats_only_what_is_missing_and_a_half_finished_local_row_is_not_shown(comparison, capsys):
    out, before = comparison / "out", (comparison / "out" / "table.json").read_bytes()
    summaries = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    missing = folder(comparison, "local-HK") / "summary.json"
    capsys.readouterr()
    with RunFolder(missing.parent).locked():
        missing.unlink()
        rows = ("--methods", "fedavg", "local", "pooled", "--resume")
        assert compare(comparison / "small.yaml", out, *rows) == 1
    text = capsys.readouterr().out
    assert "1 runs are locked by another process" in text
    assert "\n  local " not in text and "pooled - fedavg" in text and "fedavg - local" not in text
    assert compare(comparison / "small.yaml", out, *rows) == 0
    again = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert {path for path in again if again[path] != summaries[path]} == {missing}
    assert (out / "table.json").read_bytes() == before
    assert "fedavg - local" in capsys.readouterr().out


def test_a_cut_file_of_scores_is_found_by_the_comparison(comparison, capsys):
    path = folder(comparison, "pooled") / "cases.csv"
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    rows = ("--methods", "fedavg", "local", "pooled", "--resume")
    assert compare(comparison / "small.yaml", comparison / "out", *rows) == 2
    assert f"{path}: its content does not match SHA256SUMS" in capsys.readouterr().err
    path.write_bytes(whole)


def test_the_report_has_the_differences_and_no_ledger_of_rows_without_a_federation(comparison, unpainted_figures):
    assert report.main([str(comparison / "out"), "--quiet"]) == 0
    page = (comparison / "out" / "report.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("gain from joining", "fedavg - local", "pooled - fedavg"))
    assert "images moved" in page and "nothing sent" in page
    assert all(text in page for text in WITHOUT_FEDERATION.values())
