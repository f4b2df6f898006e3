"""The public code of LAMP, imported from a checkout and called as its own script does."""

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attacks.texts.lamp import LAMP
from benchmarks.public_code import importing
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors

PROPOSALS = 200
"""Orders that its code tries in a round."""


class PublicLAMP:
    """``reconstruct`` of eth-sri/lamp (Balunovic et al. 2022), LAMP-cos.

    Its script downloads weights and a metric by their names: it is handed ours, and the gradient
    that the server received. The metric, by which it matches sentences to the private ones, says
    nothing, as there is one sentence.

    Args:
        checkout: of eth-sri/lamp.
        task: its model has the vocabulary of ``bert-base-uncased``, whose ids the code contains.
        network: as broadcast.
        prior: a language model of transformers over the same vocabulary.
        options: number of steps and starts, and steps between two rounds of other orders.
    """

    def __init__(
        self,
        checkout: Path,
        task: TextTask,
        network: Any,  # noqa: ANN401
        prior: Any,  # noqa: ANN401
        options: LAMP,
    ) -> None:
        norm = network.get_input_embeddings().weight.detach().norm(dim=1).mean()
        script = "--dataset cola --split test --loss cos --n_inputs 1 --device cpu "
        script += "--coeff_perplexity 0.2 --coeff_reg 1 --lr 0.01 --lr_decay 0.89"
        chosen = [f"--n_steps={options.steps}", f"--init_candidates={options.starts}"]
        chosen += [f"--swap_every={options.discrete_every}", f"--init_size={float(norm)}"]
        import datasets
        import transformers

        with (
            _attributes(datasets, "load_metric"),
            _attributes(transformers, "AdamW", "BeamSearchScorer"),
            importing(checkout),
        ):
            sys.argv = ["attack", *script.split(), *chosen]
            self._attack: Any = importlib.import_module("attack")
        self._task, self._network, self._prior = task, network, prior

    def reconstruct(self, gradient: Tensors, batch: Batch) -> Batch:
        """The sentence that it finds, with its start and end."""
        received = [gradient.get(name) for name, _ in self._network.named_parameters()]
        self._attack.compute_grads = lambda *_: received  # of the private sentence
        tokenizer = _Encoded(self._task.tokenizer, batch.inputs)
        nothing = {"rouge1": SimpleNamespace(mid=SimpleNamespace(fmeasure=0.0))}
        metric = SimpleNamespace(compute=lambda **_: nothing)
        with contextlib.redirect_stdout(io.StringIO()):
            (text,), _ = self._attack.reconstruct(
                self._attack.args,
                torch.device("cpu"),
                ([""], batch.labels),
                metric,
                tokenizer,
                self._prior,
                self._network,
            )
        ids = self._task.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        return Batch(ids, batch.labels, torch.ones_like(ids))


class _Encoded:
    """A tokenizer that has encoded the private sentence."""

    def __init__(self, tokenizer: Any, ids: Tensor) -> None:  # noqa: ANN401
        self._tokenizer, self._ids = tokenizer, ids

    def __call__(self, *_: object, **__: object) -> Any:  # noqa: ANN401
        from transformers import BatchEncoding

        return BatchEncoding({"input_ids": self._ids})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._tokenizer, name)


@contextmanager
def _attributes(module: ModuleType, *names: str) -> Iterator[None]:
    """Names of older versions of a package, which the code imports and does not reach."""
    absent = [name for name in names if not hasattr(module, name)]
    for name in absent:
        setattr(module, name, None)
    try:
        yield
    finally:
        for name in absent:
            delattr(module, name)
