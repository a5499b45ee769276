"""704 files with one cause are one paragraph; different causes are never merged."""

import pickle

from folder_layouts import make

from medfed.core.errors import Problem
from medfed.datasets.check_groups import format_problems, join_problems
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.folder import Folder


def colours(number: int) -> Problem:
    found = f"the mask stores its labels as {2 + number % 3} colours; expected one number per pixel"
    return Problem("labels as colours", f"/data/HK/masks/{number}.png", found, "name the colours in data.mask_colours")


EMPTY = Problem("empty file", "/data/HK/a.png", "the file is empty", "copy it again")


def test_one_cause_is_one_paragraph_with_its_number_two_examples_other_places_and_the_cure():
    lines = format_problems(map(colours, range(704)), "/data")
    assert lines[0] == "  labels as colours (704):"
    text = " ".join(" ".join(lines).split())
    assert "HK/masks/0.png: the mask stores its labels as 2 colours; expected one number per pixel HK/masks/1" in text
    assert text.count("stores") == 2 and "also: HK/masks/2.png, " in text and ", HK/masks/11.png and 692 more (" in text
    assert lines[-1] == "    -> name the colours in data.mask_colours" and max(map(len, lines)) <= 100


def test_paths_are_shortened_at_their_beginning_only_and_examples_have_different_cures():
    problems = [Problem("x", f"/home/d/A/{number}.png", "is odd", f"cure {number // 2}") for number in range(9)]
    text = "\n".join(format_problems(problems, "d"))
    assert text.count("/home/d/A/") == 9 and "/home/A/" not in text
    assert ["/home/d/A/0.png: is" in text, "/home/d/A/2.png: is" in text] == [True, True]
    assert [f"-> cure {number}" in text for number in range(5)] == [True, True, True, False, False]


def test_a_problem_that_is_alone_of_its_kind_is_a_whole_sentence_and_a_repeated_one_is_shown_once():
    assert format_problems([EMPTY, EMPTY], "/data") == ["  /data/HK/a.png: the file is empty; copy it again"]


def test_an_error_of_many_problems_has_a_sentence_for_each_kind():
    assert join_problems([EMPTY, EMPTY]) == EMPTY
    assert join_problems([colours(0), EMPTY, colours(1), colours(2)]).sentences == (
        f"{colours(0)} (2 more of this kind: /data/HK/masks/1.png, /data/HK/masks/2.png)",
        str(EMPTY),
    )


def test_a_folder_without_images_is_a_problem_and_is_not_named_as_unread(tmp_path):
    make(tmp_path, "{HK,UCL}/images/a.png {HK,UCL}/masks/a.png {b,c}/tumour/p{0,1}.png UCL/other/a.png")
    data = Folder(root=str(tmp_path))
    problems = [problem for site in "bc" for problem in data.cases_and_problems(site)[1]]
    text = " ".join(" ".join(format_problems(problems, str(tmp_path))).split())
    assert text.startswith("folder of which no file fits (2): b: not read, because no pattern matches them: 2 files")
    assert "data.ignored_names" in text
    assert [unread.place for unread in data.contents.unread] == [f"{tmp_path}/UCL"], "b and c are named once"


def test_every_folder_with_files_that_are_not_read_is_named(tmp_path):
    data = Folder(root=str(make(tmp_path, "s{1,2,3,4}/images/a.png s{1,2,3,4}/masks/a.png s{1,2,3,4}/old/b.png")))
    text = " ".join(" ".join(format_problems(check_dataset(data).warnings, str(tmp_path))).split())
    assert "folder with files that are not read (4): s1: not read" in text and "also: s3, s4" in text


def test_errors_of_a_worker_process_arrive_as_they_were():
    for error in (EMPTY, join_problems([colours(0), EMPTY])):
        received = pickle.loads(pickle.dumps(error))
        assert str(received) == str(error) and received.sentences == error.sentences
