"""Contents of a bundle with which MONAI would run code, or write outside of a folder."""

import shutil
from pathlib import Path

from made_bundles import exported

from medfed.networks.unet import UNet
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
HOSTILE_EXPRESSIONS = [
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


def small_bundle(folder: Path) -> Path:
    """Write a bundle with a small untrained U-Net, which is not hostile."""
    network, task = UNet(features=(2, 2, 2, 2, 2, 2)), Segmentation(("organ",), 1, 32)
    return exported(folder / "organ_segmentation", network, network.build(1, 1), task, input_is_2d=False)


def changed_copy(bundle: Path, path: Path, contents: dict[str, bytes | str]) -> Path:
    """Copy the bundle, and write these contents by name."""
    shutil.copytree(bundle, path)
    for name, content in contents.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path
