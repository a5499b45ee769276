"""The table of bundles that medfed can start from."""

import json

from zoo_table import table


def write(folder, definition):
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "inference.json").write_text(json.dumps({"network_def": definition}))


def test_each_bundle_has_a_row_with_its_network_or_the_reason(tmp_path):
    unet = {
        "_target_": "UNet",
        "spatial_dims": 2,
        "in_channels": 4,
        "out_channels": 2,
        "channels": [4, 8],
        "strides": [2],
    }
    write(tmp_path / "a", unet)
    write(tmp_path / "b", {**unet, "spatial_dims": 3})
    write(tmp_path / "c", {"_target_": "scripts.net.Net"})
    (tmp_path / "d").mkdir()  # no bundle
    count, _, _, _, *rows = table(tmp_path).splitlines()
    assert count == "2 of 3 are accepted."
    assert rows == [
        "| a | accepted | `UNet`, 2-D, segmentation, weights for 4 channels; medfed's 2-D images have 1 or 3 channels, "
        "so its weights do not fit |",
        "| b | accepted | `UNet`, 3-D, segmentation, weights for 4 channels |",
        "| c | refused | inference.json: network_def is 'scripts.net.Net' |",
    ]
