"""The grid of a comparison: which rows, which configs, which folders; and how many sites train."""

from pathlib import Path
from types import MappingProxyType

import pytest

from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.experiments.arguments import varied_texts
from medfed.experiments.comparison import check_rows, compatible_methods, plan_comparison, validation_sites
from medfed.experiments.grid import folds_of, rows_of
from medfed.experiments.sites import participating_sites

SITES = ["BMC", "HK", "UCL"]


@pytest.fixture
def config(tiny_config):
    return load(tiny_config)


def folds(config, methods, *vary, sites=("UCL",), validates=MappingProxyType({})):
    return folds_of(config, Path("out"), rows_of(config, methods, varied_texts(vary)), 1, SITES, sites, validates)


def labels(result):
    return [fold.row.label for fold in result]


def test_every_method_has_a_row_for_each_value(config):
    result = folds(config, ["fedavg", "elcfs"], "federation.participating=1,2")
    assert labels(result) == [f"{m}, federation.participating={k}" for m in ("fedavg", "elcfs") for k in (1, 2)]
    assert [fold.config.federation.participating for fold in result] == [1, 2, 1, 2]
    baselines = [fold.row.baseline_label() for fold in result]
    assert baselines == [f"fedavg, federation.participating={k}" for k in (1, 2, 1, 2)]


def test_several_varied_settings_give_every_combination(config):
    result = folds(config, ["elcfs"], "method.gamma=0,0.5", "training.batch_size=4,8")
    values = [(fold.config.method.gamma, fold.config.training.batch_size) for fold in result]
    assert values == [(0, 4), (0, 8), (0.5, 4), (0.5, 8)]
    assert all(fold.row.baseline_label() == f"fedavg, training.batch_size={n}" for fold, n in zip(result, (4, 8, 4, 8)))


def test_a_method_without_the_setting_has_one_row_which_is_the_baseline(config):
    result = folds(config, ["fedavg", "elcfs", "elcfs:episodic=false"], "method.gamma=0,0.5")
    varied = [f"{name}, method.gamma={gamma}" for name in ("elcfs", "elcfs:episodic=false") for gamma in (0, 0.5)]
    assert labels(result) == ["fedavg", *varied]
    assert {fold.row.baseline_label() for fold in result} == {"fedavg"}
    assert [fold.config.method.episodic for fold in result[1:]] == [True, True, False, False]
    assert all(fold.config.method.alpha == 0.1 for fold in result[1:3]), "the config's own settings stay"


def test_values_are_yaml_and_may_have_commas_in_brackets(config):
    result = folds(config, ["fedavg"], "training.betas=[0.9, 0.99],[0.5,0.5]")
    assert [fold.config.training.betas for fold in result] == [(0.9, 0.99), (0.5, 0.5)]
    assert len({fold.folder.path for fold in result}) == 2
    result = folds(config, ["fedavg"], "training.learning_rate=1e-3, 0.01", "federation.participating=1,null")
    assert [fold.config.training.learning_rate for fold in result] == [0.001, 0.001, 0.01, 0.01]
    assert [fold.config.federation.participating for fold in result] == [1, None, 1, None]


def test_the_folder_of_a_method_without_settings_is_its_name(config):
    paths = [fold.folder.path.as_posix() for fold in folds(config, ["fedavg", "elcfs:gamma=0,alpha=0.1"])]
    assert paths == [f"out/{row}/unseen_UCL/seed_3" for row in ("fedavg", "elcfs-gamma=0,alpha=0.1")]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        (["federation.participating"], ("--vary federation.participating", "key=value,value")),
        (["method.gamma=0,,1"], ("--vary method.gamma=0,,1", "key=value,value")),
        (["method.gamma=0,0.0"], ("method.gamma=0.0 comes twice",)),
        (["method.gamma=0,[1"], ("--vary method.gamma=[1", "line 1")),
        (["method.gamma=0", "method.gamma=0"], ("would share a folder",)),
        (["method.gama=0,1"], ("--vary method.gama: none of the methods fedavg, elcfs", "Did you mean 'gamma'")),
        (["method.gamma=0,-1"], ("--vary method.gamma=-1: method.gamma: expected a number of at least 0",)),
        (["method=elcfs,fedavg"], ("--vary method=elcfs", "a block of keys and values")),
        (["method.name=elcfs,fedavg"], ("--vary method.name: cannot be varied", "--methods")),
        (["seed=1,2"], ("--vary seed: cannot be varied", "--seeds")),
        (["federation.unseen_site=HK,UCL"], ("cannot be varied", "--sites")),
        (["data.sites=[HK, UCL],[HK]"], ("cannot be varied", "have the same")),
        (["federation.selection=last,source_validation"], ("cannot be varied", "have the same")),
        (["federation.participating=1,3"], ("participating: 3 sites are to train, but only 2 (BMC, HK)", "most 2")),
        (["federation.participating=0,1"], ("participating=0: federation.participating: expected a number of at",)),
        (["federation.participating=1.5"], ("--vary federation.participating=1.5", "a whole number")),
    ],
)
def test_mistakes_are_one_sentence_before_anything_trains(config, vary, words):
    with pytest.raises(UserError) as error:
        folds(config, ["fedavg", "elcfs"], *vary)
    assert all(word in str(error.value) for word in words), error.value


def test_a_setting_given_twice_and_two_equal_rows_are_refused(config):
    with pytest.raises(UserError, match="--vary method.gamma: --methods elcfs:gamma=0 sets it too"):
        folds(config, ["elcfs:gamma=0"], "method.gamma=0,1")
    with pytest.raises(UserError, match="'fedavg' and 'fedavg' would share a folder"):
        folds(config, ["fedavg", "fedavg"])


def test_a_look_at_the_unseen_site_that_cannot_be_taken_is_refused_before_any_run_starts(tiny_config):
    """Each row is checked: FedBN keeps entries at the sites."""
    config = load(tiny_config, ["evaluation.unseen_every=3", "federation.rounds=3"])
    with pytest.raises(UserError, match="fedavg, federation.rounds=2: .*unseen_every: is 3, which has no effect"):
        check_rows(folds(config, ["fedavg"], "federation.rounds=3,2"))
    config = load(tiny_config, ["evaluation.unseen_every=2", "network.norm=batch"])
    check_rows(folds(config, ["fedavg", "elcfs"]))
    with pytest.raises(UserError, match="fedbn: .*is 2, but entries of the network stay at the .* Nothing was trained"):
        check_rows(folds(config, ["fedavg", "fedbn"]))


def test_methods_all_leaves_out_what_does_not_work_on_the_task_or_cannot_be_scored_in_earlier_rounds(tiny_config):
    config = load(tiny_config, ["evaluation.unseen_every=2", "network.norm=batch"])
    names, refused = compatible_methods(config, config.data)
    assert "stay at the sites" in refused["fedbn"] and len(names) > 10
    assert names[0] == "fedavg" and {"elcfs", "ccst", "fisc"} <= set(names) and "stack" not in [*names, *refused]
    assert "predicts masks" in refused["stable_fdg"] and "stable_fdg" not in names
    config = load(tiny_config, ["network.name=densenet"])
    with pytest.raises(UserError, match="'densenet' is not made for segmentation"):  # no method could be compared
        compatible_methods(config, config.data)


def test_the_validation_site_does_not_train(config):
    """Two of three sites are apart, so one is left."""
    pairs = validation_sites(SITES, (), "data")
    assert len(folds(config, ["fedavg"], "federation.participating=1", validates=pairs)) == 1
    with pytest.raises(UserError, match=r"2 sites are to train, but only 1 \(BMC\) are neither"):
        folds(config, ["fedavg"], "federation.participating=2", sites=["HK"], validates=pairs)


def test_participating_sites_are_nested_and_depend_only_on_the_seed():
    names = [f"site_{k}" for k in range(7)]
    drawn = {}
    for seed in (1, 2, 3, 4):
        for wanted in range(1, 8):
            result = participating_sites(names, wanted, seed, "a.yaml")
            assert len(result) == wanted and result == sorted(result)
            again = participating_sites(names[::-1], wanted, seed, "a.yaml")
            assert set(again) == set(result), "the order of the listing does not matter"
            assert set(drawn.get((seed, wanted - 1), [])) < set(result)
            drawn[seed, wanted] = result
    assert len({tuple(drawn[seed, 3]) for seed in (1, 2, 3, 4)}) > 1, "the seed draws"
    left = [name for name in names if name != drawn[1, 3][0]]
    others = participating_sites(left, 3, 1, "a.yaml")
    assert set(drawn[1, 3]) - set(others) == {drawn[1, 3][0]}, "leaving one out moves no other site's place"
    assert participating_sites(names, None, 1, "a.yaml") == names


def test_given_pairs_become_the_folds(config):
    """Each unseen site with the validation site that the paper has beside it."""
    pairs = validation_sites(SITES, [("UCL", "BMC"), ("HK", "UCL")], "data")
    result = folds(config, ["fedavg"], sites=list(pairs), validates=pairs)
    assert [(fold.site, fold.config.federation.validation_site) for fold in result] == [("UCL", "BMC"), ("HK", "UCL")]


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([("UCL", "")], "expected UNSEEN/VALIDATION"),
        ([("UCL", "BMK")], "--pairs UCL/BMK: no site 'BMK'.*Did you mean 'BMC'"),
        ([("UCL", "UCL")], "the unseen site cannot validate"),
        ([("UCL", "HK"), ("UCL", "BMC")], "UCL is unseen twice"),
    ],
)
def test_wrong_pairs_are_refused(pairs, sentence):
    with pytest.raises(UserError, match=sentence):
        validation_sites(SITES, pairs, "data")


@pytest.mark.parametrize("place", ["cache", "fedavg", "."])
@pytest.mark.parametrize("varied", [False, True])
def test_images_of_patients_are_not_stored_in_the_folder_of_a_comparison(place, varied, tiny_config, tmp_path):
    folder = tmp_path / "out" / place
    inside, outside = [f"cache.folder={folder}"], [f"cache.folder={tmp_path / 'cache'}"]
    vary = varied_texts([f"cache.folder={tmp_path / 'cache'},{folder}"] if varied else [])
    with pytest.raises(UserError, match="cache.folder: .* lies in the folder of results .*out, which must not hold"):
        plan_comparison(load(tiny_config, outside if varied else inside), tmp_path / "out", ["fedavg"], varied=vary)
    assert not (tmp_path / "out").exists()
    assert plan_comparison(load(tiny_config, outside), tmp_path / "out", ["fedavg"]).folds
