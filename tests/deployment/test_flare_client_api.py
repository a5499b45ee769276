"""Two hospitals train an exported bundle with MONAI and FLARE, with the scripts of docs/how_to/flare_client.md."""

import re
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from made_bundles import UNET, exported

from medfed.networks.bundle import Bundle
from medfed.tasks.segmentation import Segmentation

pytest.importorskip("nvflare")
pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "flare_client.md"


def write_site(folder, seed):
    """Three volumes with a bright cuboid."""
    rng = np.random.default_rng(seed)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        mask = np.zeros((40, 36, 4), dtype=np.uint8)
        mask[8:24, 10:26] = 1
        image = (mask + rng.normal(0, 0.2, mask.shape)).astype(np.float32)
        for kind, array in (("images", image), ("labels", mask)):
            nib.save(nib.Nifti1Image(array, np.diag([-0.6, -0.7, 3.0, 1.0])), folder / kind / f"{number}.nii.gz")


def test_the_documented_client_and_job_train_a_bundle_and_medfed_starts_from_the_result(tmp_path):
    """Both sites have the same number of steps: the result is the plain mean of the weights that they trained."""
    client, job, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "client.py").write_text(client, encoding="utf-8")
    (tmp_path / "job.py").write_text(job, encoding="utf-8")
    for number in (1, 2):
        write_site(tmp_path / "images" / f"site-{number}", number)
    module, task = UNET.build(1, 1), Segmentation(("organ",), 1, 32)
    training = {"optimizer": "sgd", "learning_rate": 0.05, "batch_size": 3}
    bundle = exported(tmp_path / "bundle", UNET, module, task, input_is_2d=False, training_settings=training)
    weights = module.state_dict()
    paths = [str(tmp_path / name) for name in ("bundle", "images", "workspace")]
    command = [sys.executable, "job.py", *paths, "site-1", "site-2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    job_folder = tmp_path / "workspace" / "fedavg"
    result = torch.load(job_folder / "server/simulate_job/app_server/FL_global_model.pt", weights_only=True)["model"]
    trained = [torch.load(job_folder / f"site-{n}/checkpoints_site-{n}/trained.pt", weights_only=True) for n in (1, 2)]
    assert list(result) == list(weights)
    for name, entry in result.items():
        torch.testing.assert_close(entry, (trained[0][name] + trained[1][name]) / 2, rtol=0, atol=1e-6)
    assert any(not torch.equal(entry, weights[name]) for name, entry in result.items())
    torch.save(result, bundle / "models" / "model.pt")
    settings = Bundle(str(bundle))
    network = settings.build(1, 1)
    settings.load_pretrained(network)
    assert all(torch.equal(entry, result[name]) for name, entry in network.state_dict().items())
