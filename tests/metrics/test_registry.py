import subprocess
import sys

import pytest

from fedsim.metrics import METRICS
from fedsim.metrics.base import describe

# One row for each metric: unit, what the attacker wants, and what it applies to.
TABLE = {
    "mse": ("squared pixel", "lower", "image"),
    "psnr": ("dB", "higher", "image"),
    "ssim": ("1", "higher", "image"),
    "lpips": ("1", "lower", "image"),
    "label_accuracy": ("1", "higher", "any"),
    "rouge1": ("1", "higher", "text"),
    "rouge2": ("1", "higher", "text"),
    "rougeL": ("1", "higher", "text"),
    "rouge1_special": ("1", "higher", "text"),
    "rouge2_special": ("1", "higher", "text"),
    "rougeL_special": ("1", "higher", "text"),
    "token_accuracy": ("1", "higher", "text"),
    "token_precision": ("1", "higher", "text"),
    "batch_token_precision": ("1", "higher", "text"),
    "batch_token_recall": ("1", "higher", "text"),
    "token_recall": ("1", "higher", "text"),
    "exact_match": ("1", "higher", "text"),
    "bleu": ("1", "higher", "text"),
    "nerr": ("1", "higher", "text"),
    "nerr_rules": ("1", "higher", "text"),
    "rouge1_best": ("1", "higher", "text"),
    "rouge2_best": ("1", "higher", "text"),
    "rougeL_best": ("1", "higher", "text"),
    "nerr_best": ("1", "higher", "text"),
    "nerr_rules_best": ("1", "higher", "text"),
    "sentence_precision": ("1", "higher", "text"),
    "sentence_recall": ("1", "higher", "text"),
}


def test_the_table_names_every_metric() -> None:
    assert TABLE.keys() == METRICS.keys()


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_is(name: str) -> None:
    metric = METRICS[name]
    unit, wants, modality = TABLE[name]
    assert describe(metric) == {"name": name, "unit": unit, "attacker_wants": wants}
    assert metric.modality == modality
    assert metric() == metric()
    assert name in {"lpips", "nerr", "nerr_best"} or metric().available() == ""


def test_heavy_libraries_wait_for_the_first_score() -> None:
    code = (
        "import sys, fedsim.metrics, fedsim.metrics.match, experiments.analysis.statistics\n"
        "heavy = {'torchmetrics', 'rouge_score', 'sacrebleu', 'scipy', 'spacy'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
