"""Nothing that identifies a patient in DICOM files leaves their folder: not by name, not by folder, not by number."""

import io
import logging

import numpy as np
import pytest
from made_dicom import volume, write_nifti, write_segmentation, write_series

from medfed import data, report, train
from medfed.datasets import dicom_names
from medfed.datasets.case import Case
from medfed.federation.message import Message

WORDS = (b"canary", b"17760704", b"1.2.826.0.1.424242")
TAGS = {
    "PatientName": "Canaryname^Jane",
    "PatientBirthDate": "17760704",
    "AccessionNumber": "CANARY-ACCESSION",
    "InstitutionName": "Canary Hospital",
    "ReferringPhysicianName": "CANARY^Doctor",
    "StudyID": "CANARYSTUDY",
    "SeriesDescription": "canary t2",
}
CONFIG = """
seed: 3
data:
  name: folder
  root: {root}
  image: "{{site}}/{{case}}"
  mask: "{{site}}/{{case}}/*.*"
  image_size: 32
  validation_ratio: 0.25
  test_ratio: 0.25
network: {{name: medfed.testing.small_unet.SmallUNet}}
method: {{name: elcfs, alpha: 0.1, min_patients: 1}}
training: {{batch_size: 8, learning_rate: 0.01}}
federation: {{unseen_site: UCL, rounds: 1}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    for seed, site in enumerate(("BMC", "HK", "UCL")):
        for case in range(4):
            image = volume((16, 16, 2), seed=10 * seed + case)
            mask = np.zeros(image.shape, np.uint8)
            mask[4:9, 5:11] = 1
            place = folder / site / f"CANARYFOLDER {case}"
            uids = {"PatientID": f"CANARYID{case}", "SeriesInstanceUID": f"1.2.826.0.1.424242.{seed}.{case}"}
            datasets = write_series(place / "canaryseries", image, names="CanaryFile{}", **uids, **TAGS)
            if site == "BMC":
                write_segmentation(place / f"CANARYMASK {case}.dcm", datasets, {"CANARYLABEL": mask})
            else:
                write_nifti(place / f"CANARYMASK {case}.nii.gz", mask)
    return folder


def test_a_checked_and_trained_federation_holds_no_word_of_the_patients(root, tmp_path, monkeypatch, capfd, recwarn):
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    logging.getLogger("medfed").debug("a record arrives")
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=root))
    messages, to_bytes = [], Message.to_bytes

    def spy(self):
        messages.append(to_bytes(self))
        return messages[-1]

    monkeypatch.setattr(Message, "to_bytes", spy)
    patterns = ["--set", "data.image={site}/{case}", "--set", "data.mask={site}/{case}/*.*"]
    assert data.main(["check", str(root), *patterns, "--json"]) == 0
    assert train.main([str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert report.main([str(tmp_path / "run")]) == 0
    printed = capfd.readouterr()
    seen = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    assert len(messages) > 6 and "a record arrives" in log.getvalue()
    files = list(seen.values())
    seen |= {
        "printed": printed.out.encode(),
        "errors": printed.err.encode(),
        "log": log.getvalue().encode(),
        "warnings": "\n".join(str(warning.message) for warning in recwarn).encode(),
        "names": "\n".join(seen).encode(),
        "messages": b"".join(messages),
    }
    assert [name for name, content in seen.items() if any(word in content.lower() for word in WORDS)] == []
    salt = (root / dicom_names.SALT_FILE).read_bytes()
    patient = dicom_names.hide_names(Case("A", "x", root, (), "CANARYID0"), salt).patient.encode()
    assert any(patient in content for content in files), "the files do not name the cases at all"
    assert [name for name, content in seen.items() if salt in content or salt.hex().encode() in content] == []


def test_the_words_are_in_the_images_of_the_canary_test(root):
    files = [path for path in root.rglob("Canary*") if path.is_file()]
    assert len(files) == 3 * 4 * 2
    for path in files:
        content = path.read_bytes().lower()
        assert all(word in content for word in WORDS)
