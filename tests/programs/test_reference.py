"""The reference in `docs/reference`: its generated pages, and the facts of the methods."""

import json
import re
import shlex
from pathlib import Path

import pytest

import medfed
from medfed.config import search
from medfed.core.registry import known_names, resolve

DOCS = Path(__file__).parents[2] / "docs"
NAMES = list(known_names("methods"))
MAX_FIGURE_BYTES = 60_000


@pytest.fixture(scope="module", autouse=True)
def docs_modules():
    """The modules of `docs`, which are no package, can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    from generate import generated_pages

    return generated_pages()


@pytest.fixture(scope="module")
def facts() -> dict:
    return json.loads((DOCS / "reference" / "method_facts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_method_has_a_card_with_its_paper_settings_presets_and_messages(pages, name):
    page, cls, [group] = pages[f"methods/{name}.md"], resolve("methods", name), search.find(name)
    assert set(re.findall("^## (.*)", page, re.MULTILINE)) >= {"Definition and departures", "Settings", "Run it"}
    assert name == "stack" or ("## Idea" in page and group.source[:40] in page and "https://" in page)
    own = [key for key in group.settings if key not in ("name", "preset")]
    assert all(f"| **`{key}`**<br>" in page for key in own) and (own or "This method has no settings." in page)
    assert all(f"`{preset}`" in page for preset in cls.presets if len(cls.presets) > 1)
    assert "| sends | weights | in every round |" in page and "`score`" in page
    assert "| receives | weights | after every round, for the validation |" in page
    assert page.count("```") % 2 == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_a_card_has_a_config_that_can_be_loaded(name):
    from method_pages import command

    _, train, config, *flags = shlex.split(command(name))
    settings = [value for flag, value in zip(flags[::2], flags[1::2], strict=True) if flag == "--set"]
    loaded = medfed.load_config(config, settings)
    assert (train, type(loaded.method)) == ("train", resolve("methods", name))


def test_every_method_is_in_the_table_of_methods_once_with_what_a_site_sends(pages):
    table = pages["methods/index.md"]
    assert sorted(re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE)) == sorted(NAMES)
    row = next(line for line in table.splitlines() if line.startswith("| [`elcfs`]"))
    assert "weights; `windows`: 600 bytes before round 1" in row  # six images of 25 numbers of 4 bytes
    assert row.endswith("| `paper`, `released` |")


def test_a_card_shows_the_values_that_its_presets_change(pages):
    card = pages["methods/stable_fdg.md"]
    assert "| setting | `medfed` | `paper` | `released` |" in card
    assert '| `similarity` | `"cosine"` | `"inner"` | `"cosine"` |' in card


def test_facts_are_of_every_method_and_name_the_statistics_that_it_declares(facts):
    assert sorted(facts) == sorted(NAMES)
    for name in set(NAMES) - {"stack"}:
        rows = [row for of_task in facts[name].values() for row in of_task.get("messages", ())]
        statistics = {row["name"] for row in rows if row["content"] == "statistic"}
        assert statistics <= set(resolve("methods", name).sent), name


def test_a_method_has_a_figure_exactly_if_its_card_describes_one(pages):
    from method_images import DRAWN
    from method_pages import CAPTIONS, IMAGES

    files = {file.stem: file.stat().st_size for file in IMAGES.glob("*.png")}
    assert set(files) == set(CAPTIONS) == set(DRAWN) and max(files.values()) <= MAX_FIGURE_BYTES
    assert {name for name in NAMES if "```{figure}" in pages[f"methods/{name}.md"]} == set(files)


def test_every_block_dataset_network_and_public_name_is_on_a_page(pages):
    for block, group in search.blocks().items():
        assert f"## {block or 'Top level'}\n" in pages["settings.md"]
        assert all(f"**`{key}`**" in pages["settings.md"] for key in group.settings)
    for kind in ("networks", "engines", "mask_metrics", "class_metrics"):
        assert all(re.search(rf"`{name}`|network.name: {name}\n", pages["settings.md"]) for name in known_names(kind))
    assert all(f"`data.name: {name}`" in pages["datasets.md"] for name in known_names("datasets"))
    missing = [name for name in medfed.__all__ if f"`{name}" not in pages["api/medfed.md"]]
    assert missing == ["__version__"]
    assert min(map(len, pages.values())) > 500


def test_docstrings_become_restructuredtext():
    from docstrings import to_rst

    docstring = "Return `a * b` of *args, |x| and name_.\n\n    a = b\n\n* one `x`s\n\nArgs:\n    x: a `y`."
    expected = "Return ``a * b`` of \\*args, \\|x\\| and name\\_.\n\n::\n\n    a = b\n\n* one ``x``\\ s\n\n"
    expected += "Args:\n    x: a ``y``."
    assert to_rst(docstring.splitlines()) == [*expected.splitlines(), ""]
    returned = "Returns:\n    A pair: `a` and b."
    assert to_rst(returned.splitlines())[:2] == ["Returns:", "    : A pair: ``a`` and b."]  # no colon ends a type


def test_a_long_fraction_is_shown_with_four_decimals():
    from page_text import as_json

    assert as_json([1 / 3, 1e-05, 0.1, "1/3"]) == '[0.3333, 1e-05, 0.1, "1/3"]'


def test_the_title_of_a_paragraph_ends_before_a_sentence():
    from page_text import paragraphs

    assert paragraphs("Readings, of eq. 4-7: a. B") == "**Readings, of eq. 4-7:** a. B"
    assert paragraphs("Departures. A loss") == "**Departures.** A loss"


def test_the_help_of_an_argument_shows_examples_as_code_and_pages_as_links():
    from program_pages import _escape

    assert _escape("one: --set a.b_c=8; see docs/how_to/collections.md") == (
        "one: `--set a.b_c=8`; see [Get the published collections](../how_to/collections.md)"
    )
    assert _escape("which `x y` wrote, or a_b") == "which `x y` wrote, or a\\_b"


def test_a_page_is_written_only_if_its_content_has_changed(tmp_path, monkeypatch):
    import generate

    texts = {"api.md": "a", "api/medfed.md": "b"}
    monkeypatch.setattr(generate, "generated_pages", lambda: texts)
    (tmp_path / "reference" / "api").mkdir(parents=True)
    (tmp_path / "reference" / "api" / "old.md").write_text("of a package that is no more")
    generate.write_pages(tmp_path)
    before = (tmp_path / "reference" / "api.md").stat().st_mtime_ns
    texts["api/medfed.md"] = "c"
    generate.write_pages(tmp_path)
    assert (tmp_path / "reference" / "api.md").stat().st_mtime_ns == before
    assert [file.name for file in (tmp_path / "reference" / "api").iterdir()] == ["medfed.md"]
    assert (tmp_path / "reference" / "api" / "medfed.md").read_text() == "c"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_facts_of_a_method_are_those_that_a_federation_measures(facts, name):
    from method_facts import facts_of

    assert facts_of(name) == facts[name]


@pytest.mark.slow
def test_the_facts_of_the_unet_are_those_of_a_run(facts, tmp_path):
    """The weights of `configs/prostate.yaml`, and 100 bytes for each image that ELCFS describes."""
    from medfed.outputs.run_files import read_rows

    small = ["data.image_size=32", "federation.rounds=1", f"data.root={tmp_path / 'prostate'}"]
    run = medfed.run(medfed.load_config("prostate", small), out=tmp_path / "run", progress=False)
    rows = [row for row in read_rows(run.folder / "ledger.csv", ()) if row["direction"] == "up"]
    weights = {int(row["bytes"]) for row in rows if row["content"] == "weight"}
    measured = {row["content"]: row for row in facts["elcfs"]["segmentation"]["messages"] if row["direction"] == "up"}
    assert weights == {measured["weight"]["bytes"]}
    per_image = {int(row["bytes"]) / int(row["shape"].partition("x")[0]) for row in rows if row["name"] == "windows"}
    assert per_image == {measured["statistic"]["bytes"] / 6} == {100.0}
