"""Print as a Markdown table which bundles of MONAI's model zoo medfed can start from, and why not from the others.

    git clone https://github.com/Project-MONAI/model-zoo
    python tests/zoo_table.py model-zoo/models

Only configs are read; nothing of a bundle is run.
"""

import sys
from pathlib import Path

from medfed.networks.bundle import Bundle
from medfed.networks.parts.bundle_config import read_network_def

HEAD = ["| bundle | result | network, or the reason |", "| --- | --- | --- |"]


def judge(bundle: Path) -> tuple[bool, str]:
    """Return whether medfed accepts a bundle, and its network or the reason."""
    try:
        settings = Bundle(str(bundle))
        _, name, arguments = read_network_def(bundle)
    except ValueError as error:
        return False, str(error).replace(f"{bundle}/configs/", "").replace(f"{bundle}/", "").partition("; ")[0]
    channels = arguments.get("in_channels", "?")
    task = "segmentation" if settings.decoder_levels else "classification"
    is_read = settings.dimensions == 3 or channels in (1, 3)  # a volume may have a fourth axis
    note = "" if is_read else "; medfed's 2-D images have 1 or 3 channels, so its weights do not fit"
    return (
        True,
        f"`{name}`, {settings.dimensions}-D, {task}, weights for {channels} channel{'s' * (channels != 1)}{note}",
    )


def table(models: Path) -> str:
    """Return the table of all bundles in a folder, and a line that counts them."""
    bundles = sorted(path for path in models.iterdir() if (path / "configs").is_dir())
    results = [(bundle.name, *judge(bundle)) for bundle in bundles]
    rows = [
        f"| {name} | {'accepted' if is_accepted else 'refused'} | {text.replace('|', '/')} |"
        for name, is_accepted, text in results
    ]
    return "\n".join([f"{sum(row[1] for row in results)} of {len(results)} are accepted.", "", *HEAD, *rows])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
