from made_runs import mask_rows

from medfed.outputs.bundle.model_card import card_notes, scores, scores_table
from medfed.tasks.mask_scoring import MaskScoring


def test_the_card_has_calibration_and_failures_of_each_site():
    summary = MaskScoring().summarise(mask_rows(["A"], "C"))
    table = scores_table(summary)
    assert "| C (UNSEEN) | disc | 5.00 [3.3, 7.4] | 1/7 [0, 58] % | 1/7 [0, 58] % |" in table
    assert scores(summary)["unseen_disc_ece"] == 0.05


def test_the_notes_describe_start_weights_selection_and_clients():
    assert card_notes({"start_weights": None}) == ""
    notes = card_notes(
        {
            "start_weights": {"file": "resnet18.pth", "sha256": "ab12"},
            "validation_site": "photo",
            "selection": "validation_site",
            "clients": {"n": 100, "per_round": 20, "partition": "dirichlet 0.5"},
        }
    )
    assert "the weights in resnet18.pth (SHA-256 ab12)" in notes
    assert "photo did not train; the round was selected by its scores." in notes
    assert "100 simulated clients (dirichlet 0.5). 20 clients took part in each round" in notes
    rough = card_notes({"deterministic": False, "precision": "bf16"})
    assert "\n\nNOT DETERMINISTIC: the same config and seed give other weights each time.\n\nTrained in bf16." in rough
    assert card_notes({"deterministic": True, "precision": "float32"}) == ""
    assert "it was scored only" in card_notes({"validation_site": "photo", "selection": "last"})
