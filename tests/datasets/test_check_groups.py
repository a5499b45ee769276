"""704 files with one cause are one paragraph; different causes are never merged."""

from folder_layouts import make

from medfed.datasets.check_groups import format_groups, group_sentences
from medfed.datasets.checking import check_dataset
from medfed.datasets.folder import Folder

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


def test_folders_are_counted_as_folders_and_each_is_in_the_names_to_ignore(tmp_path):
    make(tmp_path, "{HK,UCL}/images/a.png {HK,UCL}/masks/a.png {b,c}/tumour/p{0,1}.png UCL/other/a.png")
    data = Folder(root=str(tmp_path))
    problems = [problem for site in "bc" for problem in data.cases_and_problems(site)[1]]
    text = " ".join(" ".join(format_groups(problems, str(tmp_path), ["HK", "UCL"])).split())
    assert text.startswith("2 folders: none of its 2 files, such as b/tumour/p0.png, fits the patterns {site}/images")
    assert "such as: b, c -> " in text and text.endswith("data.ignored_names: [b, c]")
    assert [warning.split(": ")[0] for warning in data.contents.unread] == [f"{tmp_path}/UCL"], "b and c are named once"


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


def test_every_folder_with_files_that_are_not_read_is_named(tmp_path):
    data = Folder(root=str(make(tmp_path, "s{1,2,3,4}/images/a.png s{1,2,3,4}/masks/a.png s{1,2,3,4}/old/b.png")))
    text = "\n".join(format_groups(check_dataset(data).warnings, str(tmp_path), data.site_names()))
    assert all(f"{tmp_path}/s{number}: not read" in " ".join(text.split()) for number in range(1, 5))


def test_lines_have_at_most_100_characters_but_a_sentence_is_complete_and_a_setting_in_quotes_whole():
    problem = colour_problem("HK", 1)
    lines = format_groups([problem], ROOT, ["HK"])
    assert max(map(len, lines)) <= 100 and " ".join(" ".join(lines).split()) == problem
    pattern = r"'^(.*?)(?:[_\-. ](?:OD|OS|od|os)(?:[_\-. ].*)?)?$'"
    for length in range(0, 90, 7):
        lines = format_groups([f"HK: {'x' * length}; set data.patient_pattern: {pattern} here"], ROOT, ["HK"])
        assert any(pattern in line for line in lines)
