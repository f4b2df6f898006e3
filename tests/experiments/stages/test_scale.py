"""What 10,000 captures and a million scores take, stage by stage, in commands of their own."""

from pathlib import Path

import pytest

from benchmarks.bench_stages import stage_costs


@pytest.mark.slow
def test_ten_thousand_captures_and_a_million_scores(tmp_path: Path) -> None:
    costs = stage_costs(tmp_path, clients=200, rounds=50)
    assert costs["score"].seconds + costs["report"].seconds < 300
    assert max(costs["score"].memory, costs["report"].memory) < 1.5
