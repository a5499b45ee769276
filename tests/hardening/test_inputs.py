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
Case = tuple[str, Callable[[User], int], tuple[str, ...]]  # who is wrong, what is done, words of the sentence


class NobodyError(Exception):
    """Stands for `UserError` in the control, so that no error is turned into a sentence."""


def config_cases() -> dict[str, Case]:
    def run(user: User, program: str, old: str, new: str) -> int:
        user.replace(old, new)
        return getattr(user, program)()

    return {
        f"{program}: {wrong}": ("user", lambda user, p=program, o=old, n=new: run(user, p, o, n), words)
        for wrong, (old, new, words) in CONFIGS.items()
        for program in ("train", "evaluate")
    }


def file_cases() -> dict[str, Case]:
    def run(user: User, spoil: Callable) -> int:
        spoil(user.image(), user.mask())
        return user.train()

    cases: dict[str, Case] = {
        wrong: ("user", lambda user, s=spoil: run(user, s), words) for wrong, (spoil, words) in FILES.items()
    }
    for index in range(4):
        cases[f"a truncated image of patient {index}"] = (
            "user",
            lambda user, i=index: cut(user.image("BMC", i), 5000) or user.train(),
            ("the file is incomplete",),
        )
    return cases


def picture(user: User, content: bytes | None = None, pixels: np.ndarray | None = None, kind: str = "images") -> int:
    path = user.place / "data" / "south" / kind / "a.png"
    if pixels is None:
        path.write_bytes(path.read_bytes()[:200] if content is None else content)
    else:
        Image.fromarray(pixels).save(path)
    return user.train()


def link(user: User) -> int:
    path = user.image()
    path.unlink()
    path.symlink_to("nowhere.nii.gz")
    return user.train()


def emptied(user: User) -> int:
    for path in (user.place / "data" / "BMC").iterdir():
        path.unlink()
    return user.train()


def copied(user: User, source: Path, target: Path) -> int:
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return user.train()


def other_cases() -> dict[str, Case]:
    colours, grey = np.zeros((40, 40, 3), np.uint8), np.full((40, 40), 7, np.uint8)
    colours[:20], colours[20:30] = (255, 0, 0), (0, 255, 0)
    south = lambda user: user.place / "data" / "south"  # noqa: E731
    return {
        "an empty config": ("user", lambda user: user.config.write_text("") or user.train(), ("is empty",)),
        "a config in Latin-1": (
            "user",
            lambda user: user.config.write_bytes(b"seed: 3 # \xe9") and user.train(),
            ("not UTF-8",),
        ),
        "no config": ("user", lambda user: user.config.unlink() or user.train(), ("no such file",)),
        "a folder as config": (
            "user",
            lambda user: (user.config.unlink(), user.config.mkdir()) and user.train(),
            ("is a folder",),
        ),
        "an unknown key as flag": ("user", lambda user: user.train("--set", "training.lr=1"), ("unknown key",)),
        "a file as folder": (
            "user",
            lambda user: user.out.write_text("") and user.train() or user.train(),
            ("cannot write here",),
        ),
        "resume without a run": ("user", lambda user: user.train("--resume"), ("no run to resume",)),
        "an unknown unseen site": (
            "user",
            lambda user: user.train("--set", "federation.unseen_site=UCLA"),
            ("Did you mean 'UCL'",),
        ),
        "an unknown site": ("user", lambda user: user.train("--set", "data.sites=[BMC, HK, UCLA]"), ("UCLA",)),
        "a size that the network cannot halve": (
            "user",
            lambda user: user.train("--set", "data.image_size=34"),
            ("multiple of 4",),
        ),
        "no such data": ("user", lambda user: user.train("--set", "data.root=nowhere"), ("nowhere",)),
        "an image of the unseen site in training": (
            "user",
            lambda user: copied(user, user.image("UCL"), user.image("BMC")),
            ("these files are",),
        ),
        "a site without images": ("user", emptied, ("has no images",)),
        "a broken link": ("user", link, ("a link that leads to no file",)),
        "two folders of one site": (
            "eyes",
            lambda user: copied(user, south(user), user.place / "data" / "South"),
            ("differ only in upper",),
        ),
        "a grey level without a class": (
            "eyes",
            lambda user: picture(user, pixels=grey, kind="masks"),
            ("has the labels 7",),
        ),
        "labels stored as colours": (
            "eyes",
            lambda user: picture(user, pixels=colours, kind="masks"),
            ("as 3 colours",),
        ),
        "a grey image among colours": (
            "eyes",
            lambda user: picture(user, pixels=np.zeros((40, 40), np.uint8)),
            ("the image is grey",),
        ),
        "a truncated PNG": ("eyes", picture, ("a.png",)),
        "an empty PNG": ("eyes", lambda user: picture(user, b""), ("a.png",)),
        "text that is called PNG": ("eyes", lambda user: picture(user, b"not an image"), ("a.png",)),
    }


def faults(make: Callable[[], User], case: Case) -> list[str]:
    """Return what is wrong with how a program handles a bad input."""
    _, work, words = case
    user = make()
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
    cases = {**config_cases(), **file_cases(), **other_cases()}
    chosen, wrong, seconds = measurement.some(cases.items(), 12), [], 0.0

    def maker(kind: str, folder: Path) -> Callable[[], User]:
        folder.mkdir(parents=True)
        return lambda: make_user(folder, small_phantom, capsys) if kind == "user" else make_eyes(folder, capsys)

    for number, (name, case) in enumerate(chosen):
        start = time.thread_time()
        found = faults(maker(case[0], tmp_path / str(number) / "hospital"), case)
        seconds = max(seconds, time.thread_time() - start)
        wrong += [f"{name}: {', '.join(found)}"] if found else []
    some, n_control = chosen[:10], 0
    with patch("medfed.cli.program.UserError", NobodyError):
        for number, (_, case) in enumerate(some):
            n_control += bool(faults(maker(case[0], tmp_path / f"control_{number}" / "hospital"), case))
    n = len(chosen)
    measurement.report(
        "R8",
        f"{n} bad inputs: exit code 2, one line with file or key, what was found and what to do, no traceback, "
        f"nothing written, {MAX_S:g} s of CPU time after the imports",
        f"{n} of {n}",
        f"{n - len(wrong)} of {n}, the slowest {seconds:.1f} s" + (f"; {'; '.join(wrong[:3])}" if wrong else ""),
        not wrong,
        f"without the handling of errors {len(some) - n_control} of {len(some)}",
        n_control == len(some),
    )
