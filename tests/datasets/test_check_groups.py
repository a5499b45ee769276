"""704 files with one cause are one paragraph; different causes are never merged."""

from medfed.datasets.check_groups import format_groups, group_sentences
from medfed.datasets.pairing_messages import no_mask_word

ROOT = "/data"


def colour_problem(site: str, number: int, n_colours: int = 3) -> str:
    return (
        f"/data/{site}/masks/{number}.png: the mask stores its labels as {n_colours} colours; expected one number per "
        "pixel; name the colours in data.mask_colours: #000000, #00ff00"
    )


def test_one_cause_is_one_paragraph_with_its_number_two_examples_and_the_cure():
    problems = [colour_problem("HK", number, 2 + number % 3) for number in range(704)]
    lines = format_groups(problems, ROOT, ["HK"])
    assert lines[0].startswith("  704 files: the mask stores its labels as 2 colours; expected one number per pixel")
    assert lines[1] == "    such as: HK/masks/0.png, HK/masks/1.png"
    assert lines[2] == "    -> name the colours in data.mask_colours: #000000, #00ff00" and len(lines) == 3


def test_folders_are_counted_as_folders_and_a_folder_without_masks_may_be_one_of_at_least_two_classes(tmp_path):
    problems = []
    for site in ("HK", "UCL"):
        folder = tmp_path / site / "tumour"
        folder.mkdir(parents=True)
        problems.append(no_mask_word(folder, {name: folder / f"{name}.png" for name in ("p0", "p1")}))
    text = " ".join(" ".join(format_groups(problems, str(tmp_path), ["HK", "UCL"])).split())
    assert text.startswith("2 folders: found 2 image files") and "such as: HK/tumour, UCL/tumour" in text
    assert "if the images have classes (a classification needs at least two) and no masks, list them" in text


def test_other_causes_are_other_groups_and_numbers_files_and_values_do_not_divide_one():
    sentences = [
        colour_problem("HK", 1),
        colour_problem("HK", 2).replace("#00ff00", "#ff0000"),
        "/data/HK/a.png: the file is empty (0 bytes); copy it again from its source",
        "/data/a.png: the mask has the values 1, 2, 3, ... (34 values), and the background value 0; set X",
        "/data/b.png: the mask has the values 1, 7, and the background value 0; set X",
        "/data/m.png: the mask has 8 x 8 x 3 voxels, but its image /data/i 1.png has 8 x 9 x 3; resample it",
        "/data/n.png: the mask has 7 x 8 x 3 voxels, but its image /data/i 2.png has 8 x 10 x 3; resample it",
    ]
    assert [len(group.places) for group in group_sentences(sentences)] == [1, 1, 1, 2, 2]


def test_a_warning_of_several_sites_names_each_with_its_cases():
    text = "no cup in the mask: in %d of 9 cases, the first are a and b"
    warnings = [f"HK: {text % 2}", f"UCL: {text % 3}"]
    assert format_groups(warnings, ROOT, ["HK", "UCL"]) == [
        "  2 sites: no cup in the mask",
        "    in: HK (2 of 9: a and b), UCL (3 of 9: a and b)",
    ]


def test_every_folder_that_was_not_read_is_named():
    sentences = [f"/data/site{number}: not read: raw/ (3 files)" for number in range(5)]
    text = "\n".join(format_groups(sentences, ROOT, []))
    assert all(sentence in text for sentence in sentences)


def test_lines_have_at_most_100_characters_but_a_sentence_is_complete_and_a_setting_in_quotes_whole():
    problem = colour_problem("HK", 1)
    lines = format_groups([problem], ROOT, ["HK"])
    assert max(map(len, lines)) <= 100 and " ".join(" ".join(lines).split()) == problem
    pattern = r"'^(.*?)(?:[_\-. ](?:OD|OS|od|os)(?:[_\-. ].*)?)?$'"
    for length in range(0, 90, 7):
        lines = format_groups([f"HK: {'x' * length}; set data.patient_pattern: {pattern} here"], ROOT, ["HK"])
        assert any(pattern in line for line in lines)
