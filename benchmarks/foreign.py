"""The public code of a paper on a sealed bundle: ``python -m benchmarks.foreign CHECKOUT BUNDLE``.

An example of how an attack that knows nothing of fedsim takes part in the arena: it is handed what
the server saw, and writes a file for ``fedsim submit --guesses``. The bundle is all that is read.
What their scripts are told of a victim, and a server is not, is taken off the update: a class by
the bias of the head, as in iDLG, and a length by the rows of the position table with a gradient.
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attacks.images.inverting import DEVIATION, Inverting
from attacks.texts.lamp import LAMP
from attacks.texts.language_prior import load_prior
from benchmarks.public_code import PublicDAGER, PublicInverting, project_of
from benchmarks.public_lamp import PublicLAMP
from experiments.extras.arena.records import OpenBundle, open_bundle
from fedsim.errors import FedsimError
from fedsim.process import one_thread
from fedsim.store.capture import CaptureKey, Observation
from fedsim.store.files import save_tensors, write_json
from fedsim.tasks import load_task
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Tensors
from fedsim.visible import say

Guesses: TypeAlias = Iterator[tuple[CaptureKey, Tensor | list[str]]]
"""For each capture a picture ``(1, channel, height, width)``, or texts."""
NAMES = {
    "invertinggradients": "Inverting Gradients (public code)",
    "dager-gradient-inversion": "DAGER (public code)",
    "lamp": "LAMP (public code)",
}


def guesses(checkout: Path, bundle: OpenBundle, steps: int) -> Guesses:
    """The guesses of the project that the folder is a checkout of, capture by capture."""
    projects: dict[str, Callable[[Path, OpenBundle, int], Guesses]] = {
        "invertinggradients": _inverting,
        "dager-gradient-inversion": _dager,
        "lamp": _lamp,
    }
    return projects[project_of(checkout)](checkout, bundle, steps)


def _observations(bundle: OpenBundle) -> Iterator[Observation]:
    return (bundle.captures.load(key) for key in bundle.captures.keys())


def _inverting(checkout: Path, bundle: OpenBundle, steps: int) -> Guesses:
    task = load_task(bundle.captures.root)
    torch.manual_seed(0)
    for seen in _observations(bundle):
        network = task.model(seen.sent)
        variation = Inverting().pixel_variation * DEVIATION
        options = {"mean": 0.5, "deviation": DEVIATION, "total_variation": variation}
        public = PublicInverting(checkout, network, steps=steps, **options)
        gradient = [seen.received[name] for name, _ in network.named_parameters()]
        yield seen.key, public.reconstruct(gradient, None, task.spec.input_shape)


def _dager(checkout: Path, bundle: OpenBundle, steps: int) -> Guesses:
    del steps  # its search ends by itself
    task = load_task(bundle.captures.root)
    assert isinstance(task, TextTask)
    for seen in _observations(bundle):
        count = seen.knowledge.num_examples or 1
        sentences = PublicDAGER(checkout, task.model(seen.sent), count).reconstruct(seen.received)
        longest = sorted(sentences, key=len, reverse=True)[:count]
        yield seen.key, [task.text(ids) for ids in longest]


def _lamp(checkout: Path, bundle: OpenBundle, steps: int) -> Guesses:
    task = load_task(bundle.captures.root)
    assert isinstance(task, TextTask)
    options = LAMP(steps=steps, starts=100, discrete_every=20, prior="fedsim/prior-bert-vocab")
    prior = load_prior(options.prior, task, torch.device("cpu"))
    torch.manual_seed(0)
    for seen in _observations(bundle):
        network: Any = task.model(seen.sent)
        public = PublicLAMP(checkout, task, network, prior.network, options)
        ids = torch.full((1, _length(seen.received)), task.tokenizer.mask_token_id)
        blank = Batch(ids, _label(seen.received), torch.ones_like(ids))
        guess = public.reconstruct(seen.received, blank)
        yield seen.key, [task.tokenizer.decode(guess.inputs[0], skip_special_tokens=True)]


def _length(received: Tensors) -> int:
    """Tokens of a text alone in its batch: places whose embedding has a gradient."""
    (table,) = [value for name, value in received.items() if "position_embeddings" in name]
    return int((table.abs().sum(1) > 0).sum())


def _label(received: Tensors) -> Tensor:
    """The class of an example alone in its batch: the one with a negative gradient of its bias."""
    return received["classifier.bias"].argmin().reshape(1)


def main(arguments: list[str]) -> None:
    """Write the guesses, and print how to hand them in."""
    parser = argparse.ArgumentParser(prog="benchmarks.foreign")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path, default=Path("guesses"), help="without its ending")
    parser.add_argument("--steps", type=int, default=1000, help="of a search by descent")
    chosen = parser.parse_args(arguments)
    bundle, texts, tensors = open_bundle(chosen.bundle), {}, {}
    with one_thread():
        for key, guess in guesses(chosen.checkout.resolve(), bundle, chosen.steps):
            if isinstance(guess, Tensor):
                tensors[f"{key}/inputs"] = guess.detach().clone()
            elif guess:
                texts[str(key)] = guess
            say(f"{key}: {'a picture' if isinstance(guess, Tensor) else json.dumps(guess)}")
    path = chosen.out.with_suffix(".safetensors" if tensors else ".json")
    if tensors:
        save_tensors(path, tensors)
    else:
        write_json(path, texts)
    used = resource.getrusage(resource.RUSAGE_SELF)
    say(
        f"fedsim submit {chosen.bundle} OUT --guesses {path} --name "
        f"'{NAMES[project_of(chosen.checkout)]}' --cpu-seconds {used.ru_utime + used.ru_stime:.0f}"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedsimError as error:
        say(f"benchmarks.foreign: {error}", error=True)
        sys.exit(2)
