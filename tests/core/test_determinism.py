"""Numbers of CPU threads that are set for a while."""

import pytest
import torch

from medfed.core.determinism import cpu_threads, deterministic
from medfed.core.errors import UserError
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.folder import Folder


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("context", [cpu_threads, deterministic])
def test_the_number_of_threads_is_restored_also_after_an_error(context):
    with pytest.raises(ZeroDivisionError), context(1):
        assert torch.get_num_threads() == 1
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 2


def test_a_dataset_is_checked_with_one_thread(monkeypatch, tmp_path):
    """With more, a check takes twice the time, and ten times if another program uses the cores."""

    def site_names(self):
        raise UserError(f"{torch.get_num_threads()} thread")

    monkeypatch.setattr(Folder, "site_names", site_names)
    with pytest.raises(UserError, match="^1 thread$"):
        check_dataset(Folder(root=str(tmp_path), image_size=32))
