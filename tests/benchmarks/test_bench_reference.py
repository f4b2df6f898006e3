"""Public code runs beside ours on the same weights, rows and update."""

import sys
from pathlib import Path

import pytest
import torch
import transformers

from attacks.texts.lamp import LAMP
from benchmarks.bench import bench
from benchmarks.bench_reference import inverting_speed, span_speed
from benchmarks.bench_text import victim_of
from benchmarks.measure import Measure
from benchmarks.public_code import project_of
from benchmarks.public_lamp import PublicLAMP
from fedsim.config.cell import TaskConfig
from fedsim.data.rows import load_rows
from fedsim.errors import ConfigError
from fedsim.tasks import initial_weights, make_task
from fedsim.tasks.text import TextTask

SENTENCES = TaskConfig(model="tiny-gpt2", dataset="sentences", split="train[:8]", max_length=10)
INVERTING = '''
import torch
import torchvision
from inversefed.nn import MetaMonkey


class GradientReconstructor:
    """Knows the picture by its gradient alone: that of the true one has to be the given one."""

    def __init__(self, model, mean_std, config, num_images):
        self.model, self.config, (self.mean, self.std) = model, config, mean_std

    def reconstruct(self, gradient, labels, img_shape):
        from tests.benchmarks import test_bench_reference as test

        for image in test.pictures():
            logits = self.model((image - self.mean) / self.std)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            own = torch.autograd.grad(loss, list(self.model.parameters()))
            if all(torch.allclose(a, b, atol=1e-5) for a, b in zip(own, gradient, strict=True)):
                return (image - self.mean) / self.std, {}
        raise AssertionError("the weights, the rows or the update are others")
'''
DAGER = """
import sys
import torch
from datasets import load_metric
from constants import config

args = config(sys.argv)


class ModelWrapper:
    def get_matrices_expansions(self, gradients, B=None, tol=None):
        assert B is None and tol is args.rank_tol
        first = [gradients[i] for i in self.layer_ids]
        assert all(each.shape == (self.emb_size, 3 * self.emb_size) for each in first)
        return torch.linalg.matrix_rank(first[0]).item(), first


def filter_l1(args, wrapper, spans):
    table = wrapper.embeddings_weight_nopos[0]
    rows = wrapper.get_layer_inputs(torch.tensor([[5, 6]]), attention_mask=None)[0]
    assert rows.shape == (1, 2, table.shape[1])
    return [], [[1]], [], []


def filter_decoder(args, wrapper, spans, ids):
    from tests.benchmarks import test_bench_reference as test

    return test.truth(int(args[-1].split("=")[1])), [], [], []
"""
LAMP_COS = """
import sys
import torch
from datasets import load_metric
from transformers import AdamW, BeamSearchScorer
from constants import START

args = sys.argv


def compute_grads(model, embeddings, labels):
    raise AssertionError("of the private sentence")


def reconstruct(args, device, sample, metric, tokenizer, lm, model):
    assert {"--n_steps=7", "--init_candidates=5", "--swap_every=3"} < set(args)
    ids = tokenizer(sample[0], padding=True)["input_ids"]
    loss = model(inputs_embeds=model.get_input_embeddings()(ids), labels=sample[1]).loss
    own = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    given = compute_grads(model, None, sample[1])
    compared = [(a, b) for a, b in zip(own, given, strict=True) if a is not None]
    assert len(compared) > 9 and all(torch.allclose(a, b, atol=1e-5) for a, b in compared)
    assert metric.compute(predictions=[""], references=[""])["rouge1"].mid.fmeasure == 0
    assert (lm, START) == ("prior", 101)
    return [tokenizer.decode(ids[0])], []
"""


def pictures() -> list[torch.Tensor]:
    from benchmarks.bench_reference import PICTURES
    from fedsim.data.rows import load_rows
    from fedsim.tasks import make_task

    rows = load_rows(PICTURES.dataset, PICTURES.split, modality="image")
    images = make_task(PICTURES, rows).encode(rows).inputs
    return list(images.split(1))


def truth(size: int) -> list[list[int]]:
    """The sentences of the first batch."""
    from benchmarks.bench_reference import sentences
    from fedsim.data.rows import load_rows
    from fedsim.tasks import make_task

    rows = load_rows(SENTENCES.dataset, SENTENCES.split, modality="text")
    return sentences(make_task(SENTENCES, rows).encode(rows)[list(range(size))])


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines(measures: list[Measure]) -> dict[str, Measure]:
    return {each.name.partition(": ")[2]: each for each in measures}


def test_the_public_code_gets_our_weights_rows_and_update(tmp_path: Path) -> None:
    write(tmp_path / "inversefed/reconstruction_algorithms.py", INVERTING)
    before = set(sys.modules)
    guessed = lines(list(inverting_speed(tmp_path, steps=2)))
    assert guessed["the public code's PSNR"].value > 40
    assert 0 < guessed["our PSNR"].value < 40
    assert guessed["our PSNR less the public code's"].value < 0
    assert guessed["ours alone"].value > 0
    assert guessed["each of 8 together"].goal == ">= 5"
    left = {name for name in set(sys.modules) - before if "inversefed" in name}
    assert not left
    assert str(tmp_path) not in sys.path


def test_the_public_search_reads_our_layers(tmp_path: Path) -> None:
    write(tmp_path / "attack.py", DAGER)
    write(
        tmp_path / "constants.py",
        "def config(argv):\n    return Arguments(argv)\n\n\n"
        "class Arguments(list):\n    rank_tol = None\n",
    )
    write(tmp_path / "utils/filtering_decoder.py", "")
    guessed = lines(list(span_speed(tmp_path, SENTENCES, {2: 1})))
    assert guessed["whole sentences, the public code"].value == 2
    assert guessed["whole sentences, ours"].unit == "of 2"
    assert guessed["ours"].value > 0


def test_the_public_lamp_gets_our_weights_and_update(tmp_path: Path) -> None:
    write(tmp_path / "attack.py", LAMP_COS)
    write(tmp_path / "constants.py", "START = 101\n")
    write(tmp_path / "lamp_cos.sh", "")
    assert project_of(tmp_path) == "lamp"
    config = TaskConfig(model="tiny-bert", dataset="sentences", split="train[:1]")
    task = make_task(config, rows := load_rows(config.dataset, config.split, modality="text"))
    assert isinstance(task, TextTask)
    one = victim_of(task, initial_weights(task, config, seed=0), task.encode(rows), 0)
    options = LAMP(steps=7, starts=5, discrete_every=3)
    public = PublicLAMP(tmp_path, task, task.model(one.seen.sent), "prior", options)
    recovered = public.reconstruct(one.seen.received, one.batch)
    assert torch.equal(recovered.inputs, one.batch.inputs)
    assert not hasattr(transformers, "AdamW")


def test_what_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a checkout of neither"):
        list(bench("reference", (), tmp_path))
    for part, path in (("reference", None), ("text", tmp_path)):
        with pytest.raises(ConfigError, match="benchmarks reference --path FOLDER"):
            list(bench(part, (), path))
