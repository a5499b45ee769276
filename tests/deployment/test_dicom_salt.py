"""The secret that hides the names of a hospital's DICOM patients: only the hospital says where it lies."""

import pytest

from medfed.core.errors import UserError
from medfed.deployment.join import read_site_file

PLAN = """
data: {{name: folder, root: data{}}}
network: {{name: unet, features: [4, 4, 4, 8, 8, 4]}}
method: {{name: fedavg}}
federation: {{rounds: 1}}
"""


def test_a_plan_may_not_name_the_file_of_the_secret_and_the_hospital_may(tmp_path):
    site_file = tmp_path / "HK.yaml"
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    (tmp_path / "plan.yaml").write_text(PLAN.format(", dicom_salt: /etc/services"))
    with pytest.raises(UserError, match="plan.yaml: data.dicom_salt: .* the coordinator could then know"):
        read_site_file(site_file)
    for plan in ("", ", dicom_salt: /etc/services"):
        (tmp_path / "plan.yaml").write_text(PLAN.format(plan))
        site_file.write_text("site: HK\nagrees: {rounds: 1}\ndata: {dicom_salt: salt}\n")
        assert read_site_file(site_file)[1].data.dicom_salt == str(tmp_path / "salt")
