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
from made_runs import NOT_LEARNED, class_rows, made_comparison, made_run, mask_rows, png, png_head, with_plan
from PIL import Image
from run_figures import leave_out_charts

from medfed.auditing.page import TEMPLATES as AUDIT_TEMPLATES
from medfed.outputs.report import page as page_module
from medfed.outputs.report.embedded_figures import FigureBudget, to_webp
from medfed.outputs.report.html import SCRIPT, STYLE, TEMPLATES, render_page, trusted_text
from medfed.outputs.report.page import build_page
from medfed.outputs.report.run_data import read_runs
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


@pytest.fixture(autouse=True)
def no_charts(request, monkeypatch):
    """The page of the fixture `text` has all charts, and the pages of tests with the mark `figures`."""
    if "figures" not in request.keywords:
        leave_out_charts(monkeypatch)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    return [
        made_run(root / "masks"),
        made_run(root / "fedavg", "fedavg"),
        made_comparison(root / "all"),
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


def test_images_and_charts_have_a_text_tables_have_headers_and_what_scrolls_can_be_reached_by_keyboard(page):
    assert page.all("img") and all(image["alt"] and image["width"] and image["height"] for image in page.all("img"))
    charts = [svg for svg in page.all("svg") if svg.get("aria-hidden") != "true"]
    assert charts and all(svg["role"] == "img" and svg["aria-label"] for svg in charts)
    scopes = [head["scope"] for head in page.all("th")]
    assert len(page.tables) > 5 and set(scopes) == {"row", "col"}
    assert all(len({len(row) for row in table}) == 1 for table in page.tables)
    frames = [attributes for _, attributes in page.elements if attributes.get("class") == "scroll"]
    assert frames and all(frame["tabindex"] == "0" and frame["aria-label"] for frame in frames)


def test_every_caption_says_what_the_data_are(text):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.S)
    assert len(captions) > 20 and all("PHANTOM data" in caption for caption in captions)


def test_captions_of_real_data_say_so_the_page_warns_of_its_images_and_phantoms_are_in_no_table_with_them(tmp_path):
    text = page_of(made_run(tmp_path / "run", data="real"))
    assert "PHANTOM" not in text and "REAL data: the figures below show images of patients" in text
    assert all("REAL data" in caption for caption in re.findall(r"<figcaption>(.*?)</figcaption>", text, re.S))
    text = page_of(made_run(tmp_path / "a", "fedavg"), made_run(tmp_path / "b", data="real"))
    assert "cannot be in one table" in text
    captions = re.findall(r"<figcaption>(Scores by site.*?)</figcaption>", text)
    assert [caption.split(". ")[-1] for caption in captions] == ["PHANTOM data.", "REAL data."]


@pytest.mark.figures
def test_no_name_can_break_the_page(tmp_path):
    """The name of a site, a method, a data set and a notice are shown as they are, whatever HTML they contain."""
    rows = mask_rows([EVIL, "B"], "C" + EVIL, structure=EVIL)
    run = made_run(tmp_path / "run", EVIL, "C" + EVIL, sites=(EVIL, "B"), rows=rows, dataset=EVIL, notices=[EVIL])
    text = page_of(run)
    page = Page(text)
    assert not page.wrong and not page.open and not page.all("b")
    assert len(page.all("script")) == 1 and EVIL not in text
    assert any(row[0] == EVIL for table in page.tables for row in table)
    assert EVIL in "".join(page.texts)


@pytest.mark.figures
def test_no_folder_or_file_name_can_break_the_page(tmp_path):
    """The name of a comparison's folder, and of a figure that medfed does not know."""
    comparison = made_comparison(tmp_path / EVIL.replace("/", ""), seeds=(0,))
    for run in comparison.glob("*/*/*"):
        (run / "figures" / f"{EVIL.replace('/', '')}.png").write_bytes(png())
    run = next(comparison.glob("*/*/*"))
    page = Page(page_of(comparison, run))
    assert not page.wrong and not page.open and not page.all("b") and len(page.all("script")) == 1


def tables_by_site(text, n=0):
    """The rows of the n-th table of scores, by (site, role), as {heading: text}."""
    head, *rows = [table for table in Page(text).tables if table[0][:2] == ["site", "role"]][n]
    return {(row[0], row[1]): dict(zip(head, row)) for row in rows}


def test_the_page_says_that_a_model_did_not_learn_and_names_its_initial_weights(tmp_path):
    start = {"file": "imagenet.safetensors", "sha256": "ab" * 32}
    assert "imagenet.safetensors (SHA-256 abababababab)" in page_of(made_run(tmp_path / "a", start_weights=start))
    assert "<dd>random</dd>" in page_of(made_run(tmp_path / "b", start_weights=None))
    sentence = "DID NOT LEARN: on the validation images of the source sites, the model has Dice 20.00 %"
    assert sentence in page_of(made_run(tmp_path / "bad", learning=NOT_LEARNED))
    assert "LEARN" not in page_of(made_run(tmp_path / "good", learning=NOT_LEARNED | {"learned": True}))


def test_the_models_of_local_are_one_row_and_a_half_finished_row_says_which_are_missing(tmp_path):
    made_run(tmp_path / "fedavg" / "unseen_C" / "seed_0", "fedavg")
    texts, paths = [], []
    for site in "AB":
        paths.append(made_run(tmp_path / f"local-{site}" / "unseen_C" / "seed_0", "fedavg", sites=(site,)))
        RunFolder(paths[-1]).write_json(ROW_FILE, asdict(ComparisonRow("local", trained_at=site)))
        texts.append(page_of(with_plan(tmp_path)))
    assert "<h1>local, elcfs on Discs</h1>" in page_of(*paths, made_run(tmp_path / "elcfs"))
    note = "not run: local at B, unseen C, seed 0, so it is no part of the mean"
    assert note in texts[0] and note not in texts[1]


def test_the_scores_of_masks_are_those_of_the_summary(tmp_path):
    run = made_run(tmp_path / "run")
    summary, rows = json.loads((run / "summary.json").read_text()), tables_by_site(page_of(run))
    scores = {(line["role"], line["site"], line["metric"]): line for line in summary["scores"]}
    for role, site in (("seen", "A"), ("seen", "B"), ("unseen", "C"), ("seen", "average"), ("unseen", "average")):
        dice, hd95 = scores[role, site, "dice"], scores[role, site, "hd95"]
        row = rows["mean over sites" if site == "average" else site, "seen" if role == "seen" else "UNSEEN"]
        assert row["images"] == row["patients"] == str(dice["n_images"])
        assert row["missed"] == ("1/7" if role == "unseen" else f"0/{dice['n_images']}")
        assert row["Dice %"] == f"{dice['mean']:.2f} [{dice['low']:.1f}, {dice['high']:.1f}]"
        assert row["HD95"] == f"{hd95['mean']:.2f} % of diagonal [{hd95['low']:.1f}, {hd95['high']:.1f}]"


def test_scores_come_before_counts_and_a_single_structure_is_in_the_caption(tmp_path):
    """So that a phone shows the first score without scrolling."""
    (caption,) = re.findall(r"<figcaption>(Scores by site.*?)</figcaption>", page_of(made_run(tmp_path / "one")))
    assert caption.startswith("Scores by site: elcfs, disc, round 2 of 2")
    assert list(next(iter(tables_by_site(page_of(tmp_path / "one")).values())))[:3] == ["site", "role", "Dice %"]
    rows = [*mask_rows(["A"], "C"), *mask_rows(["A"], "C", structure="cup")]
    text = page_of(made_run(tmp_path / "two", sites=("A",), rows=rows))
    assert "Scores by site: elcfs, round 2 of 2" in text
    assert list(next(iter(tables_by_site(text).values())))[:4] == ["site", "role", "structure", "Dice %"]


def test_the_scores_of_classes_are_those_of_the_summary(tmp_path):
    run = made_run(tmp_path / "run", rows=class_rows(["A", "B"], "C"))
    records = json.loads((run / "summary.json").read_text())["scores"]
    means = {line["metric"]: line["mean"] for line in records if line["site"] == "C"}
    row = list(tables_by_site(page_of(run))["C", "UNSEEN"].values())
    assert [cell.split(" ")[0] for cell in row[2:6]] == [
        f"{means[metric]:.2f}" for metric in ("accuracy", "auroc", "balanced_accuracy", "ece")
    ]
    assert row[6:] == ["5", "10"]


def test_best_is_bold_second_is_underlined_the_baseline_comes_first_and_methods_lie_one_over_the_other(text, page):
    """Elcfs has 2 % more Dice in each case that is not missed, so it is best at A and fedavg second."""
    body = re.search(r"disc: Dice \(%\), higher.*?<tbody>(.*?)</tbody>", text, re.S).group(1)
    first, second = body.strip().split("\n")
    assert ">fedavg<" in first and "<u>" in first and "<strong>" not in first
    assert ">elcfs<" in second and second.count("<strong>") == 4
    names = [attributes["data-method"] for _, attributes in page.elements if "data-method" in attributes]
    assert names == ["fedavg", "elcfs"] * 3  # the comparison's three sites


def test_a_run_shows_its_rule_round_seed_versions_notices_and_config(text, page, folders):
    assert (folders[0] / "config.yaml").read_text() in page.texts
    for words in ("round 2 of 2 by the rule", "the last round, whatever its score", "torch 2", "a notice"):
        assert words in text


def embedded(tmp_path, width: int = 3) -> str:
    """What the page contains of a PNG file."""
    (tmp_path / "figure.png").write_bytes(png(width))
    return base64.b64encode(to_webp(tmp_path / "figure.png")).decode()


def test_a_wide_figure_is_made_smaller_and_keeps_its_colours(tmp_path):
    ramp = np.linspace(0, 255, 1800, dtype=np.uint8)
    row = np.stack([ramp, ramp[::-1], np.full_like(ramp, 100)], axis=-1)
    Image.fromarray(np.repeat(row[None], 300, axis=0)).save(tmp_path / "a.png")
    with Image.open(io.BytesIO(to_webp(tmp_path / "a.png"))) as image:
        pixels = np.asarray(image).astype(int)
    assert pixels.shape == (200, 1200, 3)
    assert np.abs(pixels[100, 600] - (127, 127, 100)).max() < 6 and np.abs(pixels[100, 1190] - (253, 2, 100)).max() < 9


def test_each_figure_is_in_the_page_once(tmp_path):
    """The page draws training_curves.png itself; a figure of the comparison is not shown again with its run."""
    runs = [made_run(tmp_path / "a", "fedavg"), made_run(tmp_path / "b")]
    assert page_of(runs[0]).count(embedded(tmp_path)) == 1
    for width, run in enumerate(runs, start=5):
        (run / "figures" / "unseen_cases.png").write_bytes(png(width))
    text = page_of(*runs)
    assert [text.count(embedded(tmp_path, width)) for width in (5, 6)] == [1, 1]


def test_the_same_cases_of_all_methods_come_and_have_room_before_all_others(tmp_path, monkeypatch):
    runs = [made_run(tmp_path / "a", "fedavg"), made_run(tmp_path / "b")]
    for width, run in enumerate(runs, start=5):
        (run / "figures" / "same_cases.png").write_bytes(png(width))
    text = page_of(*runs)
    same, own = text.index("same cases at the same pixels"), text.index("Each method shows its own")
    assert same < own and text.count(embedded(tmp_path, 5)) == 1
    assert text.index(embedded(tmp_path, 5)) < text.index(embedded(tmp_path, 6)) < own
    size = max(len(to_webp(run / "figures" / "same_cases.png")) for run in runs)
    monkeypatch.setattr(page_module, "FigureBudget", lambda: FigureBudget(bytes_left=2 * size))
    text = page_of(*runs)
    assert "same cases at the same pixels" in text and "Each method shows its own" not in text


def test_the_boundary_distance_has_a_chart_with_the_sites_that_did_not_train(tmp_path):
    assert "feature distance" not in page_of(made_run(tmp_path / "without"))
    run = made_run(tmp_path / "a", boundary_distance={"C": 0.2})
    head = "round,train_loss,validation_score,boundary_distance"
    (run / "history.csv").write_text(f"{head}\n1,1.0,0.5,0.1\n2,0.9,0.6,0.3\n")
    assert "C, did not train" in page_of(run)


def test_a_figure_that_is_no_png_or_too_large_is_left_out_with_a_notice(tmp_path, monkeypatch):
    run = made_run(tmp_path / "run")
    (run / "figures" / "roc.png").write_bytes(b"<svg onload=alert(1)>" * 3)
    head = png_head(40_000, 4_000)  # announces 160 million pixels
    (run / "figures" / "tsne.png").write_bytes(head + png()[len(head) :])
    (run / "figures" / "confusion.png").write_bytes(png(60, 60)[:50])
    text = page_of(run)
    for name in ("roc", "tsne", "confusion"):
        assert f"{name}.png: is not a PNG file" in text
    monkeypatch.setattr(page_module, "FigureBudget", lambda: FigureBudget(bytes_left=10))
    text = page_of(run)
    assert "unseen_cases.png: the page has no room for this figure" in text and "<img" not in text


def test_a_run_without_history_or_unseen_site_has_a_page_and_two_runs_of_one_method_show_their_folders(tmp_path):
    run, other = made_run(tmp_path / "run"), made_run(tmp_path / "other")
    text = page_of(run, other)
    assert f"elcfs ({run})" in text and f"elcfs ({other})" in text
    summary = json.loads((run / "summary.json").read_text()) | {"unseen_site": None}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "history.csv").unlink()
    page = Page(page_of(run))
    assert not page.wrong and "unseen none" in "".join(page.texts)


@pytest.mark.figures
def test_many_clients_are_a_band_and_not_a_thousand_curves(tmp_path):
    run = made_run(tmp_path / "run")
    clients = [f"client_{k:04d}" for k in range(1000)]
    lines = ["round,train_loss,validation_score," + ",".join(f"train_loss/{name}" for name in clients)]
    lines += [f"{k},{1 / k},," + ",".join(str(1 / k + j / 1000) for j in range(1000)) for k in (1, 2, 3)]
    (run / "history.csv").write_text("\n".join(lines) + "\n")
    text = page_of(run)
    assert "lowest to highest of 1000 clients" in text and "client_0500" not in text
    assert len(text) < 100_000


def rendered(tmp_path, template, style="", **content):
    (tmp_path / "test.html.jinja").write_text(template)
    return render_page("test.html.jinja", style, folders=[tmp_path], **content)


def test_every_text_of_a_template_is_escaped_once_and_a_variable_that_is_missing_is_an_error(tmp_path):
    template = '<p title="{{ text }}">{{ text }}</p>{{ markup }}'
    page = rendered(tmp_path, template, text="a<b & \"c'", markup=trusted_text("<i>", "style"))
    assert page == '<p title="a&lt;b &amp; &#34;c&#39;">a&lt;b &amp; &#34;c&#39;</p><i>'
    unprintable = rendered(tmp_path, "{{ text }}", text="a\x00b\udc80c\n")
    assert unprintable == "a\ufffdb\ufffdc\n", "HTML cannot hold these characters"
    with pytest.raises(UndefinedError, match="'text' is undefined"):
        rendered(tmp_path, "{{ text }}")


def test_no_template_switches_escaping_off_and_our_script_and_style_cannot_end_their_element(tmp_path):
    texts = [path.read_text() for folder in (TEMPLATES, AUDIT_TEMPLATES) for path in folder.iterdir()]
    assert len(texts) > 8 and not any(re.search(r"\|\s*safe|autoescape", text) for text in texts)
    for path, element in ((SCRIPT, "script"), (STYLE, "style")):
        assert trusted_text(path.read_text(), element)
    with pytest.raises(ValueError, match="the style contains '</style' or '<!--'"):
        rendered(tmp_path, "{{ style }}", style="x </STYLE>")
