import subprocess
import sys


def test_heavy_libraries_wait_for_the_first_score() -> None:
    code = (
        "import sys, fedsim.metrics, fedsim.metrics.match, experiments.analysis.statistics\n"
        "heavy = {'torchmetrics', 'rouge_score', 'sacrebleu', 'scipy', 'spacy'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
