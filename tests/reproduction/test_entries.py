"""Every table and figure that can be made resolves to configs, and the command that is printed is the one that runs."""

import re
import shlex
from functools import cache

import pytest

from medfed import api, evaluate, reproduce
from medfed.config.overrides import Override
from medfed.config.schema import Config, changed
from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.experiments.grid import config_of
from medfed.methods.bigaug import BigAug
from medfed.methods.fedsr import FedSR
from medfed.outputs.published.beside import match
from medfed.outputs.published.tables import load_table, table_names
from medfed.reproduction import entries
from medfed.reproduction.entries import PAPERS, Part, commands_of, load_paper, sources
from medfed.reproduction.running import run_entry
from medfed.results.row import ComparisonRow


@cache
def base_of(config: str, changes: tuple[str, ...]) -> Config:
    return Part("a", "pacs", config, (), changes).load()


@cache
def resolve_row(config: str, method: str) -> Config:
    """The config of one row of a comparison with the config as it comes with medfed."""
    return config_of(base_of(config, ()), ComparisonRow(method), "", 1)


@cache
def resolve_varied(config: str, changes: tuple[str, ...], vary: str) -> bool:
    return all(changed(base_of(config, changes), {}, [value]) for value in Override.parse_each(vary, "--vary"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_comparison_of_a_paper_resolves_to_configs(paper, tmp_path):
    for entry in load_paper(paper).entries:
        given = [commands_of(entry, [part.name], small=True, folder=str(tmp_path))[0] for part in entry.parts]
        for part in commands_of(entry) + commands_of(entry, small=True) + given:
            assert base_of(part.config, part.set)
            assert all(resolve_row(part.config, method) for method in part.methods)
            assert all(resolve_varied(part.config, part.set, vary) for vary in part.vary)


@pytest.mark.parametrize("paper", PAPERS)
def test_the_files_of_entries_are_consistent(paper):
    """FedAvg is among the methods, because it must be above a trivial predictor. Labels have no space after a comma,
    which separates varied settings."""
    listed = load_paper(paper).entries
    assert len({entry.name for entry in listed}) == len(listed)
    for entry in listed:
        assert len({part.name for part in entry.parts}) == len(entry.parts)
        assert entry.parts or entry.missing
        for part in entry.parts:
            assert part.data in sources()
            for methods in (part.methods, part.small.get("methods", part.methods)):
                assert "fedavg" in methods and not any(", " in method for method in methods)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_of_a_published_table_is_a_method_of_the_command(paper):
    for entry in load_paper(paper).entries:
        for part in entry.parts:
            for block in (result.published() for result in part.results if result.table):
                assert all(block.columns.values()) or "l1" in block.columns, (entry.name, block.title)
                absent = {row.printed for row in block.rows if match(row.method, list(part.methods)) is None}
                noise = {"first level of noise", "second level of noise"}  # not legible, so ours are other rows
                assert absent <= {"COPA-R18", "EoA"} | noise, (entry.name, block.title, absent)


def test_every_published_number_is_shown_beside_ours_or_its_table_cannot_be_made():
    shown: set[tuple[str, str]] = set()
    for entry in (entry for paper in PAPERS for entry in load_paper(paper).entries):
        shown |= {(result.table, result.block) for part in entry.parts for result in part.results}
        shown |= {(result.table, result.block) for result in entry.printed}
    assert shown >= {(name, block.title) for name in table_names() for block in load_table(name).blocks}


def test_rows_of_other_papers_methods_have_the_settings_of_the_paper_that_compares_with_them():
    """ELCFS and FPL have the preset paper; JiGen has weight 0.7 and 0.9 in CCST; CCST has its VGG codec."""
    for name in ("table_1", "figure_4a", "figure_4b"):
        for method in methods_of("ccst", name, "elcfs"):
            assert (method.views, method.second_order) == (0, True)
        for method in methods_of("ccst", name, "jigen"):
            assert (method.weight, method.ordered) == (0.7, 0.9)
    assert [method.stages for method in methods_of("ccst", "figure_4a", "mixstyle")] == [(1, 2)]
    domainbed = [(method.mask, method.channel_share) for method in methods_of("ccst", "figure_4a", "rsc")]
    assert domainbed == [("channels", 1 / 3)]
    for paper, k, names in (("stable_fdg", 3, "1267"), ("fisc", 1, "12678")):
        for method in (method for name in names for method in methods_of(paper, f"table_{name}", "ccst")):
            assert (method.codec, method.k, method.transfer_size) == ("data/weights/adain_vgg19", k, 512)
    for method in (method for name in "12678" for method in methods_of("fisc", f"table_{name}", "fpl")):
        assert (method.over_features, method.min_images, method.min_patients) == ("sum", 1, 1)


def test_a_preset_called_paper_is_from_the_paper():
    """Nobody could check the settings of BigAug and FedSR against their papers."""
    assert set(BigAug.presets) == {"medfed", "port"} and set(FedSR.presets) == {"medfed", "readme", "released"}
    for name in ("table_1", "table_2", "figure_4"):
        assert all(method == BigAug() for method in methods_of("elcfs", name, "bigaug"))
        assert sum(text.startswith("BigAug: ") for text in load_paper("elcfs").entry(name).departs) == 2
    for paper, names in (("stable_fdg", "1 2 5 6 7"), ("fisc", "1 2 6 7 8")):
        for entry in (load_paper(paper).entry(f"table_{name}") for name in names.split()):
            assert all(method.cmi == 0.001 for method in methods_of(paper, entry.name, "fedsr"))
            assert any("FedSR" in text and "readme" in text for text in entry.departs), entry.name


def methods_of(paper, entry, name):
    """The method of this name in each row of an entry, also where it is one of several."""
    rows = {
        (command.config, label)
        for command in commands_of(load_paper(paper).entry(entry))
        for label in command.methods
        if name in re.split("[+:]", label)
    }
    assert rows
    for config, label in rows:
        method = resolve_row(config, label).method
        found = [one for one in getattr(method, "methods", (method,)) if type(one) is resolve("methods", name)]
        assert len(found) == 1
        yield found[0]


def test_elcfs_trains_on_all_source_images_with_a_denominator_that_trains_and_the_papers_gamma_also_if_small():
    """The printed denominator is a row of its own in Figure 7b."""
    for name in ("table_1", "table_2", "figure_5", "figure_6b", "figure_7b", "figure_8"):
        for command in commands_of(load_paper("elcfs").entry(name)):
            data = command.load().data
            assert (data.validation_ratio, data.test_ratio) == (0, 0), command.command()
    for entry in load_paper("elcfs").entries:
        for command in commands_of(entry) + commands_of(entry, small=True):
            method = command.load().method
            gamma = 0.5 if command.config == "prostate_paper" else 0.1
            assert (method.denominator, method.gamma) == ("positive_and_negatives", gamma), command.command()
    rows = methods_of("elcfs", "figure_7b", "elcfs")
    assert sorted(row.gamma for row in rows if row.denominator == "negatives") == [0.1, 0.5]


def test_without_contrast_fisc_has_no_regulariser_either_and_no_training_of_figure_10_is_done_twice():
    """The ablation v3 of Table 11: `contrast: 0` alone would leave a regulariser that shrinks the embeddings.

    Figure 10 leaves photo and sketch out; which of the two is called unseen changes no training if the last round
    counts.
    """
    without = [method for method in methods_of("fisc", "table_11", "fisc") if method.contrast == 0]
    assert [(method.regularisation, method.restyled_loss) for method in without] == [(0, True)]
    assert any(text.startswith("v3: ") for text in load_paper("fisc").entry("table_11").departs)
    for command in commands_of(load_paper("fisc").entry("figure_10")):
        assert command.load().federation.selection == "last"
        assert len(command.pairs) == len({frozenset(pair.split("/")) for pair in command.pairs}) == 1
        assert [result.at for result in command.results] == ["unseen", "validation"]


def test_what_is_printed_is_what_runs(monkeypatch, tmp_path):
    """The printed command, parsed by medfed.evaluate, calls the comparison that the entry calls."""
    calls = []

    class Called(Exception):
        pass

    def compare(config, methods, out, **arguments):
        defaults = {"baseline": "fedavg", "pairs": None, "sites": None}
        calls.append((config, list(methods), out, defaults | arguments | {"progress": False, "resume": False}))
        raise Called

    monkeypatch.setattr(api, "compare", compare)
    monkeypatch.setattr("medfed.config.early.check_config", lambda *arguments: None)  # the images are not here
    for paper, name, small in (("fisc", "table_7", False), ("elcfs", "figure_6b", True)):
        entry = load_paper(paper).entry(name)
        (part,) = commands_of(entry, small=small)
        words = shlex.split(part.command(tmp_path / part.name))
        assert words[:3] == ["python", "-m", "medfed.evaluate"]
        with pytest.raises(Called):
            evaluate.main(words[3:])
        with pytest.raises(Called):
            run_entry(load_paper(paper), entry, [part], tmp_path, show=lambda text: None)
        assert calls[-2] == calls[-1]


def test_small_runs_use_a_phantom_or_the_folder_that_is_given(tmp_path):
    entry, folder = load_paper("ccst").entry("table_1"), str(tmp_path)
    (phantom,) = commands_of(entry, small=True)
    assert "data.name=camelyon17_phantom" in phantom.set and "Camelyon17" in phantom.stand_in and phantom.seeds == 1
    (real,) = commands_of(entry, ["pacs"], small=True, folder=folder)
    assert f"data.root={folder}" in real.set and not real.stand_in and "data.name=camelyon17_phantom" not in real.set
    (second,) = commands_of(entry, ["officehome"], small=True, folder=folder)
    assert second.data == "officehome" and "method.codec=small" in second.set and second.methods == real.methods
    (short,) = commands_of(entry, small=True, more=["federation.rounds=1"])
    assert [text for text in short.set if text.startswith("federation.rounds")] == ["federation.rounds=1"]
    with pytest.raises(UserError, match="needs the datasets pacs, officehome, expected one; choose parts with --only"):
        commands_of(entry, folder=folder)


def test_a_mistake_in_a_file_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "FOLDER", tmp_path)
    (tmp_path / "elcfs.yaml").write_text("{title: a, citation: b, read: c, entries: [{name: Table 1, title: d}]}")
    with pytest.raises(UserError) as error:
        load_paper.__wrapped__("elcfs")
    assert "elcfs.yaml: entries[0].name: " in str(error.value) and len(str(error.value).splitlines()) == 1


def test_the_list_names_every_table_and_figure(capsys):
    assert reproduce.main([]) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {entry.name} " in output for paper in PAPERS for entry in load_paper(paper).entries)
    assert max(map(len, output.splitlines())) <= 120


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("elcf", "Did you mean 'elcfs'?"),
        ("elcfs Table_9", "no such table or figure"),
        ("fisc table_3", "no reader for IWildCam"),
        ("ccst table_1 --only vlcs", "Known: pacs, officehome"),
        ("elcfs figure_1 --data /", "--data /: Figure 1 needs the datasets -"),
        ("elcfs figure_1 --only a", "--only a: Figure 1 has no such part"),
        ("elcfs table_2 --seeds 0", "--seeds 0: expected a whole number of at least 1"),
        ("ccst --data /", "--data: name a table or figure, for example ccst table_2"),
        ("elcfs table_2 --dry-run --set foo=1", "foo"),
    ],
)
def test_a_name_or_flag_that_does_not_fit_is_one_sentence(words, message, capsys):
    assert reproduce.main(words.split()) == 2
    output = capsys.readouterr()
    assert message in output.err and not output.out


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("fisc", ["--pairs photo/art_painting"]),
        ("elcfs table_2 --dry-run --small", ["data.name=prostate_phantom", "87.39"]),  # the paper's average of ELCFS
        ("stable_fdg table_6 --dry-run", ["22.44"]),  # seconds of a round of FedDG
        ("stable_fdg table_14 --dry-run", ["[runs]", *"84.10 82.99 72.73 73.35 82.70 82.25".split()]),
        ("stable_fdg table_9 --dry-run", ["[runs]", "75.67", "74.63"]),
        ("fisc table_3 --dry-run", ["[cannot]", "54.26", "57.23"]),
        ("fisc table_9 --dry-run", ["[cannot]", "10.3744", "0.2256", "59.185", "362.56"]),
        ("fisc table_10 --dry-run", ["[partly]", *"90.84 51.96 70.81 48.93 69.91 53.11 71.02".split()]),
    ],
)
def test_every_legible_number_is_printed_also_of_a_table_that_cannot_be_made(words, printed, capsys):
    assert reproduce.main(words.split()) == 0
    output = capsys.readouterr().out
    assert all(text in output for text in printed)


def test_images_of_patients_are_not_stored_in_the_folder_of_all_results(tmp_path, capsys):
    """The folder lies outside of the folder of each comparison, which is a part of the folder of all results."""
    words = ["elcfs", "table_2", "--small", "--out", f"{tmp_path}/out", "--set", f"cache.folder={tmp_path}/out/cache"]
    assert reproduce.main(words) == 2
    assert f"lies in the folder of results {tmp_path}/out, which must not hold images" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
