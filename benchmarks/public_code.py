"""The public code of two papers, imported from a checkout and called as its own scripts do.

Nothing of it is copied here. What its modules import at their head and the called functions never
reach may be missing: it is stood in for.
"""

import contextlib
import copy
import importlib
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from fedsim.errors import ConfigError
from fedsim.types import Tensors

_MARKS = {
    "inversefed/reconstruction_algorithms.py": "invertinggradients",
    "utils/filtering_decoder.py": "dager-gradient-inversion",
    "lamp_cos.sh": "lamp",
}


def project_of(checkout: Path) -> str:
    """The project that a folder is a checkout of.

    Raises:
        ConfigError: none that can be measured.
    """
    for mark, project in _MARKS.items():
        if (checkout / mark).is_file():
            return project
    raise ConfigError(
        f"--path {checkout}: a checkout of neither github.com/JonasGeiping/invertinggradients, "
        "github.com/insait-institute/dager-gradient-inversion nor github.com/eth-sri/lamp. Clone "
        "one and name its folder."
    )


@contextmanager
def importing(checkout: Path, **stood_in: ModuleType | MagicMock) -> Iterator[None]:
    """Import from the checkout first, in silence; afterwards no module of it is left."""
    before, argv = dict(sys.modules), sys.argv
    sys.path.insert(0, str(checkout))
    for name in {Path(entry).stem for entry in checkout.iterdir()} & before.keys():
        del sys.modules[name]
    named = {name.replace("__", "."): module for name, module in stood_in.items()}
    sys.modules.update({name: module for name, module in named.items() if name not in before})
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.path.remove(str(checkout))
        sys.argv = argv
        for name in sys.modules.keys() - before.keys():
            own = str(checkout) in str(getattr(sys.modules[name], "__file__", ""))
            if own or name in named:
                del sys.modules[name]
        sys.modules.update(before)


class PublicInverting:
    """``inversefed.GradientReconstructor`` with the options of Geiping et al. (2020).

    Args:
        checkout: of JonasGeiping/invertinggradients.
        network: takes pixels in [0, 1].
        mean: of the normalised pixels in which it searches.
        deviation: of the same.
        steps: of Adam.
        total_variation: its weight in normalised pixels.
    """

    def __init__(
        self,
        checkout: Path,
        network: nn.Module,
        *,
        mean: float,
        deviation: float,
        steps: int,
        total_variation: float,
    ) -> None:
        package = ModuleType("inversefed")
        package.__path__ = [str(checkout / "inversefed")]  # its own imports a data pipeline
        absent = {"inversefed__nn": MagicMock(), "torchvision": MagicMock()}
        with importing(checkout, inversefed=package, **absent):
            code = importlib.import_module("inversefed.reconstruction_algorithms")
        options = {
            **{"signed": True, "boxed": True, "cost_fn": "sim", "indices": "def", "lr": 0.1},
            **{"weights": "equal", "optim": "adam", "restarts": 1, "max_iterations": steps},
            **{"total_variation": total_variation, "init": "randn", "filter": "none"},
            **{"lr_decay": True, "scoring_choice": "loss"},
        }
        self._mean, self._deviation = (torch.full((3, 1, 1), x) for x in (mean, deviation))
        network = _Normalised(network, self._mean, self._deviation)
        scale = (self._mean, self._deviation)
        self._search = code.GradientReconstructor(network, scale, config=options, num_images=1)

    def reconstruct(
        self, gradient: Sequence[Tensor], label: Tensor | None, shape: Sequence[int]
    ) -> Tensor:
        """The picture ``(1, channel, height, width)`` in [0, 1]; its class by iDLG if not given."""
        with contextlib.redirect_stdout(io.StringIO()):
            found, _ = self._search.reconstruct(list(gradient), label, img_shape=tuple(shape))
        picture: Tensor = found * self._deviation + self._mean
        return picture


class _Normalised(nn.Module):
    def __init__(self, network: nn.Module, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self._network, self._mean, self._deviation = network, mean, deviation

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self._network(images * self._deviation + self._mean)
        return out


class PublicDAGER:
    """The two searches of DAGER (Petrov et al. 2024) on a GPT-2, with its script's options.

    But for the tolerance of the rank, which by default is too coarse for several sentences.

    Its ``ModelWrapper`` loads models by their names and reads layers by an older version of
    transformers: both are replaced, so that it sees our weights. Its last step, which chooses among
    sentences by the private ones, is left out.

    Args:
        checkout: of insait-institute/dager-gradient-inversion.
        network: a GPT-2 of transformers with a head.
        batch_size: number of sentences of an update.
    """

    def __init__(self, checkout: Path, network: Any, batch_size: int) -> None:  # noqa: ANN401
        import datasets

        datasets.load_metric = None  # of older versions; its main program scores by it
        try:
            with importing(checkout):
                script = "--dataset cola --task seq_class --split val --n_inputs 1 --device cpu "
                script += (
                    "--l1_filter all --l2_filter non-overlap --model_path gpt2 --rank_tol 1e-8"
                )
                sys.argv = ["attack", *script.split(), f"--batch_size={batch_size}"]
                attack = importlib.import_module("attack")
        finally:
            del datasets.load_metric
        self._attack, self._args = attack, attack.args
        self._wrapper = _wrapper(attack.ModelWrapper, attack.args, network)
        self._names = [name for name, _ in network.named_parameters()]

    def reconstruct(self, gradient: Tensors) -> list[list[int]]:
        """The sentences that it finds, as ids."""
        ordered = [gradient.get(name) for name in self._names]
        args, wrapper = self._args, self._wrapper
        with (
            torch.no_grad(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            rank, spans = wrapper.get_matrices_expansions(ordered, tol=args.rank_tol)
            if rank is None:
                return []
            _, ids, _, _ = self._attack.filter_l1(args, wrapper, spans)
            if not ids:
                return []
            found = self._attack.filter_decoder(args, wrapper, spans, ids)
        sentences: list[list[int]] = found[0]
        return sentences


def _wrapper(kind: Any, args: Any, network: Any) -> Any:  # noqa: ANN401
    """Its ``ModelWrapper`` around our network; padding and end are tokens that never occur."""
    body = network.transformer
    first = copy.deepcopy(body)
    first.h, first.ln_f = first.h[:1], nn.Identity()

    def layer_inputs(sentences: Tensor, **_: object) -> list[Tensor]:
        hidden = first(input_ids=sentences.long()).last_hidden_state
        return [body.h[1].ln_1(hidden)]

    made, names = kind.__new__(kind), [name for name, _ in network.named_parameters()]
    made.args, made.model, made.get_layer_inputs = args, network, layer_inputs
    made.tokenizer = SimpleNamespace(model_max_length=512)
    made.start_token, made.eos_token, made.pad_token = None, -1, -1
    made.layer_ids = [i for i, name in enumerate(names) if name.endswith("attn.c_attn.weight")]
    made.embeddings_weight_nopos, made.emb_size = body.wte.weight[None], network.config.n_embd
    return made
