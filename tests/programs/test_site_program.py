"""A hospital's side, up to where FLARE begins: what it is shown, what it is asked, and what it refuses."""

import csv
import json
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import tiny_yaml

from medfed import site as program
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.deployment import join, take_part
from medfed.deployment.agreement import Agreement, Refused, plan_checksum
from medfed.deployment.guarded_site import LEDGER, MODEL, GuardedSite, build_local_site
from medfed.deployment.join import lock_kit, read_site_file
from medfed.deployment.templates import site_file_text
from medfed.engines.flare.kit import ADDRESS_FILE, CERTIFICATES, STATE_FILE
from medfed.engines.flare.process import FlareProcess
from medfed.experiments.setup import build_experiment
from medfed.federation.ledger import COLUMNS
from medfed.federation.message import Message
from medfed.federation.rounds import federate
from medfed.federation.settings import Cache
from medfed.federation.site import Site


@pytest.fixture
def hospital(tmp_path, small_phantom):
    """A hospital's folder as it gets it; `hospital(sends="windows")` writes down what it agrees to."""
    shutil.copytree(small_phantom / "HK", tmp_path / "data" / "HK")
    whole = tiny_yaml(small_phantom).replace(str(small_phantom), "data").replace("sites: [BMC, HK, UCL], ", "")
    (tmp_path / "plan.yaml").write_text(whole.replace("unseen_site: UCL, ", ""))

    def write(sends: str = "", **changes: str) -> Path:
        path = tmp_path / "HK.yaml"
        text = site_file_text("HK", load(tmp_path / "plan.yaml").federation.rounds, {})
        for key, value in {"sends": f"[{sends}]", "min_patients": "1", **changes}.items():
            text, n_lines = re.subn(rf"(?m)^( *){key}:.*", rf"\1{key}: {value}", text)
            assert n_lines == 1, key
        path.write_text(text)
        return path

    return write


@pytest.fixture
def joined(monkeypatch):
    """In place of joining: who would have."""
    result = []
    monkeypatch.setattr(take_part, "join_federation", lambda hospital, *others: result.append(hospital.site))
    for check in ("require_flare", "check_kit"):
        monkeypatch.setattr(take_part, check, lambda *_: None)
    return result


def run(path: Path, *flags: str) -> int:
    return program.main([str(path), "--quiet", *flags])


def test_a_missing_kit_is_named_before_the_data_are_read(hospital, monkeypatch, capsys):
    monkeypatch.setattr(take_part, "require_flare", lambda _: None)
    monkeypatch.setattr(take_part, "check_dataset", None)
    assert run(hospital("windows"), "--yes") == 2
    assert "kit: does not exist; unpack the startup kit" in capsys.readouterr().err


def shown(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """The table that was printed: (kind, what) to number, shape, bytes, and the number of patients of a statistic."""
    rows = [line.split() for line in text.splitlines() if line.startswith(("  share ", "  train ", "  validate "))]
    return {(row[0], row[1]): tuple(row[2:]) for row in rows if row[1] != "weights"}


def test_a_dry_run_shows_what_the_ledger_of_a_run_then_has(hospital, small_phantom, tmp_path, capsys, joined):
    """Names, numbers, shapes and bytes of round 1, HK beside BMC; facts are as long as their numbers are."""
    assert run(hospital("windows"), "--dry-run") == 0
    text = capsys.readouterr().out
    (tmp_path / "tiny.yaml").write_text(tiny_yaml(small_phantom))
    config = load(tmp_path / "tiny.yaml")
    simulation = build_experiment(config, None, quiet=True)
    first = next(federate(config.method, simulation.engine, simulation.start, config.federation, config.seed))
    rows = [row for row in first.ledger if row["site"] == "HK" and row["direction"] == "up"]
    result = shown(text)
    facts = {(row["kind"], name) for row in rows if row["content"] == "fact" for name in row["name"].split("; ")}
    assert facts == {key for key, row in result.items() if row[1] == "fact"}
    (windows,) = (row for row in rows if row["content"] == "statistic")
    own = {key: row for key, row in result.items() if key not in facts}
    assert own == {("share", "windows"): ("1", windows["shape"], f"{windows['bytes']:,}", "1")}
    weights = next(row for row in rows if row["content"] == "weight")
    assert re.search(rf"train +weights of the network +{weights['n']} +{weights['bytes']:,}\n", text)
    assert "In a round" not in text and not joined and not (tmp_path / "medfed_HK").exists()


@pytest.fixture
def with_validation_site(hospital, tmp_path):
    """The plan names a validation site."""

    def write(site: str) -> Path:
        plan = tmp_path / "plan.yaml"
        more = f"federation: {{selection: validation_site, validation_site: {site}, "
        plan.write_text(plan.read_text().replace("federation: {", more))
        return hospital()

    return write


def test_a_hospital_that_only_validates_sends_scores_and_agrees_to_no_statistic(with_validation_site, capsys, joined):
    assert run(with_validation_site("HK"), "--yes") == 0
    text = capsys.readouterr().out
    result = shown(text)
    assert {kind for kind, _ in result} == {"validate"} and ("validate", "score") in result
    assert {row[1] for row in result.values()} == {"fact"}
    assert " images do not leave):" in text and "This site only validates" in text and joined == ["HK"]


def test_its_score_is_that_of_a_simulation_and_it_answers_nothing_else(small_phantom, tmp_path, with_validation_site):
    text = tiny_yaml(small_phantom).replace("rounds: 2", "rounds: 2, validation_site: HK")
    (tmp_path / "tiny.yaml").write_text(text)
    simulation = build_experiment(load(tmp_path / "tiny.yaml"), None, quiet=True)
    request = Message("validate", simulation.start.weights, {}, {"round": 1})
    expected = simulation.engine.validation_site.reply(request)
    _, config = read_site_file(with_validation_site("HK"))
    guarded = GuardedSite(build_local_site(config, "HK"), tmp_path, Agreement())
    assert guarded.reply(request) == expected
    assert len(guarded.site.samples) == len(simulation.engine.validation_site.samples)
    for kind in ("train", "share"):
        with pytest.raises(Refused, match=f"was asked to '{kind}', but agreed to validate, end only"):
            guarded.reply(Message(kind, simulation.start.weights, {}, {"round": 1}))
    guarded.reply(Message("validate", simulation.start.weights, {}, {"round": 1, "last": 1}))
    assert guarded.reply(Message("end", simulation.start.weights, {}, {"round": 2})) == Message("end")
    assert (tmp_path / "model.safetensors").is_file()


def test_where_another_hospital_validates_this_one_trains_without_its_folder_and_that_one_needs_it(
    with_validation_site, capsys, joined
):
    path = with_validation_site("UCL")
    _, config = read_site_file(path)
    assert isinstance(build_local_site(config, "HK"), Site) and config.federation.validation_site == ""
    path.write_text(path.read_text().replace("site: HK", "site: UCL"))
    assert run(path, "--yes") == 2 and joined == []
    assert "has no images of the site UCL, but of HK" in capsys.readouterr().err


def test_the_hospital_alone_decides_where_its_restyled_images_are_stored(hospital, tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(plan.read_text() + f"cache: {{folder: {tmp_path / 'everyone'}, max_gb: 99}}\n")
    path = hospital()
    assert read_site_file(path)[1].cache == Cache()
    text = path.read_text()
    path.write_text(text.replace('folder: ""', "folder: scratch").replace("max_gb: 10.0", "max_gb: 2"))
    assert read_site_file(path)[1].cache == Cache(str(tmp_path / "scratch"), 2.0)
    path.write_text(text.replace('folder: ""', "folder: medfed_HK/images"))
    with pytest.raises(UserError, match="HK.yaml: cache.folder: .* must not hold images of patients"):
        read_site_file(path)


def test_a_missing_plan_is_told_and_no_other_hospitals_file_proposed(hospital, tmp_path, capsys, joined):
    path = hospital()
    (tmp_path / "plan.yaml").unlink()
    (tmp_path / "BMC.yaml").write_text("site: BMC\n")
    assert run(path) == 2 and not joined
    output = capsys.readouterr().err
    assert "plan.yaml is missing; copy the plan from the coordinator" in output and "BMC" not in output


def no_answer(question):
    raise EOFError


@pytest.mark.parametrize("answer", ["no", "", "y", "yes please", " YES ", None])
def test_only_the_word_yes_joins(hospital, capsys, joined, monkeypatch, answer):
    """None stands for a program that nobody can be asked by, as in a job without a terminal."""
    monkeypatch.setattr("builtins.input", no_answer if answer is None else lambda question: answer)
    assert run(hospital('"win*"')) == 0
    assert ("Nothing was sent." in capsys.readouterr().out) == (answer != " YES ")
    assert joined == ["HK"] * (answer == " YES ")


def test_bad_data_stop_before_anything_is_trained_or_sent(hospital, tmp_path, capsys, joined, monkeypatch):
    path = hospital("windows")
    monkeypatch.setattr(take_part, "build_local_site", None)  # calling it would fail
    next(p for p in sorted((tmp_path / "data" / "HK").iterdir()) if "egmentation" in p.name).unlink()
    assert run(path, "--yes") == 2
    assert "problems in the data: 1; correct them and repeat the command" in capsys.readouterr().err and not joined


@pytest.mark.parametrize(
    ("sends", "changes", "sentence"),
    [
        ("windows", {"rounds": "1"}, "agrees.rounds: is 1, but the plan has 2 rounds"),
        ("windows", {"site": "nobody"}, "has no images of the site nobody, but of HK"),
        ("windows", {"root": "data/HK"}, "data/HK is the folder of the site HK itself; expected the folder that"),
        ("windows", {"root": "data\n  image_size: 48"}, "data: image_size is 48, but 32 in the plan"),
        ("windows", {"root": "elsewhere"}, "elsewhere"),
        ("windows", {"plan": "other.yaml"}, "other.yaml"),
        ("windows", {"site": "HK\nanswers: 3"}, "answers"),
        ("windows", {"megabytes_per_round": "0.01"}, "agrees.megabytes_per_round: is 0.01, but a round would send "),
        ("windows", {"min_patients": "5"}, "agrees.min_patients: is 5, but the statistic 'windows' has"),
        ("windows", {"max_epsilon": "8"}, "HK.yaml: agrees.max_epsilon: is 8, but epsilon is infinite"),
        ("", {}, "agrees.sends: the statistics 'windows', which are not in the list, would"),
    ],
)
def test_what_a_hospitals_file_does_not_allow_is_one_sentence_before_joining(
    hospital, capsys, joined, sends, changes, sentence
):
    """A file that `prepare` wrote has 5 for min_patients, and agrees to no statistic."""
    assert "min_patients: 5 " in site_file_text("HK", 1, {})
    assert run(hospital(sends, **changes), "--yes") == 2
    out, err = capsys.readouterr()
    assert sentence in err and err.count("\n") == 1 and not joined
    assert sends or ("share", "windows") in shown(out)


@pytest.fixture
def with_kit(hospital, tmp_path, monkeypatch):
    """A kit whose client ends at once, so that joining needs no server."""
    pytest.importorskip("nvflare")
    for folder in ("startup", "local"):
        (tmp_path / "kit" / folder).mkdir(parents=True)
    for name in CERTIFICATES:
        (tmp_path / "kit" / "startup" / name).touch()
    server = {"name": "medfed", "identity": "hub", "service": {"target": "hub:8002"}}
    address = {"servers": [server], "client": {"fqsn": "HK"}}
    (tmp_path / "kit" / "startup" / ADDRESS_FILE).write_text(json.dumps(address))
    monkeypatch.setattr(FlareProcess, "_command", lambda self: [sys.executable, "-c", ""])
    return hospital("windows")


def test_a_second_program_with_the_same_kit_is_refused(with_kit, tmp_path, capsys, monkeypatch):
    """It would write its own job over the first one's, and its client would take the first one's place."""
    monkeypatch.setattr(FlareProcess, "start", None)  # calling it would fail
    monkeypatch.setattr(FlareProcess, "write", None)
    with lock_kit(tmp_path / "kit"):
        assert run(with_kit, "--yes") == 2
    assert re.search(r"kit: process \d+ uses this kit already", capsys.readouterr().err)


def test_a_folder_that_is_called_as_the_site_may_hold_the_sites(hospital, tmp_path, capsys, joined):
    shutil.copytree(tmp_path / "data" / "HK", tmp_path / "other" / "HK" / "BMC")
    assert run(hospital("windows", root="other/HK"), "--yes") == 2
    assert "other/HK: has no images of the site HK, but of BMC; your files must" in capsys.readouterr().err


def test_a_dry_run_without_flare_does_not_look_at_the_kit(with_kit, tmp_path, monkeypatch):
    (tmp_path / "kit" / "local" / "privacy.json").write_text("{}")
    monkeypatch.setattr(take_part, "has_flare", lambda: False)
    monkeypatch.setattr(take_part, "check_kit", None)  # calling it would fail
    assert run(with_kit, "--dry-run") == 0


def test_a_dry_run_looks_at_the_kit_if_there_is_one(with_kit, tmp_path, capsys):
    assert run(with_kit, "--dry-run") == 0
    file = tmp_path / "kit" / "startup" / ADDRESS_FILE
    file.write_text(file.read_text().replace("HK", "BMC"))
    assert run(with_kit, "--dry-run") == 2
    assert "is the startup kit of 'BMC'" in capsys.readouterr().err


def test_a_hospital_is_told_once_what_goes_wrong_while_it_takes_part(tmp_path, monkeypatch):
    """The program's third look finds the final model."""
    for name in ("POLL_S", "LAST_REPLY_S", "SILENCE_S"):
        monkeypatch.setattr(join, name, 0.0)
    monkeypatch.setattr(join, "answers", lambda kit: False)
    monkeypatch.setattr(join, "server_address", lambda kit: "hub:8002")
    looks = iter([None, None, (tmp_path / MODEL).touch])

    def has_ended() -> bool:
        (next(looks) or str)()
        return False

    def fail(kit) -> None:
        raise UserError("hub:8002: the certificates do not fit")

    client = SimpleNamespace(workspace=tmp_path, start=lambda log: None, stop=lambda: None, has_ended=has_ended)
    (tmp_path / STATE_FILE).write_text("did not reply to the coordinator: was sent weights that do not fit its network")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        join._take_part("HK", client, tmp_path, quiet=True)
    first, second = (str(one.message) for one in shown)
    monkeypatch.setattr(join, "answers", fail)
    assert not join._answers(tmp_path, has_joined=True), "the federation goes on"
    with pytest.raises(UserError):
        join._answers(tmp_path, has_joined=False)
    assert first.startswith("HK: did not reply to the coordinator: was sent weights")
    assert second.startswith("HK: the coordinator's server hub:8002 does not answer; this program keeps trying")


def test_plans_have_the_same_checksum_if_their_settings_are_equal(tmp_path):
    """Mail programs change line ends."""
    texts = ["seed: 3\nmethod: {name: elcfs}\n", "# ours\r\nmethod:\r\n  name: elcfs\r\nseed: 3\r\n", "seed: 4\n"]
    sums = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(text.encode())
        sums.append(plan_checksum(path))
    assert sums[0] == sums[1] != sums[2] and len(sums[0]) == 12


SENT = "if it was sent to you, ask the coordinator why"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("model.safetensors", "is the model of a federation that is over"),
        ("noise.key", SENT),
        ("answered.json", SENT),
        ("ledger.csv", SENT),
    ],
)
@pytest.mark.parametrize("flag", ["--yes", "--dry-run"])
def test_a_folder_with_a_model_or_with_files_that_were_sent_is_not_used(
    with_kit, tmp_path, capsys, monkeypatch, name, sentence, flag
):
    """The output folder lies in the folder that the coordinator sends."""
    monkeypatch.setattr(FlareProcess, "start", None)  # calling it would fail
    (tmp_path / "medfed_HK").mkdir()
    (tmp_path / "medfed_HK" / name).write_text("{}")
    assert run(with_kit, flag) == 2
    err = capsys.readouterr().err
    assert "medfed_HK" in err and sentence in err
    assert [(path.name, path.read_text()) for path in (tmp_path / "medfed_HK").iterdir()] == [(name, "{}")]


def test_joining_again_continues_in_the_folder_that_medfed_created(with_kit, tmp_path, capsys):
    for _ in range(2):
        assert run(with_kit, "--yes") == 2
        err = capsys.readouterr().err
        assert "FLARE's client ended before the federation; see " in err and "medfed_HK/flare.log" in err
    assert (tmp_path / "medfed_HK" / "answered.json").is_file()
    (job,) = json.loads((tmp_path / "medfed_HK" / "flare" / "local" / "medfed_site.json").read_text()).values()
    assert job["folder"] == str(tmp_path / "medfed_HK") and job["agreement"]["sends"] == ["windows"]
    assert Path(job["directory"]) == Path.cwd()


def test_the_ledger_of_a_hospital_is_the_runs(tmp_path, small_phantom):
    """Two rounds of a guarded site: its ledger file has the rows that the coordinator's has for this site."""
    (tmp_path / "tiny.yaml").write_text(tiny_yaml(small_phantom))
    config = load(tmp_path / "tiny.yaml")
    simulation = build_experiment(config, None, quiet=True)
    bmc, hk = simulation.sites
    guarded = GuardedSite(hk, tmp_path, Agreement(sends=("windows",), rounds=2))

    class Engine:
        work_s = None

        def sites(self):
            return ["BMC", "HK"]

        def exchange(self, kind, messages):
            sites = {"BMC": bmc, "HK": guarded}  # only the desk keeps weights; the other site asks for them again
            return {site: sites[site].reply(message) for site, message in messages.items()}

    rounds = list(federate(config.method, Engine(), simulation.start, config.federation, config.seed))
    expected = [tuple(map(str, row.values())) for one in rounds for row in one.ledger if row["site"] == "HK"]
    with open(tmp_path / LEDGER, newline="") as file:
        names, *result = csv.reader(file)
    assert tuple(names) == COLUMNS and sorted(map(tuple, result)) == sorted(expected)


@pytest.mark.parametrize(
    "block",
    [
        "method: {name: os.path}",
        "network: {name: evil.networks.Net}",
        "method: {name: stack, methods: [{name: fedavg}, {name: evil.method}]}",
        "evaluation: {metrics: [dice, evil.method]}",
        "federation: {engine: evil.method}",
    ],
)
def test_a_plan_that_names_code_from_outside_is_refused_before_any_is_imported(tmp_path, monkeypatch, block):
    (tmp_path / "evil").mkdir()
    for name in ("__init__", "networks", "method"):
        (tmp_path / "evil" / f"{name}.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plan.yaml").write_text(f"data: {{name: prostate, root: data}}\n{block}\n")
    (tmp_path / "a.yaml").write_text("site: A\n")
    with pytest.raises(UserError, match="is code from outside medfed"):
        read_site_file(tmp_path / "a.yaml")
    assert not (tmp_path / "ran").exists()
