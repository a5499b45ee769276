from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.latex import escape_latex, to_latex
from medfed.tasks.mask_scoring import MaskScoring

METRICS = [column.key for column in MaskScoring().columns]


def row(site: str, patient: str, dice: float) -> dict:
    known = {"site": site, "role": "unseen", "patient": patient, "image": patient, "structure": "organ_1"}
    return dict.fromkeys(METRICS) | known | {"status": "ok", "dice": dice}


def test_the_best_is_bold_the_second_underlined_and_special_characters_are_escaped():
    results = [
        {
            "method": method,
            "unseen_site": "A_1",
            "seed": 1,
            "selection": "last",
            "data": "phantom",
            "rows": [row("A_1", str(i), dice) for i in range(6)],
        }
        for method, dice in (("fedavg", 0.5), ("el&cfs", 0.75))
    ]
    text = to_latex(build_table(results, ["organ_1"]))
    assert r"A\_1" in text and r"el\&cfs & \textbf{75.00}" in text and r"fedavg & \underline{50.00}" in text
    caption = r"\caption{organ\_1: Dice (\%), higher is better. SYNTHETIC PHANTOM DATA: says nothing about hospitals}"
    assert caption in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3, "scores, differences and failures"


def test_every_special_character_is_escaped():
    assert escape_latex("50 % of a_b & {c} #1 $2 ~ ^ \\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
