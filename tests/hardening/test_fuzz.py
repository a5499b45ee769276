"""R11: mutated messages, checkpoints, configs, files of hospitals and bundles end in one kind of error, and soon."""

import io
import json
import os
import random
import resource
import shutil
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kills
import pytest
import yaml
from conftest import tiny_yaml
from hostile_bundles import small_bundle
from mutated_messages import MESSAGES, ODD, STATE, mutated, refused_or_stable, replace_one

from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.deployment.join import read_site_file
from medfed.deployment.templates import site_file_text
from medfed.federation.message import Message, State
from medfed.outputs.bundle.check import check_bundle

pytestmark = pytest.mark.hardening
MAX_S, MAX_MB = 1.0, 256


@dataclass
class Fuzzed:
    """What a number of mutations did: other errors, the slowest, the growth of memory, and files outside the folder."""

    n: int
    n_refused: int
    errors: list[str]
    slowest_s: float
    grown_mb: float
    n_files: int

    def __str__(self) -> str:
        first = f" ({self.errors[0]})" if self.errors else ""
        return (
            f"{len(self.errors)} other errors{first}, slowest {self.slowest_s:.2f} s, memory +{self.grown_mb:.0f} MB, "
            f"{self.n_files} files written; {self.n_refused:,} refused"
        )

    @property
    def is_met(self) -> bool:
        return not self.errors and self.slowest_s <= MAX_S and self.grown_mb <= MAX_MB and self.n_files == 0


def fuzz(folder: Path, n: int, rng: random.Random, one: Callable[[random.Random], bool]) -> Fuzzed:
    """Call `one`, which returns whether it refused a mutation, n times in a forked process whose memory is measured."""
    result, work = folder / "fuzzed.json", folder / "current"
    work.mkdir()

    def run() -> None:
        os.chdir(work)
        errors, slowest_s, n_refused = [], 0.0, 0
        with suppress(Exception):
            one(rng)  # imports what is missing
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(n):
            start = time.thread_time()  # of this process: others may use the cores
            try:
                n_refused += one(rng)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}"[:100])
            slowest_s = max(slowest_s, time.thread_time() - start)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        n_files = sum(1 for path in work.rglob("*"))
        result.write_text(json.dumps([n, n_refused, errors, slowest_s, grown, n_files]))

    assert kills.in_child(run) == 0
    return Fuzzed(*json.loads(result.read_text()))


def report(measurement, folder: Path, what: str, n: int, one: Callable, unchecked: Callable) -> None:
    """Write the row of a target; the control is code that does not check what it reads."""
    counted = fuzz(folder, n, measurement.rng(what), one)
    (folder / "control").mkdir()
    control = fuzz(folder / "control", min(n, 1000), measurement.rng(what), unchecked)
    measurement.report(
        f"{n:,} mutations of {what}",
        (
            f"0 other errors, none slower than {MAX_S:g} s (CPU), at most {MAX_MB} MB, 0 files",
            str(counted),
            counted.is_met and counted.n_refused > n // 4,
        ),
        (f"read without checks: {len(control.errors)} of {control.n} with other errors", bool(control.errors)),
    )


def test_r11_messages(measurement, tmp_path):
    valid = [(message.to_bytes(), Message) for message in MESSAGES] + [(STATE.to_bytes(), State)]

    def one(rng: random.Random) -> bool:
        data, kind = rng.choice(valid)
        return not refused_or_stable(kind, mutated(data, rng))

    def unchecked(rng: random.Random) -> bool:
        data = mutated(rng.choice(valid)[0], rng)
        return not json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["medfed"]

    report(measurement, tmp_path, "messages and checkpoints", measurement.count(200_000, 2000), one, unchecked)


def refuses(read: Callable[[], object]) -> bool:
    try:
        read()
        return False
    except UserError:
        return True


def mutated_text(text: str, rng: random.Random) -> str:
    """Return YAML text with another value, a missing, repeated or moved line, or other characters."""
    lines, kind = text.splitlines(), rng.randrange(4)
    index = rng.randrange(len(lines))
    if kind == 0:
        key, colon, _ = lines[index].rpartition(": ")
        lines[index] = key + colon + rng.choice(["", "!!python/name:os.system", "&a [*a]", json.dumps(rng.choice(ODD))])
    elif kind == 1:
        lines[index : index + 1] = rng.choice([[], 2 * [lines[index]], [" " + lines[index]], [lines[index], "- 1"]])
    elif kind == 2:
        place = rng.randrange(len(text))
        return text[:place] + rng.choice([*"{}[]:,-&*!|>'\"%@`\t\0\u202e\ud800", "9" * 40, "a: " * 50]) + text[place:]
    else:
        place = rng.randrange(len(text))
        return text[:place] + text[place + rng.randrange(1, 30) :]
    return "\n".join(lines)


def test_r11_configs(measurement, small_phantom, tmp_path):
    text = tiny_yaml(small_phantom)

    def one(rng: random.Random) -> bool:
        return refuses(lambda: load_text(mutated_text(text, rng), "config.yaml"))

    def unchecked(rng: random.Random) -> bool:
        return yaml.safe_load(mutated_text(text, rng))["training"]["learning_rate"] > 1

    report(measurement, tmp_path, "a config", measurement.count(10_000, 200), one, unchecked)


def test_r11_files_of_a_hospital(measurement, small_phantom, tmp_path):
    plan = tiny_yaml(small_phantom).replace("unseen_site: UCL, ", "")
    (folder := tmp_path / "hospital").mkdir()
    own = site_file_text("HK", 2, {})

    def one(rng: random.Random) -> bool:
        texts = {"HK.yaml": own, "plan.yaml": plan}
        changed = rng.choice(sorted(texts))
        for name, text in texts.items():
            text = mutated_text(text, rng) if name == changed else text
            (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        return refuses(lambda: read_site_file(folder / "HK.yaml"))

    def unchecked(rng: random.Random) -> bool:
        return yaml.safe_load(mutated_text(own, rng))["agrees"]["rounds"] > 9

    report(measurement, tmp_path, "a hospital's file or plan", measurement.count(4000, 100), one, unchecked)


def test_r11_bundles(measurement, tmp_path):
    bundle = small_bundle(tmp_path)
    archive = (bundle / "models" / "model.pt").read_bytes()
    copy = shutil.copytree(bundle, tmp_path / "copy" / bundle.name)
    names = ("configs/inference.json", "configs/metadata.json")
    contents = {name: json.loads((bundle / name).read_text()) for name in names}

    def one(rng: random.Random) -> bool:
        if rng.random() < 0.5:
            data = bytearray(archive)
            for _ in range(rng.choice([1, 2, 20])):
                place = rng.choice([rng.randrange(len(data)), -1 - rng.randrange(min(len(data), 1500))])
                data[place] = rng.randrange(256)
            (copy / "models" / "model.pt").write_bytes(data[: rng.choice([len(data), rng.randrange(1, len(data))])])
        else:
            name = rng.choice(names)
            changed = json.loads(json.dumps(contents[name]))
            replace_one(changed, rng)
            (copy / name).write_text(json.dumps(changed))
        try:
            return refuses(lambda: check_bundle(copy))
        finally:
            (copy / "models" / "model.pt").write_bytes(archive)
            for name in names:
                (copy / name).write_text(json.dumps(contents[name]))

    def unchecked(rng: random.Random) -> bool:
        data = bytearray(archive)
        data[-1 - rng.randrange(1500)] = rng.randrange(256)
        return zipfile.ZipFile(io.BytesIO(data)).testzip() is not None

    report(measurement, tmp_path, "a bundle", measurement.count(4000, 100), one, unchecked)
