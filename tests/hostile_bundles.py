"""Contents of a bundle with which MONAI would run code, or write outside of a folder."""

import zipfile
from pathlib import Path

from made_runs import scores_of

from medfed.networks.unet import UNet
from medfed.outputs.bundle.write import write_bundle
from medfed.tasks.segmentation import Segmentation

TARGETS = [*"os.system medfed.networks.unet.UNet subprocess.run LoadImaged monai.transforms.Lambda".split()]
TARGETS += ["@device", "$glob.glob", 3, None]
ENTRIES = [
    ("reader", "os.system"),  # LoadImage imports a dotted reader and calls it
    ("writer", "subprocess.Popen"),
    ("_mode_", "debug"),
    ("evaluator#network", 1),  # MONAI writes below `evaluator`
    ("+handlers", [1]),  # and appends
    ("data", "%/tmp/other.json"),
    ("data", "$__import__('os').system('true')"),
]
EXPRESSIONS = [
    """$'@f {__import__("os").system("true")}'""",  # MONAI replaces @f, so that the string becomes an f-string
    """$@a[0 #__import__("os").system("true")\n]""",  # MONAI replaces # by ::
    "$'@a'",
    "$'#'",
    "$__import__('os')",
    "$import os",
    "$from os import system",
    "$import glob, os",
    "$open('/etc/passwd')",
    "$lambda: 0",
    "$@x.__class__",
    "$@x.run",
    "$@x.run(a=1)",
    "$@x()",
    "$@x['a'](1)",
    "$torch.load('x')",
    "$torch.hub.load('a', 'b')",
    "$glob.os.system('x')",
    "$[glob for glob in @x]",
    "$[x for x in @a if x.y]",
    "$[x.run() for x in @a]",
    "$9 ** 9 ** 9",
    "$'a' * 10**9",
    "$f'{@x}'",
    "$(y := 1)",
    "$exec('1')",
    "$monai.bundle.load('x')",
    "$np.load('x')",
    "$glob.glob(*@x)",
    "${**@x}",
    "$@a\n.run()",
    "$@a; @b",
    "$",
    "$ (",
    "$@a" + "+@a" * 20000,
]
MEMBERS = ["../x", "/etc/x", "organ_segmentation/../../x", "a\\..\\x", "C:x", "organ/"]


def small_bundle(folder: Path) -> Path:
    """Write a bundle with a small untrained U-Net, which is not hostile."""
    network, task = UNet(features=(2, 2, 2, 2, 2, 2)), Segmentation(("organ",), 1, 32)
    return write_bundle(
        folder / "organ_segmentation",
        network=network,
        weights=network.build(1, 1).state_dict(),
        task=task,
        provenance={},
        summary=scores_of([], task.scoring),
        input_is_2d=False,
    )


def zipped(bundle: Path, path: Path, change: dict | None = None, more=()) -> Path:
    """Write the bundle as a zip file; `change` replaces contents by name, `more` are additional (member, content)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(bundle.rglob("*")):
            if file.is_file():
                name = file.relative_to(bundle).as_posix()
                archive.writestr(f"{bundle.name}/{name}", (change or {}).get(name, file.read_bytes()))
        for member, content in more:
            archive.writestr(member, content)
    return path
