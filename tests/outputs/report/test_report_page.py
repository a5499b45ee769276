"""The page of runs: complete, safe, accessible, and with the numbers of the summaries."""

import base64
import hashlib
import io
import json
import re
from dataclasses import asdict
from html.parser import HTMLParser

import numpy as np
import pytest
from jinja2 import UndefinedError
from made_runs import NOT_LEARNED, class_rows, finish_again, made_comparison, made_run, mask_rows, png, with_plan
from PIL import Image

from medfed.auditing.page import TEMPLATES as AUDIT_TEMPLATES
from medfed.outputs.report import page as page_module
from medfed.outputs.report.html import FOLDER, embed_png, render_page
from medfed.outputs.report.page import build_page
from medfed.outputs.report.read import read_runs
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ROW_FILE, ComparisonRow

EVIL = "<b>\"x'&</script>"
VOID = ("br", "col", "img", "input", "link", "meta")  # elements without an end tag


class Page(HTMLParser):
    """Every element with its attributes, whether all were closed in order, and the tables as rows of texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.tables, self.wrong, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)
        if name == "table":
            self.tables.append([])
        elif name == "tr":
            self.tables[-1].append([])
        elif name in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, name):
        if not self.open or self.open.pop() != name:
            self.wrong.append(name)

    def handle_data(self, text):
        self.texts.append(text)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += text

    def all(self, name):
        return [attributes for result, attributes in self.elements if result == name]


def page_of(*folders):
    return build_page(*read_runs(folders))


def overlay(width: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, 128)).save(file, "WEBP")
    return file.getvalue()


def with_overlays(run, *places):
    (run / "figures" / "patients").mkdir()
    for place in places:
        (run / "figures" / "patients" / f"{place:03d}.webp").write_bytes(overlay(100 + place))
    return run


def address(data: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}"


pytestmark = pytest.mark.usefixtures("unpainted_figures")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    return [
        with_overlays(made_run(root / "masks"), 0, 6),
        made_run(root / "fedavg", "fedavg"),
        made_comparison(root / "all", seeds=(0,)),
        made_run(root / "classes", "fisc", rows=class_rows(["A", "B"], "C")),
    ]


@pytest.fixture(scope="module")
def text(folders):
    return page_of(*folders)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_no_address_leaves_the_page(text, page):
    """Links stay within the page, images are inside it, and no address in it has a scheme."""
    names = [attributes[key] for _, attributes in page.elements for key in ("src", "href") if attributes.get(key)]
    assert len(names) > 4 and all(name.startswith(("data:", "#")) for name in names)
    outside = re.sub(r"data:image/webp;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", outside.replace("\n// ", "\n"))


def test_the_page_forbids_itself_all_but_its_own_script_and_style(text, page):
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for element in ("script", "style"):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", text, re.S)
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
    assert not any(key.startswith("on") or key == "style" for _, attributes in page.elements for key in attributes)


def test_every_element_is_closed_and_every_link_has_its_place_once(page):
    assert not page.wrong and not page.open
    places = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(places) == len(set(places))
    assert {link["href"][1:] for link in page.all("a")} <= set(places)


def test_images_have_a_text_tables_have_headers_and_what_scrolls_can_be_reached_by_keyboard(page):
    assert page.all("img") and all(image["alt"] for image in page.all("img"))
    scopes = [head["scope"] for head in page.all("th")]
    assert len(page.tables) > 5 and set(scopes) == {"row", "col"}
    assert all(len({len(row) for row in table}) == 1 for table in page.tables)
    frames = [attributes for _, attributes in page.elements if (attributes.get("class") or "").startswith("scroll")]
    assert frames and all(frame["tabindex"] == "0" and frame["aria-label"] for frame in frames)


def test_every_caption_says_what_the_data_are(text, tmp_path):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.S)
    assert len(captions) > 20 and all("PHANTOM data" in caption for caption in captions)
    text = page_of(made_run(tmp_path / "run", data="real"))
    assert "PHANTOM" not in text and "REAL data: this page shows images of patients" in text
    assert all("REAL data" in caption for caption in re.findall(r"<figcaption>(.*?)</figcaption>", text, re.S))
    text = page_of(made_run(tmp_path / "a", "fedavg"), made_run(tmp_path / "b", data="real"))
    assert "cannot be in one table" in text and "Some runs are of PHANTOM data" in text


@pytest.mark.figures
def test_no_name_of_a_site_a_method_a_structure_a_file_or_a_notice_can_break_the_page(tmp_path):
    rows, file = mask_rows([EVIL, "B"], "C" + EVIL, structure=EVIL), EVIL.replace("/", "")
    run = made_run(tmp_path / "run", EVIL, "C" + EVIL, sites=(EVIL, "B"), rows=rows, dataset=EVIL, notices=[EVIL])
    (run / "figures" / f"{file}.png").write_bytes(png())
    text = page_of(run, made_comparison(tmp_path / file, seeds=(0,)))
    page = Page(text)
    assert not page.wrong and not page.open and not page.all("b")
    assert len(page.all("script")) == 1 and EVIL not in text and EVIL in "".join(page.texts)
    assert any(row[0] == EVIL for table in page.tables for row in table)


def facts(text, n=0) -> dict[str, str]:
    """The n-th list of facts of the page."""
    (*lists,) = re.findall(r'<dl class="properties first">(.*?)</dl>', text, re.S)
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", lists[n], re.S))


def test_the_first_screen_of_a_run_says_what_matters(tmp_path):
    fedavg, elcfs = made_run(tmp_path / "a", "fedavg"), made_run(tmp_path / "b", learning=NOT_LEARNED, rows=None)
    text = page_of(fedavg)
    assert facts(text) == {
        "Method": "fedavg",
        "Unseen site": "C",
        "disc, Dice % at C": "66.43 [36.9, 87.0] (7 patients)",
        "Did it learn?": "not measured",
        "Images": "synthetic PHANTOM",
    }
    text = page_of(fedavg, elcfs)
    assert facts(text, 1)["Difference"].startswith("disc: +0.00") and "from fedavg; " in facts(text, 1)["Difference"]
    assert facts(text, 1)["Did it learn?"] == "NO" and "DID NOT LEARN: on the validation images" in text
    classes = page_of(made_run(tmp_path / "classes", rows=class_rows(["A"], "C")))
    assert [name for name in facts(classes) if " at C" in name] == ["accuracy % at C", "AUROC % at C"]


def patients(text, n=0):
    return [table for table in Page(text).tables if table[0][:2] == ["image", "patient"]][n]


def test_the_table_of_patients_begins_with_the_worst_unseen_patient_and_has_their_overlays(text, folders):
    """Of seven unseen patients, the last is missed; overlays exist of the first and the last."""
    head, first, *rows = patients(text, 6)
    assert head == ["image", "patient", "site", "role", "Dice (%)", "HD95 (% of diagonal)", "failure"]
    assert first == ["", "patient 7", "C", "UNSEEN", "0.00", "90.00", "missed"]
    assert [row[1:5] for row in rows[:2]] == [
        ["patient 6", "C", "UNSEEN", "75.00"],
        ["patient 5", "C", "UNSEEN", "76.00"],
    ]
    assert [row[3] for row in rows].count("seen") == 14 and len(rows) == 20
    order = re.findall(r'<tr><td>(<img src="(.*?)" alt="(.*?)">)?</td>', text.partition('<section id="run-1">')[2])[:7]
    assert [(source, alt) for _, source, alt in order] == [
        (address(overlay(106)), "C, patient 7"),
        *[("", "")] * 5,
        (address(overlay(100)), "C, patient 1"),
    ]
    assert "Images of the 2 unseen patients with the lowest scores" in text


def test_a_page_with_several_runs_has_fewer_overlays_of_each(tmp_path, monkeypatch):
    runs = [with_overlays(made_run(tmp_path / name, name), *range(7)) for name in ("fedavg", "elcfs")]
    monkeypatch.setattr(page_module, "MAX_SHARED_OVERLAYS", 6)
    assert [page_of(*runs).count(address(overlay(100 + k))) for k in range(7)] == [0, 0, 0, 0, 2, 2, 2]
    assert page_of(runs[0]).count("data:image/webp") == 7 + 2, "all, and two figures"


@pytest.mark.parametrize(("n", "n_first", "n_others"), [(3, 3, 3), (4, 4, 0)])
def test_the_more_runs_are_named_the_fewer_figures_each_shows(tmp_path, n, n_first, n_others):
    text = page_of(*(made_run(tmp_path / f"method{k}", f"method{k}") for k in range(n)))
    captions = [image["alt"] for image in Page(text).all("img")]
    assert captions.count("Best, median and worst unseen case") == n_first
    assert captions.count("Training and validation by round") == n_others


def test_the_table_of_patients_of_classes_has_their_predictions(text):
    head, *rows = patients(text, 8)
    assert head[3:] == ["role", "class", "predicted", "confidence (%)", "images", "correct"]
    assert {row[-2] for row in rows} == {"2"} and {row[4] for row in rows} == {"a, b"}


def tables_by_site(text):
    """The rows of the first table of scores, by site, as {heading: text}."""
    head, *rows = [table for table in Page(text).tables if table[0][0] == "site" and "patients" in table[0]][0]
    return {row[0]: dict(zip(head, row)) for row in rows}


def test_the_scores_of_masks_are_those_of_the_summary(tmp_path):
    run = made_run(tmp_path / "run")
    summary, rows = json.loads((run / "summary.json").read_text()), tables_by_site(page_of(run))
    scores = {(line["role"], line["site"], line["metric"]): line for line in summary["scores"]}
    names = {("unseen", "C"): "C (UNSEEN)", ("seen", "average"): "mean seen", ("unseen", "average"): "mean UNSEEN"}
    for role, site in (("seen", "A"), ("seen", "B"), *names):
        dice, hd95 = scores[role, site, "dice"], scores[role, site, "hd95"]
        row = rows[names.get((role, site), site)]
        assert row["images"] == row["patients"] == str(dice["n_images"])
        assert row["missed"] == ("1/7" if role == "unseen" else f"0/{dice['n_images']}")
        assert row["Dice %"] == f"{dice['mean']:.2f} [{dice['low']:.1f}, {dice['high']:.1f}]"
        assert row["HD95"] == f"{hd95['mean']:.2f} % of diagonal [{hd95['low']:.1f}, {hd95['high']:.1f}]"


def test_the_initial_weights_and_the_models_of_local_are_named(tmp_path):
    start = {"file": "imagenet.safetensors", "sha256": "ab" * 32}
    assert "imagenet.safetensors abababababab" in page_of(made_run(tmp_path / "a", start_weights=start))
    assert "<dd>random</dd>" in page_of(made_run(tmp_path / "b", start_weights=None))
    made_run(tmp_path / "c" / "fedavg" / "unseen_C" / "seed_0", "fedavg")
    texts, paths = [], []
    for site in "AB":
        paths.append(made_run(tmp_path / "c" / f"local-{site}" / "unseen_C" / "seed_0", "fedavg", sites=(site,)))
        RunFolder(paths[-1]).write_json(ROW_FILE, asdict(ComparisonRow("local", trained_at=site)))
        texts.append(page_of(with_plan(tmp_path / "c")))
    assert "<h1>local, elcfs on Discs</h1>" in page_of(*paths, tmp_path / "a")
    note = "not run: local at B, unseen C, seed 0, so it is no part of the mean"
    assert note in texts[0] and note not in texts[1]


def test_best_is_bold_second_is_underlined_and_the_baseline_comes_first(text):
    """Elcfs has 2 % more Dice in each case that is not missed, so it is best at each site and on average."""
    tables = re.findall(r"disc: Dice \(%\), higher.*?<tbody>(.*?)</tbody>", text, re.S)
    (full,) = (rows.strip().split("\n") for rows in tables if "<strong>" in rows and rows.count("<tr>") == 2)
    assert ">fedavg<" in full[0] and "<u>" in full[0] and "<strong>" not in full[0]
    assert ">elcfs<" in full[1] and full[1].count("<strong>") == 4


def test_a_run_shows_its_rule_round_versions_notices_and_config(text, page, folders):
    assert (folders[0] / "config.yaml").read_text() in page.texts
    for words in ("2 of 2, by the rule &#39;last&#39;", "torch 2", "a notice"):
        assert words in text


def test_a_wide_figure_is_made_smaller_and_keeps_its_colours():
    ramp = np.linspace(0, 255, 1800, dtype=np.uint8)
    row = np.stack([ramp, ramp[::-1], np.full_like(ramp, 100)], axis=-1)
    file = io.BytesIO()
    Image.fromarray(np.repeat(row[None], 300, axis=0)).save(file, "PNG")
    webp = base64.b64decode(embed_png("ramp", file.getvalue()).source.partition(",")[2])
    with Image.open(io.BytesIO(webp)) as image:
        pixels = np.asarray(image).astype(int)
    assert pixels.shape == (200, 1200, 3)
    assert np.abs(pixels[100, 600] - (127, 127, 100)).max() < 6 and np.abs(pixels[100, 1190] - (253, 2, 100)).max() < 9


def test_the_same_cases_of_all_methods_are_shown_by_site(tmp_path):
    comparison = made_comparison(tmp_path / "all", seeds=(0,))
    for path in comparison.glob("*/*/*/figures"):
        (path / "same_cases.png").write_bytes(png(5))
    text = page_of(comparison)
    assert [site for site in "ABC" if f"The same cases of each method at {site}" in text] == ["A", "B", "C"]
    assert text.count(embed_png("", png(5)).source) == 6


def test_a_run_without_history_or_unseen_site_has_a_page_and_two_runs_of_one_method_show_their_folders(tmp_path):
    run, other = made_run(tmp_path / "run"), made_run(tmp_path / "other")
    text = page_of(run, other)
    assert f"elcfs@{run}" in text and f"elcfs@{other}" in text
    (run / "history.csv").unlink()
    finish_again(run, unseen_site=None)
    page = Page(page_of(run))
    assert not page.wrong and "unseen none" in "".join(page.texts)


def rendered(tmp_path, template, **content):
    (tmp_path / "test.html.jinja").write_text(template)
    return render_page("test.html.jinja", folder=tmp_path, **content)


def test_every_text_of_a_template_is_escaped_once_and_a_variable_that_is_missing_is_an_error(tmp_path):
    template = '<p title="{{ text }}">{{ text }}</p>'
    page = rendered(tmp_path, template, text="a<b & \"c'")
    assert page == '<p title="a&lt;b &amp; &#34;c&#39;">a&lt;b &amp; &#34;c&#39;</p>'
    (none := tmp_path / "none").mkdir()
    with pytest.raises(UndefinedError, match="'text' is undefined"):
        rendered(none, "{{ text }}")


def test_no_template_switches_escaping_off_and_our_script_and_style_cannot_end_their_element():
    folders = FOLDER / "templates", AUDIT_TEMPLATES
    texts = [path.read_text() for folder in folders for path in folder.iterdir()]
    assert len(texts) > 3 and not any(re.search(r"\|\s*safe|autoescape", text) for text in texts)
    for name, element in (("page.js", "script"), ("page.css", "style")):
        content = (FOLDER / name).read_text().lower()
        assert f"</{element}" not in content and "<!--" not in content


def textured_png(width: int, height: int) -> bytes:
    """Blurred and fine noise, which WebP stores in about as many bytes as overlays of MR images."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8), np.uint8)).resize((width, height))
    file = io.BytesIO()
    Image.fromarray(np.asarray(coarse) // 2 + rng.integers(0, 20, (height, width), np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_nine_runs_that_are_named_one_by_one_have_a_page_below_3_mb_without_a_figure_twice(tmp_path):
    """Each shows its first figure, and the figure of the same cases is in the comparison only."""
    overlay_bytes = np.random.default_rng(0).bytes(5000)
    figures = {"unseen_cases": textured_png(1112, 1553), "same_cases": textured_png(1200, 560)}
    figures["site_boxes"] = figures["style_grid"] = textured_png(700, 400)
    rows, runs = mask_rows(["A", "B"], "C", n=40), [tmp_path / f"method{k}" for k in range(9)]
    for run in runs:
        made_run(run, run.name, rows=rows)
        (run / "figures" / "patients").mkdir()
        for place in range(40):
            (run / "figures" / "patients" / f"{place:03d}.webp").write_bytes(overlay_bytes)
        for name, data in figures.items():
            (run / "figures" / f"{name}.png").write_bytes(data)
        finish_again(run)
    text = page_of(*runs)
    assert 2_000_000 < len(text) < 3_000_000
    captions = [image["alt"] for image in Page(text).all("img")]
    assert captions.count("Best, median and worst unseen case") == 9
    assert sum(caption.endswith(", unseen C") for caption in captions) == 9
    assert not {"Unseen cases, chosen without regard to scores", "Scores of each case by site"} & {*captions}
    assert text.count("More figures of this run are in its folder figures: ") == 9
