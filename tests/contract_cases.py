"""What every attack and every defense is tested with."""

from pathlib import Path
from typing import Literal, NamedTuple

from attacks.scheduling.jobs import JobSpec, plan

Cell = Literal["image", "linear", "patches", "normalised", "text", "language"]
"""Classifiers of images by convolutions, linear layers, patches and with batch statistics, of
texts, a language model."""


class AttackCase(NamedTuple):
    """Options that make it quick, what it reconstructs, and whether its guess depends on a seed."""

    options: dict[str, object]
    cells: tuple[Cell, ...]
    draws: bool


ATTACK_CASES = {
    "dlg": AttackCase({"steps": 1, "restarts": 1}, ("image",), True),
    "idlg": AttackCase({"steps": 1, "restarts": 1}, ("image",), True),
    "closed_form": AttackCase({}, ("image",), False),
    "patch_rows": AttackCase({}, ("patches",), False),
    "inverting": AttackCase({"steps": 60}, ("image",), True),
    "gi_gip": AttackCase(
        {"latent_steps": 2, "weight_steps": 2, "generator_steps": 2}, ("image",), True
    ),
    "bayes": AttackCase({"steps": 20}, ("image",), True),
    "dlg_text": AttackCase({"steps": 2}, ("text", "language"), True),
    "tag": AttackCase({"steps": 2}, ("text", "language"), True),
    "lamp": AttackCase(
        {"steps": 2, "starts": 2, "proposals": 4, "alpha_lm": 0.0}, ("text", "language"), True
    ),
    "film": AttackCase({"phrase_steps": 1, "token_steps": 1, "beams": 2}, ("language",), True),
    "span": AttackCase({}, ("text", "language"), False),
    "embedding_rows": AttackCase({}, ("text", "language"), False),
    "lti": AttackCase(
        {"epochs": 1, "width": 8, "channels": 4, "bins": 0.02}, ("image", "text", "language"), True
    ),
    "ridge": AttackCase({}, ("image", "normalised"), True),
    "statistics": AttackCase({}, ("normalised",), True),
    "spear": AttackCase({"samples": 20_000}, ("linear",), False),
    "disaggregate": AttackCase({}, (), False),  # without sums there is nothing to separate
    "membership": AttackCase({}, (), False),  # without candidates there is nothing to infer
    "prior_only": AttackCase({}, ("image", "text", "language"), False),
}


# The options without a default; dp_sgd and dp_client ask for one of two more.
DEFENSE_CASES: dict[str, dict[str, object]] = {
    "none": {},
    "gaussian_noise": {"std": 0.1},
    "clip": {"norm": 1.0},
    "dp_sgd": {"clip": 1.0, "noise_multiplier": 0.5},
    "dp_client": {"clip": 1.0, "noise_multiplier": 0.5},
    "dp_server": {"clip": 1.0, "noise_multiplier": 0.5},
    "local_dp": {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5},
    "error_feedback": {},
    "prune": {"fraction": 0.5},
    "percentile_privacy": {},
    "svt_privacy": {},
    "quantize": {"kind": "qsgd"},
    "sign": {},
    "freeze_embeddings": {},
    "soteria": {},
    "censor": {},
    "pfgd": {},
    "ats": {},
    "optimal_noise": {},
    "dual_prune": {},
    "tip": {},
    "svdefense": {},
    "withhold": {"tensors": ["*bias"]},
    "ffa_lora": {},
    "fedsa_lora": {},
    "ghost": {},
    "mixup": {},
}
IMAGES_ALONE = {"soteria", "ats", "mixup", "optimal_noise", "tip"}
"""Defenses that refuse texts."""
OTHER_MODELS = {"ffa_lora", "fedsa_lora", "ghost"}
"""Defenses that ask for adapters or a language model."""


def jobs(cell: Path, name: str, guesses: Path, seed: int = 0, **more: object) -> list[JobSpec]:
    options = ATTACK_CASES[name].options if name in ATTACK_CASES else {}
    table = {"name": name, **options, **more}
    return plan(cell / "captures", guesses, name, table, seed)


RUNS = [(name, kind) for name, case in ATTACK_CASES.items() for kind in case.cells]


Modality = Literal["image", "text"]


class MetricCase(NamedTuple):
    """Its unit, what the attacker wants, and what it applies to."""

    unit: str
    wants: Literal["higher", "lower"]
    modality: Modality | Literal["table", "any"]


METRIC_CASES = {
    "mse": MetricCase("squared pixel", "lower", "image"),
    "psnr": MetricCase("dB", "higher", "image"),
    "ssim": MetricCase("1", "higher", "image"),
    "lpips": MetricCase("1", "lower", "image"),
    "lpips_vgg": MetricCase("1", "lower", "image"),
    "label_accuracy": MetricCase("1", "higher", "any"),
    "rouge1": MetricCase("1", "higher", "text"),
    "rouge2": MetricCase("1", "higher", "text"),
    "rougeL": MetricCase("1", "higher", "text"),
    "rouge1_special": MetricCase("1", "higher", "text"),
    "rouge2_special": MetricCase("1", "higher", "text"),
    "rougeL_special": MetricCase("1", "higher", "text"),
    "token_accuracy": MetricCase("1", "higher", "text"),
    "token_precision": MetricCase("1", "higher", "text"),
    "batch_token_precision": MetricCase("1", "higher", "text"),
    "batch_token_recall": MetricCase("1", "higher", "text"),
    "padded_token_accuracy": MetricCase("1", "higher", "text"),
    "token_recall": MetricCase("1", "higher", "text"),
    "exact_match": MetricCase("1", "higher", "text"),
    "bleu": MetricCase("1", "higher", "text"),
    "rouge1_best": MetricCase("1", "higher", "text"),
    "rouge2_best": MetricCase("1", "higher", "text"),
    "rougeL_best": MetricCase("1", "higher", "text"),
    "sentence_precision": MetricCase("1", "higher", "text"),
    "sentence_recall": MetricCase("1", "higher", "text"),
    "exact_row": MetricCase("1", "higher", "table"),
    "exact_columns": MetricCase("1", "higher", "table"),
    "exact_population": MetricCase("1", "higher", "table"),
    "exact_tv_news": MetricCase("1", "higher", "table"),
    "exact_own_views": MetricCase("1", "higher", "table"),
    "exact_views_of_clinton": MetricCase("1", "higher", "table"),
    "exact_views_of_dole": MetricCase("1", "higher", "table"),
    "exact_party": MetricCase("1", "higher", "table"),
    "exact_age": MetricCase("1", "higher", "table"),
    "exact_education": MetricCase("1", "higher", "table"),
    "exact_income": MetricCase("1", "higher", "table"),
}


DATASET_CASES: dict[str, Modality] = {"sentences": "text", "shapes": "image", "survey": "image"}


# Model -> a data set and the task that `auto` stands for.
MODEL_CASES = {
    "lenet": ("shapes", "image-classification"),
    "lenet-group-norm": ("shapes", "image-classification"),
    "lenet-precode": ("shapes", "image-classification"),
    "resnet20": ("shapes", "image-classification"),
    "mlp": ("shapes", "image-classification"),
    "vit": ("shapes", "image-classification"),
    "resnet20-group-norm": ("shapes", "image-classification"),
    "resnet20-norm-free": ("shapes", "image-classification"),
    "resnet18": ("shapes", "image-classification"),
    "resnet18-group-norm": ("shapes", "image-classification"),
    "tiny-bert": ("sentences", "text-classification"),
    "tiny-gpt2": ("sentences", "language-modelling"),
    "transformer3": ("sentences", "language-modelling"),
}


TASK_CASES = {
    "image-classification": "lenet",
    "text-classification": "tiny-bert",
    "language-modelling": "tiny-gpt2",
    "masked-language-modelling": "tiny-bert",
}
