"""R8: a wrong config, image, mask or flag ends in one sentence, soon, and nothing is written."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from bad_inputs import CONFIGS, FILES, User, cut, make_eyes, make_user
from PIL import Image

pytestmark = [pytest.mark.hardening, pytest.mark.filterwarnings("ignore")]
MAX_S = 5.0
WHERE = re.compile(r"\S+\.(yaml|yml|nii|nii\.gz|png)\b|\b[a-z_]+\.[a-z_]+\b|--[a-z]|/\S+: ")  # a file, a key or a flag
NEXT = re.compile(r"; |expected |Did you mean|must |choose |Known: ")
Case = tuple[Callable, Callable[[User], int], tuple[str, ...]]  # makes the user, what is done, words of the sentence


class NobodyError(Exception):
    """Stands for `UserError` in the control, so that no error is turned into a sentence."""


def picture(content: bytes = b"", pixels: np.ndarray | None = None, kind: str = "images") -> Callable[[User], None]:
    """Return a function that replaces an image or mask by these bytes or pixels."""

    def spoil(user: User) -> None:
        path = user.place / "data" / "south" / kind / "a.png"
        path.write_bytes(content) if pixels is None else Image.fromarray(pixels).save(path)

    return spoil


def link(user: User) -> None:
    path = user.image()
    path.unlink()
    path.symlink_to("nowhere.nii.gz")


COLOURS, GREY = np.zeros((40, 40, 3), np.uint8), np.full((40, 40), 7, np.uint8)
COLOURS[:20], COLOURS[20:30] = (255, 0, 0), (0, 255, 0)
SETTINGS = {  # a setting on the command line, and words of the sentence
    "training.lr=1": "unknown key",
    "federation.unseen_site=UCLA": "Did you mean 'UCL'",
    "data.sites=[BMC, HK, UCLA]": "UCLA",
    "data.image_size=34": "multiple of 4",
    "data.root=nowhere": "nowhere",
}
SPOILT = {  # what is wrong with the files of a user with volumes, and words of the sentence
    "an empty config": (lambda user: user.config.write_text(""), "is empty"),
    "a config in Latin-1": (lambda user: user.config.write_bytes(b"seed: 3 # \xe9"), "not UTF-8"),
    "no config": (lambda user: user.config.unlink(), "no such file"),
    "a folder as config": (lambda user: (user.config.unlink(), user.config.mkdir()), "is a folder"),
    "a file as folder": (lambda user: user.out.write_text(""), "cannot write here"),
    "an image of the unseen site": (lambda user: shutil.copy(user.image("UCL"), user.image("BMC")), "these files are"),
    "a site without images": (lambda user: [path.unlink() for path in user.image().parent.iterdir()], "has no images"),
    "a broken link": (link, "a link that leads to no file"),
    **{
        f"a truncated image of patient {index}": (
            lambda user, index=index: cut(user.image("BMC", index), 5000),
            "the file is incomplete",
        )
        for index in range(4)
    },
}
SPOILT_EYES = {  # the same for a user with photographs
    "two folders of one site": (
        lambda user: shutil.copytree(user.place / "data" / "south", user.place / "data" / "South"),
        "differ only in upper",
    ),
    "a grey level without a class": (picture(pixels=GREY, kind="masks"), "has the labels 7"),
    "labels stored as colours": (picture(pixels=COLOURS, kind="masks"), "as 3 colours"),
    "a grey image among colours": (picture(pixels=0 * GREY), "the image is grey"),
    "a truncated PNG": (lambda user: cut(user.place / "data" / "south" / "images" / "a.png", 200), "a.png"),
    "an empty PNG": (picture(), "a.png"),
    "text that is called PNG": (picture(b"not an image"), "a.png"),
}


def spoilt(spoil: Callable[[User], object], program: str = "train") -> Callable[[User], int]:
    """Return a function that spoils the files of a user and runs a program; the function returns the exit code."""
    return lambda user: (spoil(user), getattr(user, program)())[1]


def all_cases(make_volumes: Callable, make_photographs: Callable) -> dict[str, Case]:
    cases: dict[str, Case] = {
        f"{program}: {wrong}": (make_volumes, spoilt(lambda user, o=old, n=new: user.replace(o, n), program), words)
        for wrong, (old, new, words) in CONFIGS.items()
        for program in ("train", "evaluate")
    }
    for wrong, (spoil, words) in FILES.items():
        cases[wrong] = make_volumes, spoilt(lambda user, s=spoil: s(user.image(), user.mask())), words
    for setting, word in SETTINGS.items():
        cases[setting] = make_volumes, lambda user, s=setting: user.train("--set", s), (word,)
    cases["resume without a run"] = make_volumes, lambda user: user.train("--resume"), ("no run to resume",)
    for make, table in ((make_volumes, SPOILT), (make_photographs, SPOILT_EYES)):
        cases |= {wrong: (make, spoilt(spoil), (word,)) for wrong, (spoil, word) in table.items()}
    return cases


def faults(folder: Path, case: Case) -> list[str]:
    """Return what is wrong with how a program handles a bad input."""
    make, work, words = case
    folder.mkdir(parents=True)
    user = make(folder)
    user.capsys.readouterr()
    before = {path for path in user.place.rglob("*") if path.is_file() and "data" not in path.parts}
    start = time.thread_time()
    try:
        code = work(user)
    except Exception as error:
        return [f"a traceback ({type(error).__name__})"]
    seconds, lines = time.thread_time() - start, user.capsys.readouterr().err.splitlines()
    found = [f"exit code {code}"] if code != 2 else []
    found += [f"{len(lines)} lines"] if len(lines) != 1 else []
    line = lines[-1] if lines else ""
    found += [f"no '{word}'" for word in words if word not in line]
    found += ["no file, key or flag"] if not WHERE.search(line) else []
    found += ["nothing about what is expected or what to do"] if not NEXT.search(line) else []
    found += [f"{seconds:.1f} s"] if seconds > MAX_S else []
    after = {path for path in user.out.rglob("*") if path.is_file() and path.name != "run.lock"}
    found += [f"wrote {path.name}" for path in sorted(after - before)]
    return found


def test_r8_bad_inputs(measurement, small_phantom, tmp_path, capsys):
    cases = all_cases(lambda folder: make_user(folder, small_phantom, capsys), lambda folder: make_eyes(folder, capsys))
    chosen, wrong, seconds = measurement.some(cases.items(), 12), [], 0.0
    for number, (name, case) in enumerate(chosen):
        start = time.thread_time()
        found = faults(tmp_path / str(number) / "hospital", case)
        seconds = max(seconds, time.thread_time() - start)
        wrong += [f"{name}: {', '.join(found)}"] if found else []
    some, n_control = chosen[:10], 0
    with patch("medfed.cli.program.UserError", NobodyError):
        for number, (_, case) in enumerate(some):
            n_control += bool(faults(tmp_path / f"control_{number}" / "hospital", case))
    n = len(chosen)
    measurement.report(
        f"{n} bad inputs: exit code 2, one line with file or key, what was found and what to do, no traceback, "
        f"nothing written, {MAX_S:g} s of CPU time after the imports",
        (
            f"{n} of {n}",
            f"{n - len(wrong)} of {n}, the slowest {seconds:.1f} s",
            not wrong,
        ),
        (f"without the handling of errors {len(some) - n_control} of {len(some)}", n_control == len(some)),
        wrong,
    )
