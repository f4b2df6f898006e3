"""Registry of the metrics."""

from fedsim.metrics.base import Metric
from fedsim.metrics.images import (
    MeanSquaredError,
    PeakSignalToNoise,
    PerceptualDistance,
    PerceptualDistanceVGG,
    StructuralSimilarity,
)
from fedsim.metrics.rouge import (
    Bleu,
    Rouge1,
    Rouge1Special,
    Rouge2,
    Rouge2Special,
    RougeL,
    RougeLSpecial,
)
from fedsim.metrics.sentences import (
    Rouge1Best,
    Rouge2Best,
    RougeLBest,
    SentencePrecision,
    SentenceRecall,
)
from fedsim.metrics.table import SURVEY_METRICS, ExactColumns, ExactRow
from fedsim.metrics.tokens import (
    BatchTokenPrecision,
    BatchTokenRecall,
    ExactMatch,
    LabelAccuracy,
    PaddedTokenAccuracy,
    TokenAccuracy,
    TokenPrecision,
    TokenRecall,
)

METRICS: dict[str, type[Metric]] = {
    "mse": MeanSquaredError,
    "psnr": PeakSignalToNoise,
    "ssim": StructuralSimilarity,
    "lpips": PerceptualDistance,
    "lpips_vgg": PerceptualDistanceVGG,
    "label_accuracy": LabelAccuracy,
    "rouge1": Rouge1,
    "rouge2": Rouge2,
    "rougeL": RougeL,
    "rouge1_special": Rouge1Special,
    "rouge2_special": Rouge2Special,
    "rougeL_special": RougeLSpecial,
    "token_accuracy": TokenAccuracy,
    "padded_token_accuracy": PaddedTokenAccuracy,
    "token_precision": TokenPrecision,
    "token_recall": TokenRecall,
    "batch_token_precision": BatchTokenPrecision,
    "batch_token_recall": BatchTokenRecall,
    "exact_match": ExactMatch,
    "bleu": Bleu,
    "rouge1_best": Rouge1Best,
    "rouge2_best": Rouge2Best,
    "rougeL_best": RougeLBest,
    "sentence_precision": SentencePrecision,
    "sentence_recall": SentenceRecall,
    "exact_row": ExactRow,
    "exact_columns": ExactColumns,
    **SURVEY_METRICS,
}
